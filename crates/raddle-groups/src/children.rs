//! The child processes of a manager: start, events and progress pages.
//!
//! A pidfd reports the death of a child at once, and SIGCHLD reports that it was stopped or
//! continued. Progress is read from the page of shared memory that the child was started with.

use std::{collections::BTreeMap, fs, io, os::fd::AsFd, process::Stdio, time::Duration};

use raddle_model::{Tid, stop::StopPolicy};
use raddle_runner::ProgressPage;
use raddle_supervisor::{ChildId, HangKind, StopReason, Supervisor, SupervisorEvent};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use tokio::sync::mpsc;

use raddle_spawner::{BroadcastCommand, ProcessTemplate, WorkerEvent, process::watch};
use raddle_worker::worker::HANG_MARGIN;

/// The table of live child processes.
pub(super) struct Children {
    records: BTreeMap<ChildId, ChildRecord>,
    /// Until when the children may have been stalled together with the manager, on the clock of the
    /// pages. From then on each runner has its whole grace again.
    stalled_until: Option<Duration>,
    /// Unbounded: a process sends at most three events.
    event_receiver: mpsc::UnboundedReceiver<(ChildId, WorkerEvent)>,
    event_sender: mpsc::UnboundedSender<(ChildId, WorkerEvent)>,
}

struct ChildRecord {
    pid: u32,
    tid: Option<Tid>,
    /// Whether it was started paused.
    paused: bool,
    commands: mpsc::UnboundedSender<BroadcastCommand>,
    page: ProgressPage,
    turns: u64,
    slots: usize,
    /// How long a runner may take to end a task after its deadline.
    stop_grace: Duration,
}

impl Children {
    pub(super) fn new() -> Self {
        let (event_sender, event_receiver) = mpsc::unbounded_channel();
        Self {
            records: BTreeMap::new(),
            stalled_until: None,
            event_receiver,
            event_sender,
        }
    }

    /// Starts a process from `template` that runs up to `slots` tasks at a time, `paused` or not.
    /// When its record is dropped, the process is stopped as `stop` says.
    pub(super) fn start(
        &mut self,
        id: ChildId,
        template: &ProcessTemplate,
        paused: bool,
        slots: usize,
        stop: StopPolicy,
    ) -> io::Result<()> {
        let page = ProgressPage::new()?;
        let (pid, child) = template.start(Stdio::from(page.as_fd().try_clone_to_owned()?), true)?;
        let commands = watch(child, id, self.event_sender.clone(), Some(stop));
        let stop_grace = stop.grace;
        self.records.insert(
            id,
            ChildRecord {
                pid,
                tid: None,
                paused,
                commands,
                page,
                turns: 0,
                slots,
                stop_grace,
            },
        );
        Ok(())
    }

    /// Waits for the next event of any process; for ever if there is none. Cancel safe.
    pub(super) async fn next(&mut self) -> (ChildId, WorkerEvent) {
        let (id, event) = self
            .event_receiver
            .recv()
            .await
            .expect("self holds a sender");
        if let (WorkerEvent::Ready(tid), Some(record)) = (&event, self.records.get_mut(&id)) {
            record.tid = Some(*tid);
        }
        (id, event)
    }

    /// Removes the record of a process that is gone, and returns its pid.
    pub(super) fn remove(&mut self, id: ChildId) -> Option<u32> {
        self.records.remove(&id).map(|record| record.pid)
    }

    pub(super) fn send_command(&self, id: ChildId, command: BroadcastCommand) {
        if let Some(record) = self.records.get(&id) {
            // Fails only when the process is gone.
            let _ = record.commands.send(command);
        }
    }

    /// Whether a process was started paused.
    pub(super) fn started_paused(&self, id: ChildId) -> bool {
        self.records.get(&id).is_some_and(|record| record.paused)
    }

    /// How many attempts a process has begun.
    pub(super) fn attempts_started(&self, id: ChildId) -> Option<u64> {
        self.records
            .get(&id)
            .map(|record| record.page.attempts_started())
    }

    pub(super) fn pid_of(&self, id: ChildId) -> Option<u32> {
        self.records.get(&id).map(|record| record.pid)
    }

    /// The ids of the workers that are ready.
    pub(super) fn tids(&self) -> impl Iterator<Item = Tid> {
        self.records.values().filter_map(|record| record.tid)
    }

    /// Records that the manager was stalled until now. The children and their runners may have been
    /// stalled with it, so each runner gets its full grace again to end overdue tasks before its
    /// process counts as hung.
    pub(super) fn note_stall(&mut self) {
        self.stalled_until = Some(ProgressPage::clock_now());
    }

