//! `GroupService`: the loop. It waits for events, passes them to the supervisor and carries out its
//! effects.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use raddle_broker::{Broker, ControlDelivery, Result};
use raddle_model::{
    ControlCommand, ControlMessage, Tid, stop::StopStage, title, worker::WorkerStatus,
};
use raddle_supervisor::{
    ChildExit, ChildId, GroupCounts, GroupId, GroupPolicy, ReplicaSlot, StopReason, Supervisor,
    SupervisorEffect, SupervisorEvent,
};
use tokio::{
    signal::unix::Signal,
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    GroupSnapshot, Options, Process,
    children::{Children, word},
    desired_state::{DesiredState, DesiredStates, follow},
    group_process::KILLED,
    invocation::{mark_every, template},
    logging::{log_kill, say},
    overdue,
    source_consumer::{pump, stream_of, transfer_stream},
};
use raddle_spawner::{ExitKind, WorkerEvent};
use raddle_worker::{
    Shutdown,
    registration::Registration,
    worker::{
        control_commands::{CommandJob, CommandJobs},
        shutdown_deadline::ShutdownDeadline,
    },
};

/// How often to read the memory of processes, if a limit is set.
const RSS_EVERY: Duration = Duration::from_secs(2);
/// How often to remove expired records.
const PURGE_EVERY: Duration = Duration::from_secs(60);

pub(super) struct GroupService {
    options: Options,
    core: Supervisor,
    children: Children,
    pub(super) line: Registration,
    /// The workers of each process that are turned off.
    off: Vec<BTreeSet<String>>,
    /// Whether the desired state was read.
    is_known: bool,
    /// Broker outages that have ended.
    returns: u64,
    /// Whether its processes are paused, including those started later.
    paused: bool,
    broker: Arc<dyn Broker>,
    /// The desired state of workers.
    wanted: watch::Receiver<DesiredStates>,
    /// Follows the desired state, and consumes each source. Ends with this.
    tasks: JoinSet<()>,
    asked: watch::Receiver<u32>,
    heeded: u32,
    suspended: Signal,
    /// How often to read progress pages, and when next.
    look_every: Duration,
    look_at: Duration,
    rss_at: Duration,
    purge_at: Duration,
    started: u64,
    /// Processes that needed a SIGKILL in the stop of this manager, for themselves or for their
    /// attempts.
    killed: u64,
    errands: CommandJobs,
    _haste: ShutdownDeadline,
    shown: watch::Sender<GroupSnapshot>,
    began: Instant,
    title: String,
}

enum GroupEvent {
    News(ChildId, WorkerEvent),
    Suspensions,
    Word(ControlDelivery),
    Asked(u32),
    Wanted,
    LeaseLost,
    Time,
}

