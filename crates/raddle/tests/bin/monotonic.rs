//! A clock that all hosts of a machine share, and that nobody sets. Times of two processes can be held against each other by it, which those of the clock
//! on the wall cannot: that is set forward when a virtual machine goes on after a pause.

use std::ffi::{c_int, c_long};

/// As the system has it.
#[repr(C)]
struct Time {
    seconds: i64,
    nanos: c_long,
}

const MONOTONIC: c_int = 1;

unsafe extern "C" {
    fn clock_gettime(clock: c_int, time: *mut Time) -> c_int;
}

/// In milliseconds since the machine was started.
pub(crate) fn now() -> u64 {
    let mut time = Time {
        seconds: 0,
        nanos: 0,
    };
    // SAFETY: it is written to, and is there for as long as that takes.
    unsafe { clock_gettime(MONOTONIC, &raw mut time) };
    time.seconds as u64 * 1_000 + time.nanos as u64 / 1_000_000
}
