//! What a runner does besides as process 1 of a container. See [`crate::contained`] for its supervisor.

mod bounds;
mod guard;

use std::{fs, io, time::Duration};

use raddle_model::ExitStatus;

pub(super) use self::bounds::{exceeded, memory_kills};
use super::{
    child::{self, ChildPlan, ChildStep},
    program::Executable,
};

/// How often it is looked whether a limit of the container was run into.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// The kernel ends the command for want of memory before process 1, which has to tell of it.
const FIRST_TO_GO: &str = "500";
const LAST_TO_GO: &str = "0";

/// Whether the container is what it was asked to be. The error says how the attempt ends without having begun.
pub(super) fn check() -> Result<(), ExitStatus> {
    let message = match guard::check() {
        Ok(None) => return Ok(()),
        Ok(Some(lacks)) => format!(
            "the container engine gave no container with {lacks}, and so it runs nothing there"
        ),
        Err(error) => format!("what a container is like cannot be seen: {error}"),
    };
    Err(ExitStatus::SpawnFailed { message })
}

/// Starts the command as the first to go.
pub(super) fn spawn(
    plan: &ChildPlan<'_>,
    executable: &Executable,
) -> Result<u32, (ChildStep, io::Error)> {
    // Where it is refused the kernel chooses for itself.
    let adjust = |score| _ = fs::write("/proc/self/oom_score_adj", score);
    adjust(FIRST_TO_GO);
    let spawned = child::spawn(plan, executable);
    adjust(LAST_TO_GO);
    spawned
}
