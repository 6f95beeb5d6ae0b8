//! A wall clock that the program with this module can move, for itself and for its workers.
//!
//! A preloaded library would not reach statically linked programs. This `clock_gettime` replaces
//! that of the C library for all code of the program, the standard library included: the system's
//! time plus the seconds in the file that `RADDLE_TEST_CLOCK` names. Other clocks are unchanged, as
//! when the time of a machine is set. The code here must not read the time itself.

use std::{
    ffi::{c_int, c_long},
    fs,
    path::PathBuf,
    sync::LazyLock,
};

/// The `timespec` of the kernel.
#[repr(C)]
struct Time {
    seconds: i64,
    nanos: c_long,
}

const REALTIME: c_int = 0;
const REALTIME_COARSE: c_int = 5;
#[cfg(target_arch = "x86_64")]
const SYS_CLOCK_GETTIME: c_long = 228;
#[cfg(not(target_arch = "x86_64"))]
const SYS_CLOCK_GETTIME: c_long = 113;

static FILE: LazyLock<Option<PathBuf>> =
    LazyLock::new(|| std::env::var_os("RADDLE_TEST_CLOCK").map(PathBuf::from));

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

/// Replaces the function of the C library.
///
/// # Safety
/// `time` must be a valid place for the result.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Time) -> c_int {
    // SAFETY: the arguments of the system call are passed on unchanged.
    let outcome = unsafe { syscall(SYS_CLOCK_GETTIME, clock, time) };
    if outcome == 0 && [REALTIME, REALTIME_COARSE].contains(&clock) {
        // SAFETY: the kernel has just written there.
        unsafe { (*time).seconds += moved_by() };
    }
    outcome as c_int
}

fn moved_by() -> i64 {
    FILE.as_ref()
        .and_then(|file| fs::read_to_string(file).ok()?.parse().ok())
        .unwrap_or(0)
}

/// Sets the offset of the clock, atomically for all readers of the file.
pub(crate) fn move_to(seconds: i64) {
    let file = FILE.as_ref().expect("RADDLE_TEST_CLOCK names a file");
    let draft = file.with_extension("draft");
    fs::write(&draft, seconds.to_string()).expect("the file can be written");
    fs::rename(draft, file).expect("the file can be put in its place");
}
