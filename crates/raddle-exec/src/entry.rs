//! What the standard library does before it calls `main`, for a program that does without: all but what costs.

use std::io;

use crate::sys;

/// Makes a process that begins without the standard library's help what others are. To be called first, while there is one thread.
pub fn enter() {
    // SAFETY: from now on, writing to somebody who is gone is an error like any other. Nothing else may have been set up yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    if fill_standard_descriptors().is_err() {
        // Else whatever is opened next would be written to as if it were the terminal.
        std::process::abort();
    }
}

/// Puts nothing where a standard descriptor is closed. What is opened takes the lowest that is free.
fn fill_standard_descriptors() -> io::Result<()> {
    let mut standard = [0, 1, 2].map(|fd| libc::pollfd { fd, events: 0, revents: 0 });
    sys::poll(&mut standard, Some(std::time::Duration::ZERO))?;
    for _ in standard.iter().filter(|found| found.revents & libc::POLLNVAL != 0) {
        // Not to be closed by `exec`: it is there for those that this process starts, too.
        // SAFETY: the name is a C string.
        sys::check(unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) })?;
    }
    Ok(())
}
