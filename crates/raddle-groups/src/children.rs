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
    kept: BTreeMap<ChildId, ChildRecord>,
    /// When the manager itself may have been stalled, on the clock of the pages. Runners get their
    /// full time again from then on.
    spared: Option<Duration>,
    /// At most three events per process, so the channel needs no bound.
    news: mpsc::UnboundedReceiver<(ChildId, WorkerEvent)>,
    tell: mpsc::UnboundedSender<(ChildId, WorkerEvent)>,
}

struct ChildRecord {
    pid: u32,
    tid: Option<Tid>,
    /// Whether it started paused.
    paused: bool,
    orders: mpsc::UnboundedSender<BroadcastCommand>,
    page: ProgressPage,
    turns: u64,
    slots: usize,
    /// How long a runner may take to end an attempt that has timed out.
    overtime: Duration,
}

impl Children {
    pub(super) fn new() -> Self {
        let (tell, news) = mpsc::unbounded_channel();
        Self {
            kept: BTreeMap::new(),
            spared: None,
            news,
            tell,
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
        let orders = watch(child, id, self.tell.clone(), Some(stop));
        let overtime = stop.grace;
        self.kept.insert(
            id,
            ChildRecord {
                pid,
                tid: None,
                paused,
                orders,
                page,
                turns: 0,
                slots,
                overtime,
            },
        );
        Ok(())
    }

    /// The next event of any process. Cancel-safe; pending while there is none.
    pub(super) async fn next(&mut self) -> (ChildId, WorkerEvent) {
        let (id, news) = self.news.recv().await.expect("the other end is ours");
        if let (WorkerEvent::Ready(tid), Some(kept)) = (&news, self.kept.get_mut(&id)) {
            kept.tid = Some(*tid);
        }
        (id, news)
    }

    /// Removes a process that has ended, and returns its PID.
    pub(super) fn forget(&mut self, id: ChildId) -> Option<u32> {
        self.kept.remove(&id).map(|kept| kept.pid)
    }

    pub(super) fn tell(&self, id: ChildId, what: BroadcastCommand) {
        if let Some(kept) = self.kept.get(&id) {
            // Fails only if the process has ended.
            let _ = kept.orders.send(what);
        }
    }

    /// Whether a process started paused.
    pub(super) fn began_paused(&self, id: ChildId) -> bool {
        self.kept.get(&id).is_some_and(|kept| kept.paused)
    }

    /// Attempts that a process has started.
    pub(super) fn begun(&self, id: ChildId) -> Option<u64> {
        self.kept.get(&id).map(|kept| kept.page.attempts_started())
    }

    pub(super) fn pid_of(&self, id: ChildId) -> Option<u32> {
        self.kept.get(&id).map(|kept| kept.pid)
    }

    /// The worker ids of the processes that have reported one.
    pub(super) fn tids(&self) -> impl Iterator<Item = Tid> {
        self.kept.values().filter_map(|kept| kept.tid)
    }

    /// Records that the manager itself was stalled until now. The processes and their runners may
    /// have been stalled too, so runners get their full time to end attempts that have timed out.
    pub(super) fn spare(&mut self) {
        self.spared = Some(ProgressPage::clock_now());
    }

    /// Reports the pages to the supervisor. Returns processes with overdue tasks, and the next
    /// deadline.
    pub(super) fn look(
        &mut self,
        core: &mut Supervisor,
        now: Duration,
        with_rss: bool,
    ) -> (Vec<SupervisorEvent>, Option<Duration>) {
        let clock = ProgressPage::clock_now();
        let (mut overdue, mut next) = (Vec::new(), None::<Duration>);
        for (id, kept) in &mut self.kept {
            let turns = kept.page.turns();
            if std::mem::replace(&mut kept.turns, turns) != turns {
                core.note(SupervisorEvent::Heartbeat(*id), now);
            }
            let rss = with_rss.then(|| rss_of(kept.pid)).flatten();
            core.note(
                SupervisorEvent::Measured {
                    child: *id,
                    tasks: kept.page.attempts_started(),
                    rss,
                },
                now,
            );
            let spared = self
                .spared
                .map_or(Duration::ZERO, |since| since + kept.overtime + HANG_MARGIN);
            match kept
                .page
                .next_deadline(kept.slots)
                .map(|due| due.max(spared))
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
    pub(super) fn overdue(&self, id: ChildId) -> Option<(u32, Tid, Vec<Tid>)> {
        let kept = self.kept.get(&id)?;
        let tasks = kept
            .page
            .overdue_tasks(kept.slots, ProgressPage::clock_now());
        kept.tid
            .filter(|_| !tasks.is_empty())
            .map(|worker| (kept.pid, worker, tasks))
    }

    /// Sends a command after a future, which must not take long: nothing waits for it.
    pub(super) fn tell_after(
        &self,
        id: ChildId,
        deed: impl Future<Output = ()> + Send + 'static,
        what: BroadcastCommand,
    ) {
        if let Some(kept) = self.kept.get(&id) {
            let orders = kept.orders.clone();
            tokio::spawn(async move {
                deed.await;
                let _ = orders.send(what);
            });
        }
    }

    /// Which processes were stopped or continued since the last call.
    pub(super) fn suspensions(&self) -> Vec<SupervisorEvent> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        let mut events = Vec::new();
        for (id, kept) in &self.kept {
            let Some(pid) = i32::try_from(kept.pid).ok().and_then(Pid::from_raw) else {
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
pub(super) fn word(stage: raddle_model::stop::StopStage) -> Option<BroadcastCommand> {
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
pub(super) fn is_suspect(why: StopReason) -> bool {
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
        let (orders, _) = mpsc::unbounded_channel();
        let id = ChildId(7);
        let overtime = Duration::from_secs(5);
        let kept = ChildRecord {
            pid: 0,
            tid: Some(tid),
            paused: false,
            orders,
            page,
            turns: 0,
            slots: 1,
            overtime,
        };
        children.kept.insert(id, kept);
        let (mut core, now) = (Supervisor::new([]), Duration::from_secs(60));
        let overdue = vec![SupervisorEvent::Hung(id, HangKind::Overdue)];
        assert_eq!(
            children.look(&mut core, now, false),
            (overdue.clone(), None)
        );
        children.spare();
        let (found, next) = children.look(&mut core, now, false);
        assert!(
            found.is_empty()
                && next.is_some_and(|next| next > now && next <= now + overtime + HANG_MARGIN),
            "{found:?} {next:?}"
        );
        // The extra time is over.
        children.spared = None;
        assert_eq!(children.look(&mut core, now, false).0, overdue);
    }
}
