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
    children::{Children, stage_command},
    desired_state::{DesiredState, DesiredStates, follow_desired_states},
    group_process::EXIT_KILLED,
    invocation::{build_template, heartbeat_interval},
    logging::{log_kill, log_notice},
    overdue,
    source_consumer::{consume_source, stream_of, transfer_stream},
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
const RSS_INTERVAL: Duration = Duration::from_secs(2);
/// How often to remove expired records.
const PURGE_INTERVAL: Duration = Duration::from_secs(60);

pub(super) struct GroupService {
    options: Options,
    core: Supervisor,
    children: Children,
    pub(super) registration: Registration,
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
    stop_requests: watch::Receiver<u32>,
    stop_requests_applied: u32,
    suspended: Signal,
    /// How often to read progress pages, and when next.
    read_interval: Duration,
    read_at: Duration,
    rss_at: Duration,
    purge_at: Duration,
    started: u64,
    /// Processes that needed a SIGKILL in the stop of this manager, for themselves or for their
    /// attempts.
    killed: u64,
    jobs: CommandJobs,
    _deadline: ShutdownDeadline,
    snapshot_tx: watch::Sender<GroupSnapshot>,
    started_at: Instant,
    title: String,
}

enum GroupEvent {
    Process(ChildId, WorkerEvent),
    Suspensions,
    Command(ControlDelivery),
    StopRequested(u32),
    DesiredStateChanged,
    LeaseLost,
    TimerFired,
}