impl GroupService {
    pub(super) fn new(
        broker: &Arc<dyn Broker>,
        options: Options,
        line: Registration,
        suspended: Signal,
        shown: watch::Sender<GroupSnapshot>,
        shutdown: &Shutdown,
    ) -> Self {
        let names: Vec<&str> = options
            .processes
            .iter()
            .map(|process| process.name.as_str())
            .collect();
        // No process starts before the desired state is known.
        let core = Supervisor::new(options.processes.iter().map(|process| GroupPolicy {
            on: false,
            ..process.policy(&names)
        }));
        let slugs = |process: &Process| {
            process
                .workers
                .iter()
                .map(|worker| worker.slug.clone())
                .collect()
        };
        let haste = ShutdownDeadline::new();
        let (tell, wanted) = watch::channel(DesiredStates::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(follow(Arc::clone(broker), tell));
        let every = options
            .processes
            .iter()
            .map(|process| mark_every(process).0)
            .min()
            .unwrap_or_default();
        Self {
            core,
            children: Children::new(),
            line,
            off: options.processes.iter().map(slugs).collect(),
            is_known: false,
            returns: 0,
            paused: false,
            broker: Arc::clone(broker),
            wanted,
            tasks,
            asked: shutdown.subscribe(),
            heeded: 0,
            suspended,
            look_every: every.max(Duration::from_millis(20)),
            look_at: Duration::ZERO,
            rss_at: Duration::ZERO,
            purge_at: PURGE_EVERY,
            started: 0,
            killed: 0,
            errands: CommandJobs::start(Arc::clone(broker), haste.watch()),
            _haste: haste,
            shown,
            began: Instant::now(),
            title: String::new(),
            options,
        }
    }

    pub(super) fn tid(&self) -> Tid {
        self.line.tid
    }

    pub(super) fn started(&self) -> u64 {
        self.started
    }

    pub(super) fn killed(&self) -> u64 {
        self.killed
    }

    /// Runs until all processes have ended after a stop (returns `true`), or until the lease is
    /// lost (returns `false`).
    pub(super) async fn run(&mut self) -> Result<bool> {
        let mut heard = GroupEvent::Asked(*self.asked.borrow_and_update());
        loop {
            // The manager itself was suspended or had no lease, so missing heartbeats do not mean
            // that processes hang.
            if self.now() > self.look_at + self.look_every {
                self.children.spare();
                self.act(SupervisorEvent::Stalled, None);
            }
            self.heed(heard);
            if self.line.lost {
                return Ok(false);
            }
            self.look();
            self.show();
            if self.core.is_over() {
                return Ok(true);
            }
            if self.core.is_over_but_for_the_kernel(self.now()) {
                tracing::error!("leaving processes that the kernel does not end after SIGKILL");
                return Ok(true);
            }
            heard = self.next().await;
        }
    }

    /// Stops without a request.
    pub(super) fn give_up(&mut self) {
        self.line.lost = false;
        self.act(SupervisorEvent::Stop, None);
    }

    /// Sends the remaining replies.
    pub(super) async fn close(self) {
        drop(self.line);
        self.errands.close().await;
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    async fn next(&mut self) -> GroupEvent {
        let wake = self
            .core
            .wake_at(self.now())
            .into_iter()
            .fold(self.look_at, Duration::min);
        let time = self.began + wake;
        let Registration {
            commands, renewer, ..
        } = &mut self.line;
        tokio::select! {
            (id, news) = self.children.next() => GroupEvent::News(id, news),
            Some(()) = self.suspended.recv() => GroupEvent::Suspensions,
            Some(word) = commands.recv() => GroupEvent::Word(word),
            Ok(()) = self.asked.changed() => GroupEvent::Asked(*self.asked.borrow_and_update()),
            Ok(()) = self.wanted.changed() => GroupEvent::Wanted,
            _ = renewer.lost() => GroupEvent::LeaseLost,
            () = sleep_until(time) => GroupEvent::Time,
        }
    }

    // -- events

    fn heed(&mut self, heard: GroupEvent) {
        match heard {
            GroupEvent::News(id, WorkerEvent::Ready(tid)) => {
                // A PAUSE or RESUME during its start has reached only the other processes.
                if self.children.began_paused(id) != self.paused {
                    self.hold([tid]);
                }
                self.act(SupervisorEvent::Ready(id), None);
            }
            GroupEvent::News(_, WorkerEvent::TaskClaimed) => {}
            GroupEvent::News(id, WorkerEvent::Exited(gone)) => {
                // A process that has started all its attempts exits by itself.
                if let Some(tasks) = self.children.begun(id) {
                    let now = self.now();
                    self.core.note(
                        SupervisorEvent::Measured {
                            child: id,
                            tasks,
                            rss: None,
                        },
                        now,
                    );
                }
                let pid = self.children.forget(id).unwrap_or_default();
                if self.core.asked() > 0 && gone == ExitKind::Code(KILLED.into()) {
                    self.killed += 1;
                }
                let end = if gone == ExitKind::Code(0) {
                    ChildExit::Success
                } else {
                    ChildExit::Failure
                };
                self.act(SupervisorEvent::Exited(id, end), Some((pid, gone)));
            }
            GroupEvent::News(id, WorkerEvent::Failed(error)) => {
                tracing::error!(%error, "a process cannot be started");
                self.act(SupervisorEvent::Exited(id, ChildExit::Failure), None);
            }
            GroupEvent::Suspensions => {
                for event in self.children.suspensions() {
                    if let SupervisorEvent::Suspended(id) = event {
                        let pid = self.children.pid_of(id);
                        tracing::warn!(
                            pid,
                            "a process was suspended: it is replaced unless it is continued"
                        );
                    }
                    self.act(event, None);
                }
            }
            GroupEvent::Word(ControlDelivery { tid, body }) => match body.parse::<ControlMessage>()
            {
                Ok(message) if tid == self.line.tid => self.apply_command(&message),
                Ok(message) => self.errands.push(CommandJob::Forward { tid, message }),
                Err(error) => tracing::warn!(%tid, %error, "skipped a malformed control command"),
            },
            GroupEvent::Asked(times) => {
                for _ in self.heeded..times {
                    self.act(SupervisorEvent::Stop, None);
                }
                self.heeded = times;
                self.act(SupervisorEvent::Time, None);
            }
            GroupEvent::Wanted => self.want(),
            GroupEvent::LeaseLost => self.line.lost = true,
            GroupEvent::Time => self.act(SupervisorEvent::Time, None),
        }
    }

    fn apply_command(&mut self, message: &ControlMessage) {
        match message.command {
            // A repeated STOP only asks for the status again.
            ControlCommand::Stop if self.core.asked() == 0 => self.act(SupervisorEvent::Stop, None),
            ControlCommand::Kill => (0..3).for_each(|_| self.act(SupervisorEvent::Stop, None)),
            ControlCommand::Pause | ControlCommand::Resume => {
                self.paused = message.command == ControlCommand::Pause;
                self.hold(self.children.tids());
            }
            _ => {}
        }
        let reply = message.reply("ok", self.status());
        self.errands.push(CommandJob::Reply {
            tid: self.line.tid,
            reply,
        });
    }

    /// Pauses or resumes processes. Their replies are ignored: the manager replies for all of them.
    fn hold(&self, whom: impl IntoIterator<Item = Tid>) {
        let word = if self.paused {
            ControlCommand::Pause
        } else {
            ControlCommand::Resume
        };
        for tid in whom {
            self.errands.push(CommandJob::Forward {
                tid,
                message: ControlMessage::new(word),
            });
        }
    }

    /// Applies the desired state.
    fn want(&mut self) {
        let wanted = self.wanted.borrow_and_update().clone();
        let is_first = !std::mem::replace(&mut self.is_known, true);
        let mut events = Vec::new();
        if std::mem::replace(&mut self.returns, wanted.returns) != wanted.returns {
            // Processes that could not start without the broker start now.
            events.push(SupervisorEvent::Restored);
        }
        for (number, process) in self.options.processes.iter().enumerate() {
            let group = GroupId(number);
            let is_off = |slug: &str| wanted.get(slug).is_some_and(|standing| !standing.on);
            let off: BTreeSet<String> = process
                .workers
                .iter()
                .map(|worker| worker.slug.clone())
                .filter(|slug| is_off(slug))
                .collect();
            let (was_on, is_on) = (
                self.off[number].len() < process.workers.len(),
                off.len() < process.workers.len(),
            );
            if was_on != is_on {
                events.push(SupervisorEvent::Switch(group, is_on));
            } else if self.off[number] != off {
                events.push(SupervisorEvent::Renew(group));
            }
            self.off[number] = off;
            if let [only] = &process.workers[..] {
                let replicas = wanted
                    .get(&only.slug)
                    .map_or(process.replicas, DesiredState::wanted);
                events.push(SupervisorEvent::Scale(group, replicas as usize));
            }
        }
        if is_first {
            let workers = self
                .options
                .processes
                .iter()
                .flat_map(|process| &process.workers);
            let sources: BTreeSet<&String> = workers.flat_map(|worker| &worker.sources).collect();
            for source in sources {
                if stream_of(source).is_some() {
                    self.tasks
                        .spawn(transfer_stream(self.options.url.clone(), source.clone()));
                }
                self.tasks
                    .spawn(pump(Arc::clone(&self.broker), source.clone()));
            }
        }
        for event in events {
            let now = self.now();
            self.core.note(event, now);
        }
        self.act(SupervisorEvent::Time, None);
    }

    /// Passes an event to the supervisor and carries out its effects. `gone` is the process that
    /// has just ended.
    fn act(&mut self, event: SupervisorEvent, gone: Option<(u32, ExitKind)>) {
        let now = self.now();
        let effects = self.core.on(event, now);
        self.carry_out(effects, gone);
    }

    fn carry_out(&mut self, effects: Vec<SupervisorEffect>, gone: Option<(u32, ExitKind)>) {
        let mut failed = Vec::new();
        for effect in effects {
            match effect {
                SupervisorEffect::Start(id, seat) => {
                    self.started += 1;
                    if let Err(error) = self.start(id, seat) {
                        tracing::error!(process = self.options.processes[seat.group.0].name, %error, "a process cannot be started");
                        failed.push(id);
                    }
                }
                SupervisorEffect::SetStopStage(id, stage) => {
                    if stage == StopStage::Killing {
                        self.note_kill(id);
                    }
                    self.tell(id, stage);
                }
                SupervisorEffect::Notify(notice) => {
                    let seat = |child| self.core.seat_of(child);
                    say(notice, &self.options.processes, &self.children, seat, gone);
                }
            }
        }
        for id in failed {
            self.act(SupervisorEvent::Exited(id, ChildExit::Failure), None);
        }
    }

    /// Logs the kill of a process that did not end when it was stopped. A hanging one is already
    /// logged.
    fn note_kill(&mut self, id: ChildId) {
        if matches!(self.core.why_of(id), Some(StopReason::Hung(_))) {
            return;
        }
        if self.core.asked() > 0 {
            self.killed += 1;
        }
        if let (Some(ReplicaSlot { group, number }), Some(pid)) =
            (self.core.seat_of(id), self.children.pid_of(id))
        {
            log_kill(&self.options.processes[group.0].name, number + 1, pid);
        }
    }

    fn tell(&self, id: ChildId, stage: StopStage) {
        match (word(stage), stage, self.children.overdue(id)) {
            (Some(word), StopStage::Killing, Some((pid, worker, tasks))) => {
                let ending = overdue::end(Arc::clone(&self.broker), pid, worker, tasks);
                self.children.tell_after(id, ending, word);
            }
            (Some(word), ..) => self.children.tell(id, word),
            (None, ..) => {}
        }
    }

    fn start(&mut self, id: ChildId, seat: ReplicaSlot) -> std::io::Result<()> {
        let process = &self.options.processes[seat.group.0];
        let template = template(
            &self.options,
            self.line.tid,
            process,
            &self.off[seat.group.0],
            self.paused,
        );
        self.children.start(
            id,
            &template,
            self.paused,
            process.concurrency as usize,
            process.stop(),
        )
    }

    // -- progress pages

    /// Reads the progress pages when it is time.
    fn look(&mut self) {
        let now = self.now();
        if now < self.look_at {
            return;
        }
        let watches_rss = || {
            self.options
                .processes
                .iter()
                .any(|process| process.max_rss_mb.is_some())
        };
        let with_rss = now >= self.rss_at && watches_rss();
        if with_rss {
            self.rss_at = now + RSS_EVERY;
        }
        if now >= self.purge_at {
            self.purge_at = now + PURGE_EVERY;
            self.errands.push(CommandJob::Purge);
        }
        let (overdue, next) = self.children.look(&mut self.core, now, with_rss);
        self.look_at = next.into_iter().fold(now + self.look_every, Duration::min);
        for event in overdue {
            self.act(event, None);
        }
        self.act(SupervisorEvent::Time, None);
    }

    // -- status

    fn status(&self) -> &'static str {
        match self.core.asked() {
            0 if self.paused => "paused",
            0 if self.censuses().any(|census| census.backing_off > 0) => "braking",
            0 if self.is_up() => "listening",
            0 => "starting",
            1 => "draining",
            _ => "stopping",
        }
    }

    /// Whether all wanted processes are ready, and none is about to end.
    fn is_up(&self) -> bool {
        let is_whole =
            |census: GroupCounts| census.ready == census.wanted && census.backing_off == 0;
        self.is_known && self.core.asked() == 0 && self.censuses().all(is_whole)
    }

    fn censuses(&self) -> impl Iterator<Item = GroupCounts> {
        (0..self.options.processes.len()).map(|group| self.core.census(GroupId(group)))
    }

    fn show(&mut self) {
        let status = self.status();
        let groups: BTreeMap<String, _> = self
            .options
            .processes
            .iter()
            .enumerate()
            .map(|(number, process)| (process.name.clone(), self.core.census(GroupId(number))))
            .collect();
        let snapshot = GroupSnapshot {
            groups,
            started: self.started,
            status,
            is_up: self.is_up(),
        };
        self.shown.send_if_modified(|shown| {
            let has_changed = *shown != snapshot;
            *shown = snapshot;
            has_changed
        });
        let stats = &self.line.stats;
        stats.spawned.store(self.started, Ordering::Relaxed);
        stats.set_status(match status {
            "paused" => WorkerStatus::Paused,
            "braking" => WorkerStatus::Braking,
            "draining" | "stopping" => WorkerStatus::Draining,
            _ => WorkerStatus::Active,
        });
        let title = title::format(self.line.tid, &self.options.name, status);
        if self.title != title {
            raddle_runner::title::set(&title);
            self.title = title;
        }
    }
}
