//! The log of a manager.

use raddle_supervisor::{ChildId, ReplicaSlot, SupervisorNotice};

use super::{
    children::{Children, is_hang},
    hang_report::describe_process,
    process::Process,
};
use raddle_spawner::ExitKind;

/// Logs a SIGKILL at the end of a stop, and what the process was doing.
pub(super) fn log_kill(process: &str, number: usize, pid: u32) {
    let doing = describe_process(pid);
    tracing::error!(
        process,
        number,
        pid,
        doing,
        "a process did not end when it was stopped, and is killed (SIGKILL)"
    );
}

/// Logs a notice of the supervisor. `gone` is how the last process ended.
pub(super) fn log_notice(
    notice: SupervisorNotice,
    processes: &[Process],
    children: &Children,
    slot: impl Fn(ChildId) -> Option<ReplicaSlot>,
    gone: Option<(u32, ExitKind)>,
) {
    let name = |slot: ReplicaSlot| (processes[slot.group.0].name.as_str(), slot.number + 1);
    let describe_child = |child| slot(child).map_or(("", 0), name);
    let (was, how) = gone.map_or((0, String::new()), |(pid, gone)| (pid, gone.to_string()));
    match notice {
        SupervisorNotice::Stopping(child, why) if is_hang(why) => {
            let ((process, number), pid) = (
                describe_child(child),
                children.pid(child).unwrap_or_default(),
            );
            let doing = describe_process(pid);
            tracing::error!(
                process,
                number,
                pid,
                doing,
                "a process hangs and is killed, {why}: another takes its place"
            );
        }
        SupervisorNotice::Stopping(child, why) => {
            let ((process, number), pid) = (
                describe_child(child),
                children.pid(child).unwrap_or_default(),
            );
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
        SupervisorNotice::Recovered(slot) => {
            let (process, number) = name(slot);
            tracing::warn!(process, number, "processes stay up again");
        }
        _ => {}
    }
}
