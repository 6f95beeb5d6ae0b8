//! `Children`: starting and watching the processes of groups.
//!
//! A pidfd reports the exit of a process at once, and SIGCHLD that it was stopped. Its progress
//! page shows whether it makes progress.

use std::{collections::BTreeMap, fs, io, os::fd::AsFd, process::Stdio, time::Duration};

use raddle_model::{Tid, stop::StopPolicy};
use raddle_runner::ProgressPage;
use raddle_supervisor::{ChildId, HangKind, StopReason, Supervisor, SupervisorEvent};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use tokio::sync::mpsc;

use raddle_spawner::{BroadcastCommand, ProcessTemplate, WorkerEvent, process::watch};
use raddle_worker::worker::HANG_MARGIN;

/// The live processes.
pub(super) struct Children {
    records: BTreeMap<ChildId, ChildRecord>,
    /// When the manager itself may have been stalled, on the clock of the pages. Runners get their
    /// full time again from then on.
    stalled_until: Option<Duration>,
    /// At most three events per process, so the channel needs no bound.
    events: mpsc::UnboundedReceiver<(ChildId, WorkerEvent)>,
    events_tx: mpsc::UnboundedSender<(ChildId, WorkerEvent)>,
}

struct ChildRecord {
    pid: u32,
    tid: Option<Tid>,
    /// Whether it started paused.
    paused: bool,
    commands: mpsc::UnboundedSender<BroadcastCommand>,
    page: ProgressPage,
    heartbeats: u64,
    slots: usize,
    /// How long a runner may take to end an attempt that has timed out.
    timeout_grace: Duration,
}

impl Children {
    pub(super) fn new() -> Self {
        let (events_tx, events) = mpsc::unbounded_channel();
        Self {
            records: BTreeMap::new(),
            stalled_until: None,
            events,
            events_tx,
        }
    }

