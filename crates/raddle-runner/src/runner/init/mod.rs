//! Extra duties of a runner that is process 1 of a container. See [`crate::container`] for the
//! protocol with its supervisor.

mod bounds;
mod guard;

use std::{fs, io, time::Duration};

use raddle_model::ExitStatus;

pub(super) use self::bounds::{exceeded, oom_kills};
use super::{
    child::{self, ChildPlan, ChildStep},
    program::Executable,
};

/// Interval between checks of the container's limits.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// `oom_score_adj` of the command, so that the kernel kills it before process 1, which must report
/// the end.
const KILL_FIRST: &str = "500";
const KILL_LAST: &str = "0";

/// Checks the isolation of the container. An error is the end of an attempt that did not start.
pub(super) fn check() -> Result<(), ExitStatus> {
    let message = match guard::check() {
        Ok(None) => return Ok(()),
        Ok(Some(lacks)) => {
            format!("the container engine gave a container without {lacks}: no task runs in it")
        }
        Err(error) => format!("cannot check the isolation of the container: {error}"),
    };
    Err(ExitStatus::SpawnFailed { message })
}

/// Starts the command, as the first process that the out-of-memory killer takes.
pub(super) fn spawn(
    plan: &ChildPlan<'_>,
    executable: &Executable,
) -> Result<u32, (ChildStep, io::Error)> {
    // If this is refused, the kernel chooses the process itself.
    let adjust = |score| _ = fs::write("/proc/self/oom_score_adj", score);
    adjust(KILL_FIRST);
    let spawned = child::spawn(plan, executable);
    adjust(KILL_LAST);
    spawned
}
