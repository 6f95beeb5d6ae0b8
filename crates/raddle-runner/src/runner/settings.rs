//! Command-line arguments and exit codes of a runner.

use std::{
    ffi::OsStr,
    io,
    os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use crate::sys;

/// First argument of a runner.
pub(crate) const RUNNER_ARGUMENT: &str = "__runner";
/// First argument of a process that calls one function of its program in a sandbox.
pub(super) const FUNCTION_ARGUMENT: &str = "__function";
/// Second argument of a runner whose standard output is a
/// [`LeaseDeadlinePage`](crate::LeaseDeadlinePage).
pub(super) const LEASE: &str = "fenced";
const NO_LEASE: &str = "free";
/// Space for the title, which overwrites arguments and environment: this is enough even if the
/// environment is empty.
const TITLE_SPACE: &str = "                                                                                                \
                    ";

/// Arguments of a runner, after argv[0].
pub(crate) fn arguments(has_lease: bool) -> [&'static OsStr; 3] {
    [
        RUNNER_ARGUMENT,
        if has_lease { LEASE } else { NO_LEASE },
        TITLE_SPACE,
    ]
    .map(OsStr::new)
}
/// Exit code of a runner whose fork server failed. The worker then looks for processes that the
/// fork server may have left.
pub(super) const FORK_SERVER_FAILED: i32 = 1;
/// Exit code of a Raddle process that failed itself, and not the command that it runs. The command
/// line uses the same code.
pub(crate) const FAULT: i32 = 125;
/// Exit code of a runner to which the kernel refused a resource during its setup. Its worker then
/// knows that nothing was started.
pub(crate) const NOT_SET_UP: i32 = 71;
/// The variable that names the descriptor of a host's connection. Commands do not see variables
/// with this prefix.
pub(crate) const HOST_SOCKET: &str = "RADDLE_INTERNAL_HOST_SOCKET";

/// Takes the connection of the host that this runner is to start, if it was given one. It gets a
/// number above those of a command, so that none is in its way.
pub(super) fn take_host_socket() -> io::Result<Option<OwnedFd>> {
    let Some(number) = std::env::var(HOST_SOCKET)
        .ok()
        .and_then(|text| text.parse::<RawFd>().ok())
    else {
        return Ok(None);
    };
    // SAFETY: the worker left the descriptor open for this process, and no other code owns it. A
    // closed number gives an error.
    let socket = sys::dup_above(unsafe { BorrowedFd::borrow_raw(number) }, 10)?;
    // SAFETY: as above; it was open a moment ago, and no other code owns it.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
    Ok(Some(socket))
}
