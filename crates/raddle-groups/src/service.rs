//! The manager's event loop: waits for events, passes them to the `Supervisor`, and carries out its
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
    desired_state::{DesiredState, DesiredStates, follow},
    group_process::KILLED,
    invocation::{heartbeat_interval, template},
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

/// How often the resident memory of processes is measured, if a limit is set.
const RSS_EVERY: Duration = Duration::from_secs(2);
/// How often expired records are purged.
const PURGE_EVERY: Duration = Duration::from_secs(60);

pub(super) struct GroupService {
    options: Options,
    core: Supervisor,
    children: Children,
    pub(super) registration: Registration,
    /// The workers of each process that are off, by process index.
    off: Vec<BTreeSet<String>>,
    /// Whether the desired state was read at least once.
    is_known: bool,
    /// How often the broker came back after an outage.
    returns: u64,
    /// Whether its processes, also those started later, claim no tasks.
    paused: bool,
    broker: Arc<dyn Broker>,
    /// The desired state of workers.
    desired: watch::Receiver<DesiredStates>,
    /// The task that follows the desired state, and the source consumers. Aborted when this is
    /// dropped.
    tasks: JoinSet<()>,
    stop_requests: watch::Receiver<u32>,
    handled_stop_requests: u32,
    sigchld: Signal,
    /// How often progress pages are inspected, and when next.
    inspect_every: Duration,
    next_inspection: Duration,
    next_rss: Duration,
    next_purge: Duration,
    started: u64,
    /// How many processes, during the stop of this manager, needed a SIGKILL to them or to their
    /// tasks.
    killed: u64,
    command_jobs: CommandJobs,
    _deadline: ShutdownDeadline,
    snapshot_sender: watch::Sender<GroupSnapshot>,
    began: Instant,
    title: String,
}

enum GroupEvent {
    Child(ChildId, WorkerEvent),
    Suspensions,
    Command(ControlDelivery),
    StopRequested(u32),
    DesiredStateChanged,
    LeaseLost,
    Time,
}