    /// Starts a process with this many slots. `paused` must match the template. If its manager is
    /// dropped, the process is stopped by `stop`.
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
        let commands = watch(child, id, self.events_tx.clone(), Some(stop));
        let timeout_grace = stop.grace;
        self.records.insert(
            id,
            ChildRecord {
                pid,
                tid: None,
                paused,
                commands,
                page,
                heartbeats: 0,
                slots,
                timeout_grace,
            },
        );
        Ok(())
    }

    /// The next event of any process. Cancel-safe; pending while there is none.
    pub(super) async fn next_event(&mut self) -> (ChildId, WorkerEvent) {
        let (id, event) = self.events.recv().await.expect("the other end is ours");
        if let (WorkerEvent::Ready(tid), Some(record)) = (&event, self.records.get_mut(&id)) {
            record.tid = Some(*tid);
        }
        (id, event)
    }

    /// Removes a process that has ended, and returns its PID.
    pub(super) fn forget(&mut self, id: ChildId) -> Option<u32> {
        self.records.remove(&id).map(|record| record.pid)
    }

    pub(super) fn send(&self, id: ChildId, command: BroadcastCommand) {
        if let Some(record) = self.records.get(&id) {
            // Fails only if the process has ended.
            let _ = record.commands.send(command);
        }
    }

    /// Whether a process started paused.
    pub(super) fn started_paused(&self, id: ChildId) -> bool {
        self.records.get(&id).is_some_and(|record| record.paused)
    }

    /// Attempts that a process has started.
    pub(super) fn attempts_started(&self, id: ChildId) -> Option<u64> {
        self.records
            .get(&id)
            .map(|record| record.page.attempts_started())
    }

    pub(super) fn pid(&self, id: ChildId) -> Option<u32> {
        self.records.get(&id).map(|record| record.pid)
    }

    /// The worker ids of the processes that have reported one.
    pub(super) fn tids(&self) -> impl Iterator<Item = Tid> {
        self.records.values().filter_map(|record| record.tid)
    }

    /// Records that the manager itself was stalled until now. The processes and their runners may
    /// have been stalled too, so runners get their full time to end attempts that have timed out.
    pub(super) fn extend_deadlines(&mut self) {
        self.stalled_until = Some(ProgressPage::clock_now());
    }

    /// Reports the pages to the supervisor. Returns processes with overdue tasks, and the next
    /// deadline.
    pub(super) fn read_pages(
        &mut self,
        core: &mut Supervisor,
        now: Duration,
        with_rss: bool,
    ) -> (Vec<SupervisorEvent>, Option<Duration>) {
        let clock = ProgressPage::clock_now();
        let (mut overdue, mut next) = (Vec::new(), None::<Duration>);
        for (id, record) in &mut self.records {
            let turns = record.page.turns();
            if std::mem::replace(&mut record.heartbeats, turns) != turns {
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
            let stalled_until = self.stalled_until.map_or(Duration::ZERO, |since| {
                since + record.timeout_grace + HANG_MARGIN
            });
            match record
                .page
                .next_deadline(record.slots)
                .map(|due| due.max(stalled_until))
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

    /// The PID and worker id of a process, and its overdue tasks.
    pub(super) fn overdue_tasks(&self, id: ChildId) -> Option<(u32, Tid, Vec<Tid>)> {
        let record = self.records.get(&id)?;
        let tasks = record
            .page
            .overdue_tasks(record.slots, ProgressPage::clock_now());
        record
            .tid
            .filter(|_| !tasks.is_empty())
            .map(|worker| (record.pid, worker, tasks))
    }

    /// Sends a command after a future, which must not take long: nothing waits for it.
    pub(super) fn send_after(
        &self,
        id: ChildId,
        future: impl Future<Output = ()> + Send + 'static,
        command: BroadcastCommand,
    ) {
        if let Some(record) = self.records.get(&id) {
            let commands = record.commands.clone();
            tokio::spawn(async move {
                future.await;
                let _ = commands.send(command);
            });
        }
    }

    /// Which processes were stopped or continued since the last call.
    pub(super) fn suspensions(&self) -> Vec<SupervisorEvent> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        let mut events = Vec::new();
        for (id, record) in &self.records {
            let Some(pid) = i32::try_from(record.pid).ok().and_then(Pid::from_raw) else {
                continue;
            };
            // A process may have been stopped and continued. Its exit is reported elsewhere.
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

/// The resident memory of a process.
fn rss_of(pid: u32) -> Option<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// The command for a stage of a stop.
pub(super) fn stage_command(stage: raddle_model::stop::StopStage) -> Option<BroadcastCommand> {
    use raddle_model::stop::StopStage;
    match stage {
        StopStage::Running => None,
        StopStage::Draining => Some(BroadcastCommand::Stop),
        // The second signal means: release the running tasks.
        StopStage::Terminating => Some(BroadcastCommand::Release),
        StopStage::Killing => Some(BroadcastCommand::Kill),
    }
}

/// Whether the log should say what the process was doing.
pub(super) fn is_hang(why: StopReason) -> bool {
    matches!(why, StopReason::Hung(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_overdue_right_after_a_stall() {
        let mut children = Children::new();
        let (page, tid) = (
            ProgressPage::new().unwrap(),
            Tid::from_u64(1_800_000_000_000_000_000).unwrap(),
        );
        let began = ProgressPage::clock_now();
        page.set_deadline(0, Some((tid, began)));
        let (commands, _) = mpsc::unbounded_channel();
        let id = ChildId(7);
        let timeout_grace = Duration::from_secs(5);
        let record = ChildRecord {
            pid: 0,
            tid: Some(tid),
            paused: false,
            commands,
            page,
            heartbeats: 0,
            slots: 1,
            timeout_grace,
        };
        children.records.insert(id, record);
        let (mut core, now) = (Supervisor::new([]), Duration::from_secs(60));
        let overdue = vec![SupervisorEvent::Hung(id, HangKind::Overdue)];
        assert_eq!(
            children.read_pages(&mut core, now, false),
            (overdue.clone(), None)
        );
        children.extend_deadlines();
        let (found, next) = children.read_pages(&mut core, now, false);
        assert!(
            found.is_empty()
                && next.is_some_and(|next| next > now && next <= now + timeout_grace + HANG_MARGIN),
            "{found:?} {next:?}"
        );
        // The extra time is over.
        children.stalled_until = None;
        assert_eq!(children.read_pages(&mut core, now, false).0, overdue);
    }
}
