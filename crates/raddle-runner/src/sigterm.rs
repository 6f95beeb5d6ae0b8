//! A flag that SIGTERM sets instead of ending the process.

use std::sync::{
    Once,
    atomic::{AtomicBool, Ordering},
};

static TERMINATED: AtomicBool = AtomicBool::new(false);
static CAUGHT: Once = Once::new();

extern "C" fn set_flag(_: libc::c_int) {
    TERMINATED.store(true, Ordering::Relaxed);
}

/// Whether this process has received SIGTERM. From the first call on, SIGTERM no longer ends the
/// process, so the caller must poll this function.
pub fn is_sigterm_received() -> bool {
    CAUGHT.call_once(|| crate::sys::set_handler(libc::SIGTERM, set_flag));
    TERMINATED.load(Ordering::Relaxed)
}