impl GroupService {
    pub(super) fn new(
        broker: &Arc<dyn Broker>,
        options: Options,
        registration: Registration,
        sigchld: Signal,
        snapshot_sender: watch::Sender<GroupSnapshot>,
        shutdown: &Shutdown,
    ) -> Self {
        let names: Vec<&str> = options
            .processes
            .iter()
            .map(|process| process.name.as_str())
            .collect();
        // All groups begin switched off: no process is started before the desired state is known.
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
        let (desired_sender, desired) = watch::channel(DesiredStates::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(follow(Arc::clone(broker), desired_sender));
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
            desired,
            tasks,
            stop_requests: shutdown.subscribe(),
            handled_stop_requests: 0,
            sigchld,
            inspect_every: every.max(Duration::from_millis(20)),
            next_inspection: Duration::ZERO,
            next_rss: Duration::ZERO,
            next_purge: PURGE_EVERY,
            started: 0,
            killed: 0,
            command_jobs: CommandJobs::start(Arc::clone(broker), deadline.watch()),
            _deadline: deadline,
            snapshot_sender,
            began: Instant::now(),
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

    /// Runs until all processes have ended after a stop (`true`), or the lease is lost (`false`).
    pub(super) async fn run(&mut self) -> Result<bool> {
        let mut event = GroupEvent::StopRequested(*self.stop_requests.borrow_and_update());
        loop {
            // The manager was stalled (SIGSTOP, suspend), or had no lease. Its last observations
            // are old, so they do not mean that children hang.
            if self.now() > self.next_inspection + self.inspect_every {
                self.children.note_stall();
                self.apply_event(SupervisorEvent::Stalled, None);
            }
            self.handle_event(event);
            if self.registration.lost {
                return Ok(false);
            }
            self.inspect_children();
            self.publish_snapshot();
            if self.core.is_over() {
                return Ok(true);
            }
            if self.core.is_over_but_for_the_kernel(self.now()) {
                tracing::error!("processes cannot be killed, and are left behind");
                return Ok(true);
            }
            event = self.next().await;
        }
    }

    /// Stops without a request.
    pub(super) fn give_up(&mut self) {
        self.registration.lost = false;
        self.apply_event(SupervisorEvent::Stop, None);
    }

    /// Sends the remaining replies and forwarded commands.
    pub(super) async fn close(self) {
        drop(self.registration);
        self.command_jobs.close().await;
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    async fn next(&mut self) -> GroupEvent {
        let wake = self
            .core
            .wake_at(self.now())
            .into_iter()
            .fold(self.next_inspection, Duration::min);
        let time = self.began + wake;
        let Registration {
            commands, renewer, ..
        } = &mut self.registration;
        tokio::select! {
            (id, event) = self.children.next() => GroupEvent::Child(id, event),
            Some(()) = self.sigchld.recv() => GroupEvent::Suspensions,
            Some(command) = commands.recv() => GroupEvent::Command(command),
            Ok(()) = self.stop_requests.changed() => GroupEvent::StopRequested(*self.stop_requests.borrow_and_update()),
            Ok(()) = self.desired.changed() => GroupEvent::DesiredStateChanged,
            _ = renewer.lost() => GroupEvent::LeaseLost,
            () = sleep_until(time) => GroupEvent::Time,
        }
    }

    // -- events

    fn handle_event(&mut self, event: GroupEvent) {
        match event {
            GroupEvent::Child(id, WorkerEvent::Ready(tid)) => {
                // A pause or resume during its start has reached only the processes that were
                // ready.
                if self.children.started_paused(id) != self.paused {
                    self.forward_pause_state([tid]);
                }
                self.apply_event(SupervisorEvent::Ready(id), None);
            }
            GroupEvent::Child(_, WorkerEvent::TaskClaimed) => {}
            GroupEvent::Child(id, WorkerEvent::Exited(gone)) => {
                // If it began all of its `max_tasks`, it left as configured: the core must know
                // before it ends.
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
                let pid = self.children.remove(id).unwrap_or_default();
                if self.core.asked() > 0 && gone == ExitKind::Code(KILLED.into()) {
                    self.killed += 1;
                }
                let end = if gone == ExitKind::Code(0) {
                    ChildExit::Success
                } else {
                    ChildExit::Failure
                };
                self.apply_event(SupervisorEvent::Exited(id, end), Some((pid, gone)));
            }
            GroupEvent::Child(id, WorkerEvent::Failed(error)) => {
                tracing::error!(%error, "a process cannot be started");
                self.apply_event(SupervisorEvent::Exited(id, ChildExit::Failure), None);
            }
            GroupEvent::Suspensions => {
                for event in self.children.suspensions() {
                    if let SupervisorEvent::Suspended(id) = event {
                        let pid = self.children.pid_of(id);
                        tracing::warn!(
                            pid,
                            "a process was suspended: it is killed and replaced unless it is continued"
                        );
                    }
                    self.apply_event(event, None);
                }
            }
            GroupEvent::Command(ControlDelivery { tid, body }) => match body
                .parse::<ControlMessage>()
            {
                Ok(message) if tid == self.registration.tid => self.apply_command(&message),
                Ok(message) => self.command_jobs.push(CommandJob::Forward { tid, message }),
                Err(error) => tracing::warn!(%tid, %error, "ignored an invalid control message"),
            },
            GroupEvent::StopRequested(times) => {
                for _ in self.handled_stop_requests..times {
                    self.apply_event(SupervisorEvent::Stop, None);
                }
                self.handled_stop_requests = times;
                self.apply_event(SupervisorEvent::Time, None);
            }
            GroupEvent::DesiredStateChanged => self.apply_desired_state(),
            GroupEvent::LeaseLost => self.registration.lost = true,
            GroupEvent::Time => self.apply_event(SupervisorEvent::Time, None),
        }
    }

    fn apply_command(&mut self, message: &ControlMessage) {
        match message.command {
            // A repeated Stop only asks for the reply again; it must not start the next stage.
            ControlCommand::Stop if self.core.asked() == 0 => {
                self.apply_event(SupervisorEvent::Stop, None)
            }
            ControlCommand::Kill => {
                (0..3).for_each(|_| self.apply_event(SupervisorEvent::Stop, None))
            }
            ControlCommand::Pause | ControlCommand::Resume => {
                self.paused = message.command == ControlCommand::Pause;
                self.forward_pause_state(self.children.tids());
            }
            _ => {}
        }
        let reply = message.reply("ok", self.status());
        self.command_jobs.push(CommandJob::Reply {
            tid: self.registration.tid,
            reply,
        });
    }

    /// Forwards the pause or resume to some of its processes. Their replies are not used: the
    /// manager replies for all of them.
    fn forward_pause_state(&self, tids: impl IntoIterator<Item = Tid>) {
        let command = if self.paused {
            ControlCommand::Pause
        } else {
            ControlCommand::Resume
        };
        for tid in tids {
            self.command_jobs.push(CommandJob::Forward {
                tid,
                message: ControlMessage::new(command),
            });
        }
    }

    /// Applies the desired state to the groups.
    fn apply_desired_state(&mut self) {
        let desired = self.desired.borrow_and_update().clone();
        let is_first = !std::mem::replace(&mut self.is_known, true);
        let mut events = Vec::new();
        if std::mem::replace(&mut self.returns, desired.returns) != desired.returns {
            // Processes that could not start without the broker are started now.
            events.push(SupervisorEvent::Restored);
        }
        for (number, process) in self.options.processes.iter().enumerate() {
            let group = GroupId(number);
            let is_off = |slug: &str| desired.get(slug).is_some_and(|state| !state.on);
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
                let replicas = desired
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
        self.apply_event(SupervisorEvent::Time, None);
    }

    /// Passes an event to the core, and carries out the effects. `gone` is the pid of the process
    /// that has just ended, and how it ended.
    fn apply_event(&mut self, event: SupervisorEvent, gone: Option<(u32, ExitKind)>) {
        let now = self.now();
        let effects = self.core.on(event, now);
        self.carry_out(effects, gone);
    }

    fn carry_out(&mut self, effects: Vec<SupervisorEffect>, gone: Option<(u32, ExitKind)>) {
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
                    self.enter_stop_stage(id, stage);
                }
                SupervisorEffect::Notify(notice) => {
                    let slot = |child| self.core.seat_of(child);
                    log_notice(notice, &self.options.processes, &self.children, slot, gone);
                }
            }
        }
        for id in failed {
            self.apply_event(SupervisorEvent::Exited(id, ChildExit::Failure), None);
        }
    }

    /// Logs that a process is killed because it did not end when it was stopped. A hung process was
    /// logged when the hang was detected.
    fn record_kill(&mut self, id: ChildId) {
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

    fn enter_stop_stage(&self, id: ChildId, stage: StopStage) {
        match (stage_command(stage), stage, self.children.overdue(id)) {
            (Some(command), StopStage::Killing, Some((pid, worker, tasks))) => {
                let ending = overdue::time_out_tasks(Arc::clone(&self.broker), pid, worker, tasks);
                self.children.send_command_after(id, ending, command);
            }
            (Some(command), ..) => self.children.send_command(id, command),
            (None, ..) => {}
        }
    }

    fn start(&mut self, id: ChildId, slot: ReplicaSlot) -> std::io::Result<()> {
        let process = &self.options.processes[slot.group.0];
        let template = template(
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
            process.stop(),
        )
    }

    // -- inspection

    /// Inspects the pages of all processes when the next inspection is due.
    fn inspect_children(&mut self) {
        let now = self.now();
        if now < self.next_inspection {
            return;
        }
        let watches_rss = || {
            self.options
                .processes
                .iter()
                .any(|process| process.max_rss_mb.is_some())
        };
        let with_rss = now >= self.next_rss && watches_rss();
        if with_rss {
            self.next_rss = now + RSS_EVERY;
        }
        if now >= self.next_purge {
            self.next_purge = now + PURGE_EVERY;
            self.command_jobs.push(CommandJob::Purge);
        }
        let (overdue, next) = self.children.inspect_pages(&mut self.core, now, with_rss);
        self.next_inspection = next
            .into_iter()
            .fold(now + self.inspect_every, Duration::min);
        for event in overdue {
            self.apply_event(event, None);
        }
        self.apply_event(SupervisorEvent::Time, None);
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

    /// Whether all desired processes are ready, and none is about to go.
    fn is_up(&self) -> bool {
        let is_whole =
            |census: GroupCounts| census.ready == census.wanted && census.backing_off == 0;
        self.is_known && self.core.asked() == 0 && self.censuses().all(is_whole)
    }

    fn censuses(&self) -> impl Iterator<Item = GroupCounts> {
        (0..self.options.processes.len()).map(|group| self.core.census(GroupId(group)))
    }

    fn publish_snapshot(&mut self) {
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
        self.snapshot_sender.send_if_modified(|shown| {
            let has_changed = *shown != snapshot;
            *shown = snapshot;
            has_changed
        });
        let stats = &self.registration.stats;
        stats.spawned.store(self.started, Ordering::Relaxed);
        stats.set_status(match status {
            "paused" => WorkerStatus::Paused,
            "braking" => WorkerStatus::Braking,
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
