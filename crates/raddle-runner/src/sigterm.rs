//! SIGTERM as something that can be asked for, instead of the end.

use std::sync::{
    Once,
    atomic::{AtomicBool, Ordering},
};

static TERMINATED: AtomicBool = AtomicBool::new(false);
static CAUGHT: Once = Once::new();

extern "C" fn note(_: libc::c_int) {
    TERMINATED.store(true, Ordering::Relaxed);
}

/// Whether this process was asked to end with SIGTERM. From the first call on that signal does not end it: for a process that looks here again and again.
pub fn is_terminated() -> bool {
    CAUGHT.call_once(|| crate::sys::handle(libc::SIGTERM, note));
    TERMINATED.load(Ordering::Relaxed)
}
