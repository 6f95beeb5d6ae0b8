//! `CLOCK_MONOTONIC`, which all hosts of a machine share. Its times can be compared between
//! processes. The wall clock cannot be used: it jumps when a virtual machine resumes.

use std::ffi::{c_int, c_long};

/// The `timespec` of the kernel.
#[repr(C)]
struct Time {
    seconds: i64,
    nanos: c_long,
}

const MONOTONIC: c_int = 1;

unsafe extern "C" {
    fn clock_gettime(clock: c_int, time: *mut Time) -> c_int;
}

/// Milliseconds since boot.
pub(crate) fn now() -> u64 {
    let mut time = Time {
        seconds: 0,
        nanos: 0,
    };
    // SAFETY: `time` is a valid place for the result.
    unsafe { clock_gettime(MONOTONIC, &raw mut time) };
    time.seconds as u64 * 1_000 + time.nanos as u64 / 1_000_000
}
