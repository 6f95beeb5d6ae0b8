//! The log of a manager.

use raddle_supervisor::{ChildId, ReplicaSlot, SupervisorNotice};

use super::{
    children::{Children, is_suspect},
    hang_report::describe,
    process::Process,
};
use raddle_spawner::ExitKind;

/// Logs a SIGKILL at the end of a stop, and what the process was doing.
pub(super) fn log_kill(process: &str, number: usize, pid: u32) {
    let doing = describe(pid);
    tracing::error!(
        process,
        number,
        pid,
        doing,
        "a process did not end when it was stopped, and is killed (SIGKILL)"
    );
}

/// Logs a notice of the supervisor. `gone` is how the last process ended.
pub(super) fn say(
    notice: SupervisorNotice,
    processes: &[Process],
    children: &Children,
    seat: impl Fn(ChildId) -> Option<ReplicaSlot>,
    gone: Option<(u32, ExitKind)>,
) {
    let name = |seat: ReplicaSlot| (processes[seat.group.0].name.as_str(), seat.number + 1);
    let of = |child| seat(child).map_or(("", 0), name);
    let (was, how) = gone.map_or((0, String::new()), |(pid, gone)| (pid, gone.to_string()));
    match notice {
        SupervisorNotice::Stopping(child, why) if is_suspect(why) => {
            let ((process, number), pid) = (of(child), children.pid_of(child).unwrap_or_default());
            let doing = describe(pid);
            tracing::error!(
                process,
                number,
                pid,
                doing,
                "a process hangs and is killed, {why}: another takes its place"
            );
        }
        SupervisorNotice::Stopping(child, why) => {
            let ((process, number), pid) = (of(child), children.pid_of(child).unwrap_or_default());
            tracing::info!(process, number, pid, "a process is stopped: {why}");
        }
        SupervisorNotice::Replaced(_) => {
            tracing::warn!(
                pid = was,
                how,
                "a process ended by itself: another takes its place"
            )
        }
        SupervisorNotice::Retired(_) => {
            tracing::warn!(
                pid = was,
                how,
                "a process ended by itself, and is not replaced"
            )
        }
        SupervisorNotice::BackingOff {
            slot,
            pause,
            number: in_a_row,
        } => {
            let ((process, number), pause) = (name(slot), pause.as_secs_f64());
            tracing::error!(
                process,
                number,
                in_a_row,
                "processes exit right after their start (the last one {how}): the next start is in {pause} s; their messages are above"
            );
        }
        SupervisorNotice::Recovered(seat) => {
            let (process, number) = name(seat);
            tracing::warn!(process, number, "processes stay up again");
        }
        _ => {}
    }
}
