//! What a manager says in its log of what it does.

use raddle_supervisor::{ChildId, ReplicaSlot, SupervisorNotice};

use super::{
    children::{Children, is_suspect},
    hang_report::describe,
    process::Process,
};
use raddle_spawner::ExitKind;

/// Logs the last stage of a stop. What the process was doing is looked at before it is killed.
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

/// Says what people should know. `gone` is how the last process ended that did.
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
                "a process ended by itself: its place stays empty"
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
                "processes die as soon as they are started (the last one {how}): the next is started in {pause} s; what they say is above"
            );
        }
        SupervisorNotice::Recovered(seat) => {
            let (process, number) = name(seat);
            tracing::warn!(process, number, "processes stay alive again");
        }
        _ => {}
    }
}