    /// Reports progress and memory of each child to `core`. Returns the children that are overdue,
    /// and when the next deadline is.
    pub(super) fn inspect_pages(
        &mut self,
        core: &mut Supervisor,
        now: Duration,
        with_rss: bool,
    ) -> (Vec<SupervisorEvent>, Option<Duration>) {
        let clock = ProgressPage::clock_now();
        let (mut overdue, mut next) = (Vec::new(), None::<Duration>);
        for (id, record) in &mut self.records {
            let turns = record.page.turns();
            if std::mem::replace(&mut record.turns, turns) != turns {
                core.note(SupervisorEvent::Heartbeat(*id), now);
            }
            let rss = with_rss.then(|| rss_of(record.pid)).flatten();
            core.note(
                SupervisorEvent::Measured {
                    child: *id,
                    tasks: record.page.attempts_started(),
                    rss,
                },
                now,
            );
            let earliest = self.stalled_until.map_or(Duration::ZERO, |until| {
                until + record.stop_grace + HANG_MARGIN
            });
            match record
                .page
                .next_deadline(record.slots)
                .map(|due| due.max(earliest))
            {
                Some(due) if due <= clock => {
                    overdue.push(SupervisorEvent::Hung(*id, HangKind::Overdue))
                }
                Some(due) => next = next.into_iter().chain([now + (due - clock)]).min(),
                None => {}
            }
        }
        (overdue, next)
    }

    /// The pid and worker id of a process, and its overdue tasks, if there are any.
    pub(super) fn overdue(&self, id: ChildId) -> Option<(u32, Tid, Vec<Tid>)> {
        let record = self.records.get(&id)?;
        let tasks = record
            .page
            .overdue_tasks(record.slots, ProgressPage::clock_now());
        record
            .tid
            .filter(|_| !tasks.is_empty())
            .map(|worker| (record.pid, worker, tasks))
    }

    /// Sends a command once `before` is over. `before` must be short: the spawned task is not
    /// awaited.
    pub(super) fn send_command_after(
        &self,
        id: ChildId,
        before: impl Future<Output = ()> + Send + 'static,
        command: BroadcastCommand,
    ) {
        if let Some(record) = self.records.get(&id) {
            let commands = record.commands.clone();
            tokio::spawn(async move {
                before.await;
                let _ = commands.send(command);
            });
        }
    }

    /// The children that were stopped or continued since the last call.
    pub(super) fn suspensions(&self) -> Vec<SupervisorEvent> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        let mut events = Vec::new();
        for (id, record) in &self.records {
            let Some(pid) = i32::try_from(record.pid).ok().and_then(Pid::from_raw) else {
                continue;
            };
            // In a loop, because it may have been stopped and then continued. The pidfd reports its
            // death.
            while let Ok(Some(status)) = waitid(WaitId::Pid(pid), options) {
                if status.stopped() {
                    events.push(SupervisorEvent::Suspended(*id));
                } else if status.continued() {
                    events.push(SupervisorEvent::Continued(*id));
                } else {
                    break;
                }
            }
        }
        events
    }
}

/// Resident memory of a process, in bytes.
fn rss_of(pid: u32) -> Option<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// The command that starts a stage of a process's stop.
pub(super) fn stage_command(stage: raddle_model::stop::StopStage) -> Option<BroadcastCommand> {
    use raddle_model::stop::StopStage;
    match stage {
        StopStage::Running => None,
        StopStage::Draining => Some(BroadcastCommand::Stop),
        // The second signal makes a worker release the tasks that it runs.
        StopStage::Terminating => Some(BroadcastCommand::Release),
        StopStage::Killing => Some(BroadcastCommand::Kill),
    }
}

/// Whether the activity of a process is worth a log entry before it is killed.
pub(super) fn is_hang(reason: StopReason) -> bool {
    matches!(reason, StopReason::Hung(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extends_deadlines_after_a_stall() {
        let mut children = Children::new();
        let (page, tid) = (
            ProgressPage::new().unwrap(),
            Tid::from_u64(1_800_000_000_000_000_000).unwrap(),
        );
        let deadline = ProgressPage::clock_now();
        page.set_deadline(0, Some((tid, deadline)));
        let (commands, _) = mpsc::unbounded_channel();
        let id = ChildId(7);
        let stop_grace = Duration::from_secs(5);
        let record = ChildRecord {
            pid: 0,
            tid: Some(tid),
            paused: false,
            commands,
            page,
            turns: 0,
            slots: 1,
            stop_grace,
        };
        children.records.insert(id, record);
        let (mut core, now) = (Supervisor::new([]), Duration::from_secs(60));
        let overdue = vec![SupervisorEvent::Hung(id, HangKind::Overdue)];
        assert_eq!(
            children.inspect_pages(&mut core, now, false),
            (overdue.clone(), None)
        );
        children.note_stall();
        let (found, next) = children.inspect_pages(&mut core, now, false);
        assert!(
            found.is_empty()
                && next.is_some_and(|next| next > now && next <= now + stop_grace + HANG_MARGIN),
            "{found:?} {next:?}"
        );
        // That grace is over.
        children.stalled_until = None;
        assert_eq!(children.inspect_pages(&mut core, now, false).0, overdue);
    }
}