impl GroupService {
    pub(super) fn new(
        broker: &Arc<dyn Broker>,
        options: Options,
        registration: Registration,
        suspended: Signal,
        snapshot_tx: watch::Sender<GroupSnapshot>,
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
        let deadline = ShutdownDeadline::new();
        let (states, wanted) = watch::channel(DesiredStates::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(follow_desired_states(Arc::clone(broker), states));
        let every = options
            .processes
            .iter()
            .map(|process| heartbeat_interval(process).0)
            .min()
            .unwrap_or_default();
        Self {
            core,
            children: Children::new(),
            registration,
            off: options.processes.iter().map(slugs).collect(),
            is_known: false,
            returns: 0,
            paused: false,
            broker: Arc::clone(broker),
            wanted,
            tasks,
            stop_requests: shutdown.subscribe(),
            stop_requests_applied: 0,
            suspended,
            read_interval: every.max(Duration::from_millis(20)),
            read_at: Duration::ZERO,
            rss_at: Duration::ZERO,
            purge_at: PURGE_INTERVAL,
            started: 0,
            killed: 0,
            jobs: CommandJobs::start(Arc::clone(broker), deadline.watch()),
            _deadline: deadline,
            snapshot_tx,
            started_at: Instant::now(),
            title: String::new(),
            options,
        }
    }

    pub(super) fn tid(&self) -> Tid {
        self.registration.tid
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
        let mut event = GroupEvent::StopRequested(*self.stop_requests.borrow_and_update());
        loop {
            // The manager itself was suspended or had no lease, so missing heartbeats do not mean
            // that processes hang.
            if self.now() > self.read_at + self.read_interval {
                self.children.extend_deadlines();
                self.handle_supervisor_event(SupervisorEvent::Stalled, None);
            }
            self.handle_event(event);
            if self.registration.lost {
                return Ok(false);
            }
            self.read_pages_if_due();
            self.publish_status();
            if self.core.is_over() {
                return Ok(true);
            }
            if self.core.is_over_but_for_the_kernel(self.now()) {
                tracing::error!("leaving processes that the kernel does not end after SIGKILL");
                return Ok(true);
            }
            event = self.next_event().await;
        }
    }

    /// Stops without a request.
    pub(super) fn stop(&mut self) {
        self.registration.lost = false;
        self.handle_supervisor_event(SupervisorEvent::Stop, None);
    }

    /// Sends the remaining replies.
    pub(super) async fn close(self) {
        drop(self.registration);
        self.jobs.close().await;
    }

    fn now(&self) -> Duration {
        self.started_at.elapsed()
    }

    async fn next_event(&mut self) -> GroupEvent {
        let wake = self
            .core
            .wake_at(self.now())
            .into_iter()
            .fold(self.read_at, Duration::min);
        let time = self.started_at + wake;
        let Registration {
            commands, renewer, ..
        } = &mut self.registration;
        tokio::select! {
            (id, event) = self.children.next_event() => GroupEvent::Process(id, event),
            Some(()) = self.suspended.recv() => GroupEvent::Suspensions,
            Some(command) = commands.recv() => GroupEvent::Command(command),
            Ok(()) = self.stop_requests.changed() => GroupEvent::StopRequested(*self.stop_requests.borrow_and_update()),
            Ok(()) = self.wanted.changed() => GroupEvent::DesiredStateChanged,
            _ = renewer.lost() => GroupEvent::LeaseLost,
            () = sleep_until(time) => GroupEvent::TimerFired,
        }
    }

    // -- events

    fn handle_event(&mut self, event: GroupEvent) {
        match event {
            GroupEvent::Process(id, WorkerEvent::Ready(tid)) => {
                // A PAUSE or RESUME during its start has reached only the other processes.
                if self.children.started_paused(id) != self.paused {
                    self.forward_pause([tid]);
                }
                self.handle_supervisor_event(SupervisorEvent::Ready(id), None);
            }
            GroupEvent::Process(_, WorkerEvent::TaskClaimed) => {}
            GroupEvent::Process(id, WorkerEvent::Exited(gone)) => {
                // A process that has started all its attempts exits by itself.
                if let Some(tasks) = self.children.attempts_started(id) {
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
                if self.core.asked() > 0 && gone == ExitKind::Code(EXIT_KILLED.into()) {
                    self.killed += 1;
                }
                let end = if gone == ExitKind::Code(0) {
                    ChildExit::Success
                } else {
                    ChildExit::Failure
                };
                self.handle_supervisor_event(SupervisorEvent::Exited(id, end), Some((pid, gone)));
            }
            GroupEvent::Process(id, WorkerEvent::Failed(error)) => {
                tracing::error!(%error, "a process cannot be started");
                self.handle_supervisor_event(SupervisorEvent::Exited(id, ChildExit::Failure), None);
            }
            GroupEvent::Suspensions => {
                for event in self.children.suspensions() {
                    if let SupervisorEvent::Suspended(id) = event {
                        let pid = self.children.pid(id);
                        tracing::warn!(
                            pid,
                            "a process was suspended: it is replaced unless it is continued"
                        );
                    }
                    self.handle_supervisor_event(event, None);
                }
            }
            GroupEvent::Command(ControlDelivery { tid, body }) => match body
                .parse::<ControlMessage>()
            {
                Ok(message) if tid == self.registration.tid => self.apply_command(&message),
                Ok(message) => self.jobs.push(CommandJob::Forward { tid, message }),
                Err(error) => tracing::warn!(%tid, %error, "skipped a malformed control command"),
            },
            GroupEvent::StopRequested(times) => {
                for _ in self.stop_requests_applied..times {
                    self.handle_supervisor_event(SupervisorEvent::Stop, None);
                }
                self.stop_requests_applied = times;
                self.handle_supervisor_event(SupervisorEvent::Time, None);
            }
            GroupEvent::DesiredStateChanged => self.apply_desired_state(),
            GroupEvent::LeaseLost => self.registration.lost = true,
            GroupEvent::TimerFired => self.handle_supervisor_event(SupervisorEvent::Time, None),
        }
    }

    fn apply_command(&mut self, message: &ControlMessage) {
        match message.command {
            // A repeated STOP only asks for the status again.
            ControlCommand::Stop if self.core.asked() == 0 => {
                self.handle_supervisor_event(SupervisorEvent::Stop, None)
            }
            ControlCommand::Kill => {
                (0..3).for_each(|_| self.handle_supervisor_event(SupervisorEvent::Stop, None))
            }
            ControlCommand::Pause | ControlCommand::Resume => {
                self.paused = message.command == ControlCommand::Pause;
                self.forward_pause(self.children.tids());
            }
            _ => {}
        }
        let reply = message.reply("ok", self.status());
        self.jobs.push(CommandJob::Reply {
            tid: self.registration.tid,
            reply,
        });
    }

    /// Pauses or resumes processes. Their replies are ignored: the manager replies for all of them.
    fn forward_pause(&self, targets: impl IntoIterator<Item = Tid>) {
        let command = if self.paused {
            ControlCommand::Pause
        } else {
            ControlCommand::Resume
        };
        for tid in targets {
            self.jobs.push(CommandJob::Forward {
                tid,
                message: ControlMessage::new(command),
            });
        }
    }

    /// Applies the desired state.
    fn apply_desired_state(&mut self) {
        let wanted = self.wanted.borrow_and_update().clone();
        let is_first = !std::mem::replace(&mut self.is_known, true);
        let mut events = Vec::new();
        if std::mem::replace(&mut self.returns, wanted.returns) != wanted.returns {
            // Processes that could not start without the broker start now.
            events.push(SupervisorEvent::Restored);
        }
        for (number, process) in self.options.processes.iter().enumerate() {
            let group = GroupId(number);
            let is_off = |slug: &str| wanted.get(slug).is_some_and(|state| !state.on);
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
                    .spawn(consume_source(Arc::clone(&self.broker), source.clone()));
            }
        }
        for event in events {
            let now = self.now();
            self.core.note(event, now);
        }
        self.handle_supervisor_event(SupervisorEvent::Time, None);
    }

    /// Passes an event to the supervisor and carries out its effects. `gone` is the process that
    /// has just ended.
    fn handle_supervisor_event(&mut self, event: SupervisorEvent, gone: Option<(u32, ExitKind)>) {
        let now = self.now();
        let effects = self.core.on(event, now);
        self.apply_effects(effects, gone);
    }

    fn apply_effects(&mut self, effects: Vec<SupervisorEffect>, gone: Option<(u32, ExitKind)>) {
        let mut failed = Vec::new();
        for effect in effects {
            match effect {
                SupervisorEffect::Start(id, slot) => {
                    self.started += 1;
                    if let Err(error) = self.start(id, slot) {
                        tracing::error!(process = self.options.processes[slot.group.0].name, %error, "a process cannot be started");
                        failed.push(id);
                    }
                }
                SupervisorEffect::SetStopStage(id, stage) => {
                    if stage == StopStage::Killing {
                        self.record_kill(id);
                    }
                    self.send_stage(id, stage);
                }
                SupervisorEffect::Notify(notice) => {
                    let slot = |child| self.core.seat_of(child);
                    log_notice(notice, &self.options.processes, &self.children, slot, gone);
                }
            }
        }
        for id in failed {
            self.handle_supervisor_event(SupervisorEvent::Exited(id, ChildExit::Failure), None);
        }
    }

    /// Logs the kill of a process that did not end when it was stopped. A hanging one is already
    /// logged.
    fn record_kill(&mut self, id: ChildId) {
        if matches!(self.core.why_of(id), Some(StopReason::Hung(_))) {
            return;
        }
        if self.core.asked() > 0 {
            self.killed += 1;
        }
        if let (Some(ReplicaSlot { group, number }), Some(pid)) =
            (self.core.seat_of(id), self.children.pid(id))
        {
            log_kill(&self.options.processes[group.0].name, number + 1, pid);
        }
    }

    fn send_stage(&self, id: ChildId, stage: StopStage) {
        match (stage_command(stage), stage, self.children.overdue_tasks(id)) {
            (Some(command), StopStage::Killing, Some((pid, worker, tasks))) => {
                let ending =
                    overdue::time_out_and_kill(Arc::clone(&self.broker), pid, worker, tasks);
                self.children.send_after(id, ending, command);
            }
            (Some(command), ..) => self.children.send(id, command),
            (None, ..) => {}
        }
    }

    fn start(&mut self, id: ChildId, slot: ReplicaSlot) -> std::io::Result<()> {
        let process = &self.options.processes[slot.group.0];
        let template = build_template(
            &self.options,
            self.registration.tid,
            process,
            &self.off[slot.group.0],
            self.paused,
        );
        self.children.start(
            id,
            &template,
            self.paused,
            process.concurrency as usize,
            process.stop_policy(),
        )
    }

    // -- progress pages

    /// Reads the progress pages when it is time.
    fn read_pages_if_due(&mut self) {
        let now = self.now();
        if now < self.read_at {
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
            self.rss_at = now + RSS_INTERVAL;
        }
        if now >= self.purge_at {
            self.purge_at = now + PURGE_INTERVAL;
            self.jobs.push(CommandJob::Purge);
        }
        let (overdue, next) = self.children.read_pages(&mut self.core, now, with_rss);
        self.read_at = next
            .into_iter()
            .fold(now + self.read_interval, Duration::min);
        for event in overdue {
            self.handle_supervisor_event(event, None);
        }
        self.handle_supervisor_event(SupervisorEvent::Time, None);
    }

    // -- status

    fn status(&self) -> &'static str {
        match self.core.asked() {
            0 if self.paused => "paused",
            0 if self.group_counts().any(|census| census.backing_off > 0) => "backing_off",
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
        self.is_known && self.core.asked() == 0 && self.group_counts().all(is_whole)
    }

    fn group_counts(&self) -> impl Iterator<Item = GroupCounts> {
        (0..self.options.processes.len()).map(|group| self.core.census(GroupId(group)))
    }

    fn publish_status(&mut self) {
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
        self.snapshot_tx.send_if_modified(|current| {
            let has_changed = *current != snapshot;
            *current = snapshot;
            has_changed
        });
        let stats = &self.registration.stats;
        stats.spawned.store(self.started, Ordering::Relaxed);
        stats.set_status(match status {
            "paused" => WorkerStatus::Paused,
            "backing_off" => WorkerStatus::BackingOff,
            "draining" | "stopping" => WorkerStatus::Draining,
            _ => WorkerStatus::Active,
        });
        let title = title::format(self.registration.tid, &self.options.name, status);
        if self.title != title {
            raddle_runner::title::set(&title);
            self.title = title;
        }
    }
}
