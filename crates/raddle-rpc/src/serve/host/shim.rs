//! The start of a host: this program again, which moves the socket to descriptor 3 and becomes the
//! host's program. `std` cannot pass a descriptor under another number without its slow fork path.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Write},
    os::fd::BorrowedFd,
    os::unix::process::CommandExt,
    process::Command,
};

use rustix::process::{Signal, set_parent_process_death_signal};

/// The first argument of a program that becomes a host.
pub(super) const ARGUMENT: &str = "raddle-pool-host";
/// The descriptor of the host's socket.
const SOCKET: i32 = 3;

/// Becomes a host if this process was started as one, and then does not return.
pub(crate) fn become_host_if_asked() {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|first| first == ARGUMENT) {
        let error = become_host(words.collect());
        let _ = writeln!(io::stderr(), "raddle: cannot start the host: {error}");
        std::process::exit(127);
    }
}

fn become_host(words: Vec<OsString>) -> io::Error {
    let Some((program, arguments)) = words.split_first() else {
        return io::Error::other("there is no command");
    };
    // The worker's main thread has started this process, and lives as long as the worker. A host
    // that is busy would not see that its socket is closed.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // SAFETY: nothing in this process uses descriptor 3, and the program that follows owns it.
    if unsafe { libc::dup2(0, SOCKET) } < 0 {
        return io::Error::last_os_error();
    }
    // SAFETY: it was opened by the line before.
    let socket = unsafe { BorrowedFd::borrow_raw(SOCKET) };
    let moved = rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty())
        .map_err(io::Error::from)
        .and_then(|()| File::open("/dev/null"))
        .and_then(|null| Ok(rustix::stdio::dup2_stdin(null)?));
    match moved {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error,
    }
}
