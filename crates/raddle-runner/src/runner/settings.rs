//! Command-line arguments and exit codes of a runner.

use std::ffi::OsStr;

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
/// Exit code of a runner that the system refused a resource during its setup. Its worker then knows
/// that nothing was started.
pub(crate) const NOT_SET_UP: i32 = 71;
