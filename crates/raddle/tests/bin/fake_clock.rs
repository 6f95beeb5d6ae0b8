//! A clock on the wall that the program which has this module can move, for itself and for the workers that it starts.
//!
//! Programs here are linked statically, so nothing can be preloaded that tells them another time. This is a `clock_gettime` that takes the place of
//! the C library's for all code in the program, the standard library's included: the system's time, and as many seconds more as stand in the
//! file that `RADDLE_TEST_CLOCK` names. Clocks that are not on the wall are left alone, as they are by whoever sets the time of a machine. Nothing
//! here may ask for the time.

use std::{
    ffi::{c_int, c_long},
    fs,
    path::PathBuf,
    sync::LazyLock,
};

/// As the system has it.
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

/// Takes the place of the C library's.
///
/// # Safety
/// `time` is where a time can be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Time) -> c_int {
    // SAFETY: what the system call takes, as it came.
    let outcome = unsafe { syscall(SYS_CLOCK_GETTIME, clock, time) };
    if outcome == 0 && [REALTIME, REALTIME_COARSE].contains(&clock) {
        // SAFETY: the system has just written there.
        unsafe { (*time).seconds += moved_by() };
    }
    outcome as c_int
}

fn moved_by() -> i64 {
    FILE.as_ref()
        .and_then(|file| fs::read_to_string(file).ok()?.parse().ok())
        .unwrap_or(0)
}

/// Moves the clock to so many seconds from the system's, in one step for all who look at the file.
pub(crate) fn move_to(seconds: i64) {
    let file = FILE.as_ref().expect("RADDLE_TEST_CLOCK names a file");
    let draft = file.with_extension("draft");
    fs::write(&draft, seconds.to_string()).expect("the file can be written");
    fs::rename(draft, file).expect("the file can be put in its place");
}
