//! What a runner is told on its command line: that it is one, whether it has a fence, and room for its title.

use std::{
    ffi::OsStr,
    io,
    os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use crate::sys;

/// The first argument of a runner.
pub(crate) const ARGUMENT: &str = "__runner";
/// The first argument of a process that calls a function of its program, and is nothing else.
pub(super) const FUNCTION: &str = "__function";
/// Said of a runner whose standard output is a fence page.
pub(super) const FENCED: &str = "fenced";
const FREE: &str = "free";
/// The title overwrites arguments and environment; with this it has room even if the environment is empty.
const ROOM: &str = "                                                                                                \
                    ";

/// The arguments of a runner, after its name.
pub(crate) fn arguments(fenced: bool) -> [&'static OsStr; 3] {
    [ARGUMENT, if fenced { FENCED } else { FREE }, ROOM].map(OsStr::new)
}
/// The exit code of a runner that can fork no functions: who sees it looks for what one may have left.
pub(super) const BROKEN: i32 = 1;
/// The exit code of a process of ours that fails by itself and not by what it runs, as of the command line.
pub(crate) const FAULT: i32 = 125;
/// The exit code of a runner that has not become one, for want of what the system gives: its worker knows by it that nothing was begun.
pub(crate) const NOT_SET_UP: i32 = 71;
/// The variable that names the descriptor of a host's connection. Commands do not see variables with this prefix.
pub(crate) const HOST_SOCKET: &str = "RADDLE_INTERNAL_HOST_SOCKET";

/// Takes the connection of the host that this runner is to start, if it was given one. It gets a number above those of a command, so that none is in its way.
pub(super) fn take_host_socket() -> io::Result<Option<OwnedFd>> {
    let Some(number) = std::env::var(HOST_SOCKET)
        .ok()
        .and_then(|text| text.parse::<RawFd>().ok())
    else {
        return Ok(None);
    };
    // SAFETY: the worker left it open for this process, and nothing here has taken it. A number that is not open gives an error.
    let socket = sys::dup_above(unsafe { BorrowedFd::borrow_raw(number) }, 10)?;
    // SAFETY: as above; it was open a moment ago, and belongs to nobody else.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
    Ok(Some(socket))
}
