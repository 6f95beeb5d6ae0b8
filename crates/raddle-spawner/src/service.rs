//! `SpawnerService`: the loop. It waits for events, tells the supervisor how many workers are
//! wanted, and carries out its effects.
//!
//! Arrivals need no polling: an idle worker that takes a task reports it, and without idle workers
//! the spawner waits at the broker. `poll_ms` is only the longest pause between two checks, for
//! changes that no event reports: workers of other spawners, and workers that were killed.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use raddle_broker::{Broker, ControlDelivery, Error, Result, WaitingRequest};
use raddle_container::ExitKind;
use raddle_model::{
    ControlCommand, ControlMessage, Tid, WorkerEntry,
    stop::{StopPolicy, StopStage},
    title,
    worker::{WorkerInfo, WorkerStatus},
};
use raddle_supervisor::{
    BackoffScope, ChildExit, GroupId, GroupPolicy, RecyclePolicy, RestartPolicy, Supervisor,
    SupervisorEvent,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    BroadcastCommand, Config, LaunchFailureCounts, Launcher, Options, SpawnerSnapshot, WarmPool,
    WorkerEvent,
    auto::AutoSizer,
    launcher::LaunchId,
    launching::LastFailure,
    spawner_ids,
    worker_table::{EventMeaning, RegistryDiff, WorkerTable},
};
use raddle_telemetry::metrics::ExitReason;
use raddle_worker::{
    Shutdown,
    registration::{Registration, is_running},
    worker::{
        control_commands::{CommandJob, CommandJobs},
        shutdown_deadline::ShutdownDeadline,
    },
};

/// Count waiting tasks up to this number. The worker limit is lower.
const MAX_COUNT: u32 = 100_000;
/// All workers are one group of the supervisor.
pub(super) const GROUP: GroupId = GroupId(0);
/// Most workers that start at a time: more would slow each other down.
const MAX_STARTING: usize = 50;
/// How long workers that release their task may take beyond their own grace.
const RELEASE_MARGIN: Duration = Duration::from_secs(5);
/// Pause after a broker error.
const ERROR_PAUSE: Duration = Duration::from_millis(500);
/// How often to remove expired records: one-shot workers do not live long enough for it.
const PURGE_EVERY: Duration = Duration::from_secs(60);

type PendingQuery<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

pub(super) struct SpawnerService {
    broker: Arc<dyn Broker>,
    pub(super) options: Options,
    pub(super) launcher: Box<dyn Launcher>,
    snapshot_tx: watch::Sender<SpawnerSnapshot>,
    pub(super) registration: Registration,
    pub(super) workers: WorkerTable,
    /// Decides which workers are started, held back and stopped.
    pub(super) core: Supervisor,
    /// Why the last worker died or was not launched.
    pub(super) last_failure: Option<LastFailure>,
    pub(super) auto: Option<AutoSizer>,
    /// The stop stage that was forwarded to workers.
    pub(super) forwarded_stage: StopStage,
    stop_requests_applied: u32,
    stop_requests: watch::Receiver<u32>,
    /// When the remaining workers are killed.
    pub(super) exit_at: Option<Duration>,
    pub(super) paused: bool,
    /// `PAUSE` commands without a reply yet.
    pub(super) pending_pauses: Vec<ControlMessage>,
    /// Idle workers that were stopped during the pause.
    pub(super) stopped_idle: BTreeSet<Tid>,
    /// Waiting tasks when last counted, minus those claimed since.
    pub(super) pending: u64,
    counting: Option<PendingQuery<u64>>,
    /// Tasks claimed since the running count started.
    taken: u64,
    /// Something has changed since the last count.
    stale: bool,
    /// A count is due in any case.
    due: bool,
    /// Earliest time of the next count.
    count_at: Duration,
    registry: Option<PendingQuery<Vec<WorkerEntry>>>,
    /// Whether the registry was read. Before that, existing workers are unknown.
    pub(super) registry_read: bool,
    /// The other live spawners, under all their ids.
    pub(super) other_spawners: Vec<Tid>,
    /// Whether a dead spawner may have left workers that the launcher should adopt.
    pub(super) may_have_orphans: bool,
    pub(super) poll_at: Duration,
    purge_at: Duration,
    pub(super) last_task: Duration,
    failed_starts: u64,
    /// Tasks that its workers have claimed.
    claimed: u64,
    /// The last command to each manager that stops with it.
    pub(super) manager_commands: BTreeMap<Tid, ControlCommand>,
    /// Whether its workers were told that they are killed.
    pub(super) kill_sent: bool,
    /// How many managers were left when last read. `None` before that.
    pub(super) managers_left: Option<usize>,
    pub(super) launch_failures: LaunchFailureCounts,
    pub(super) jobs: CommandJobs,
    _deadline: ShutdownDeadline,
    started_at: Instant,
    title: String,
}

enum SpawnerEvent {
    Worker(LaunchId, WorkerEvent),
    Counted(Result<u64>),
    Registry(Result<Vec<WorkerEntry>>),
    Command(ControlDelivery),
    StopRequested(u32),
    LeaseLost,
    TimerFired,
}

impl SpawnerService {
    pub(super) fn new(
        broker: Arc<dyn Broker>,
        options: Options,
        launcher: Box<dyn Launcher>,
        registration: Registration,
        snapshot_tx: watch::Sender<SpawnerSnapshot>,
        shutdown: &Shutdown,
    ) -> Self {
        let Config {
            warm_pool,
            hit_target,
            ..
        } = options.config;
        let policy = GroupPolicy {
            replicas: 0,
            on: true,
            restart: RestartPolicy::OnDemand,
            stop: StopPolicy::drain(options.worker.grace + RELEASE_MARGIN),
            // Its launcher limits the start, and its lease shows whether it hangs.
            start_timeout: None,
            hang_timeout: None,
            recycle: RecyclePolicy::default(),
            after: Vec::new(),
            parallel: MAX_STARTING,
            backoff_scope: BackoffScope::Group,
        };
        let deadline = ShutdownDeadline::new();
        Self {
            launcher,
            snapshot_tx,
            registration,
            workers: WorkerTable::new(options.worker.worker_info()),
            core: Supervisor::new([policy]),
            last_failure: None,
            auto: (warm_pool == WarmPool::Auto)
                .then(|| AutoSizer::new(hit_target, options.config.max_workers())),
            forwarded_stage: StopStage::Running,
            stop_requests_applied: 0,
            stop_requests: shutdown.subscribe(),
            exit_at: None,
            paused: false,
            pending_pauses: Vec::new(),
            stopped_idle: BTreeSet::new(),
            pending: 0,
            counting: None,
            taken: 0,
            stale: true,
            due: true,
            count_at: Duration::ZERO,
            registry: None,
            registry_read: false,
            other_spawners: Vec::new(),
            may_have_orphans: true,
            poll_at: Duration::ZERO,
            purge_at: PURGE_EVERY,
            last_task: Duration::ZERO,
            failed_starts: 0,
            claimed: 0,
            manager_commands: BTreeMap::new(),
            kill_sent: false,
            managers_left: None,
            launch_failures: LaunchFailureCounts::default(),
            jobs: CommandJobs::start(Arc::clone(&broker), deadline.watch()),
            _deadline: deadline,
            started_at: Instant::now(),
            title: String::new(),
            broker,
            options,
        }
    }

    /// Continues under a new id. A registry read under the old id would take that for another
    /// spawner.
    pub(super) fn resume(&mut self, registration: Registration) {
        self.registration = registration;
        self.registry = None;
        self.poll_at = Duration::ZERO;
    }

    pub(super) fn tid(&self) -> Tid {
        self.registration.tid
    }

    pub(super) fn launched(&self) -> u64 {
        self.workers.launched_total()
    }

    /// Runs until it was stopped and all workers are gone (returns `true`), or until the lease is
    /// lost (returns `false`).
    pub(super) async fn run(&mut self) -> Result<bool> {
        let mut event = SpawnerEvent::StopRequested(*self.stop_requests.borrow_and_update());
        loop {
            self.handle_event(event)?;
            if self.registration.lost {
                return Ok(false);
            }
            self.act().await;
            self.publish_status();
            let is_killed = self.exit_at.is_some_and(|by| by <= self.now());
            let is_alone = self.core.is_over() && self.has_no_managers();
            if self.stage() != StopStage::Running && (is_alone || is_killed) {
                return Ok(true);
            }
            event = self.next_event().await;
        }
    }

    /// Sends the remaining replies.
    pub(super) async fn close(self) {
        drop(self.registration);
        self.jobs.close().await;
    }

    fn poll(&self) -> Duration {
        Duration::from_millis(self.options.config.poll_ms)
    }

    fn now(&self) -> Duration {
        self.started_at.elapsed()
    }

    async fn next_event(&mut self) -> SpawnerEvent {
        let time = self.started_at + self.wake_at();
        let Registration {
            commands, renewer, ..
        } = &mut self.registration;
        tokio::select! {
            (id, event) = self.launcher.next_event() => SpawnerEvent::Worker(id, event),
            counted = await_query(&mut self.counting), if self.counting.is_some() => SpawnerEvent::Counted(counted),
            registry = await_query(&mut self.registry), if self.registry.is_some() => SpawnerEvent::Registry(registry),
            Some(command) = commands.recv() => SpawnerEvent::Command(command),
            Ok(()) = self.stop_requests.changed() => SpawnerEvent::StopRequested(*self.stop_requests.borrow_and_update()),
            _ = renewer.lost() => SpawnerEvent::LeaseLost,
            () = sleep_until(time) => SpawnerEvent::TimerFired,
        }
    }

    fn wake_at(&self) -> Duration {
        let now = self.now();
        let count_at = Some(self.count_at).filter(|at| *at > now && self.counting.is_none());
        [
            self.core.held_until(GROUP, now),
            self.core.wake_at(now),
            self.exit_at,
            count_at,
        ]
        .into_iter()
        .flatten()
        .fold(self.poll_at, Duration::min)
    }

    // -- events

    fn handle_event(&mut self, event: SpawnerEvent) -> Result<()> {
        let now = self.now();
        match event {
            SpawnerEvent::Worker(id, event) => self.handle_worker_event(&id, &event, now),
            SpawnerEvent::Counted(counted) => self.handle_count(counted, now)?,
            SpawnerEvent::Registry(registry) => self.handle_registry(registry, now)?,
            SpawnerEvent::Command(ControlDelivery { tid, body }) => {
                match body.parse::<ControlMessage>() {
                    Ok(message) if tid == self.registration.tid => self.apply_command(message, now),
                    Ok(message) => self.jobs.push(CommandJob::Forward { tid, message }),
                    Err(error) => {
                        tracing::warn!(%tid, %error, "skipped a malformed control command")
                    }
                }
            }
            SpawnerEvent::StopRequested(times) => {
                for _ in self.stop_requests_applied..times {
                    self.core.note(SupervisorEvent::Stop, now);
                }
                self.stop_requests_applied = times;
            }
            SpawnerEvent::LeaseLost => self.registration.lost = true,
            SpawnerEvent::TimerFired => {}
        }
        if self.exit_at.is_some_and(|by| by <= now) {
            tracing::error!("killing workers that did not exit in time");
            self.launcher.broadcast(BroadcastCommand::Kill);
        }
        Ok(())
    }

    fn handle_worker_event(&mut self, id: &LaunchId, event: &WorkerEvent, now: Duration) {
        let Some(child) = self.workers.child(id) else {
            return;
        };
        let meaning = self.workers.apply_event(id, event, now);
        match meaning {
            EventMeaning::Started(took) => {
                if let Some(auto) = &mut self.auto {
                    auto.record_start(took);
                }
                self.core.note(SupervisorEvent::Ready(child), now);
            }
            EventMeaning::TaskClaimed => {
                self.last_task = now;
                self.claimed += 1;
                self.taken += 1;
                match self.pending.checked_sub(1) {
                    Some(left) => self.pending = left,
                    // The task was claimed before it was counted as waiting.
                    None => self.record_arrivals(1),
                }
            }
            EventMeaning::FailedStart(gone) => {
                self.failed_starts += 1;
                self.record_exit(if gone == ExitKind::OutOfMemory {
                    ExitReason::OutOfMemory
                } else {
                    ExitReason::Error
                });
                self.last_failure = Some(LastFailure::Died(gone));
                self.core
                    .note(SupervisorEvent::Exited(child, ChildExit::Failure), now);
            }
            EventMeaning::Exited { gone, had_task } => {
                self.record_exit(match gone {
                    ExitKind::Code(0) if had_task => ExitReason::Success,
                    ExitKind::Code(0) if self.exited_by_age() => ExitReason::Timeout,
                    ExitKind::Code(0) => ExitReason::Idle,
                    ExitKind::OutOfMemory => ExitReason::OutOfMemory,
                    _ => ExitReason::Error,
                });
                if gone != ExitKind::Code(0) {
                    tracing::warn!(worker = %id, how = %gone, had_task, "a worker failed: its task is reclaimed");
                }
                // A death with a task may be the task's fault, and its retries are limited. Only a
                // death without a task counts against launches.
                let is_idle_death = gone != ExitKind::Code(0) && !had_task;
                if is_idle_death {
                    self.last_failure = Some(LastFailure::DiedIdle(gone));
                }
                let end = if is_idle_death {
                    ChildExit::Failure
                } else {
                    ChildExit::Success
                };
                self.core.note(SupervisorEvent::Exited(child, end), now);
            }
            EventMeaning::NotLaunched => {
                if let WorkerEvent::Failed(error) = event {
                    self.record_launch_failure(error.clone());
                }
                self.core
                    .note(SupervisorEvent::Exited(child, ChildExit::Failure), now);
            }
            EventMeaning::Nothing => return,
        }
        self.stale = true;
    }

    /// Whether a worker that never had a task has exited because of its age: its idle timeout was
    /// later.
    fn exited_by_age(&self) -> bool {
        let Config {
            max_uptime,
            idle_timeout,
            ..
        } = self.options.config;
        !self.paused
            && self.stage() == StopStage::Running
            && max_uptime.is_some_and(|uptime| uptime < idle_timeout)
    }

    fn record_exit(&self, reason: ExitReason) {
        if let Some(metrics) = &self.options.metrics {
            metrics.exited(reason);
        }
    }

    fn record_arrivals(&mut self, tasks: u64) {
        if let Some(auto) = &mut self.auto {
            auto.record_arrivals(tasks);
        }
    }

    fn handle_count(&mut self, counted: Result<u64>, now: Duration) -> Result<()> {
        match counted {
            Ok(found) => {
                // Tasks claimed during the count may be included or not. If too few workers are
                // launched, the next count fixes that. Surplus workers exit by themselves.
                let pending = found.saturating_sub(self.taken);
                self.record_arrivals(pending.saturating_sub(self.pending));
                self.pending = pending;
                if pending > 0 {
                    self.last_task = now;
                }
            }
            Err(error) => {
                self.log_if_retryable(error, "waiting tasks cannot be counted: retrying")?;
                (self.due, self.count_at) = (true, now + ERROR_PAUSE);
            }
        }
        Ok(())
    }

    fn handle_registry(&mut self, registry: Result<Vec<WorkerEntry>>, now: Duration) -> Result<()> {
        match registry {
            Ok(entries) => {
                self.registry_read = true;
                let others =
                    spawner_ids::other_spawners(&entries, self.registration.tid, is_running);
                self.may_have_orphans |=
                    self.other_spawners.iter().any(|tid| !others.contains(tid));
                self.other_spawners = others;
                let recognise = |info: &WorkerInfo| self.launcher.recognise(info);
                let RegistryDiff { found, strays } =
                    self.workers
                        .apply_registry(&entries, &self.other_spawners, recognise, now);
                for tid in found {
                    tracing::info!(worker = %tid, "found a worker of another spawner");
                }
                for id in strays {
                    tracing::warn!(worker = %id, "ending a worker that another spawner has left and that is not registered");
                    self.launcher.discard(&id);
                }
                self.launcher.observe_registry(&entries);
                self.stop_managers(&entries, now);
            }
            Err(error) => self.log_if_retryable(error, "the registry cannot be read: retrying")?,
        }
        Ok(())
    }

    /// Logs errors that may pass. The workers go on meanwhile.
    fn log_if_retryable(&self, error: Error, what: &str) -> Result<()> {
        if matches!(error, Error::Unreachable { .. }) || !error.is_retryable() {
            return Err(error);
        }
        tracing::error!(%error, "{what}");
        Ok(())
    }

    // -- actions

    async fn act(&mut self) {
        let now = self.now();
        if self.poll_at <= now {
            self.poll_at = now + self.poll();
            self.due = true;
            if self.registry.is_none() {
                let broker = Arc::clone(&self.broker);
                self.registry = Some(Box::pin(async move { broker.workers().await }));
            }
            if self.purge_at <= now {
                self.purge_at = now + PURGE_EVERY;
                self.jobs.push(CommandJob::Purge);
            }
        }
        if self.stage() == StopStage::Running {
            self.adopt_orphans(now).await;
        }
        let wanted = SupervisorEvent::Scale(GROUP, self.wanted_workers(now));
        let effects = self.core.on(wanted, now);
        self.forward_stop(now);
        self.kill_workers(now);
        self.stop_idle_workers(now);
        self.apply_effects(effects, now).await;
        if self.stage() == StopStage::Running {
            self.start_count(now);
        } else {
            self.counting = None;
        }
    }

    /// Starts to count waiting tasks, if the last count is out of date and the number matters.
    fn start_count(&mut self, now: Duration) {
        let census = self.workers.census(self.pending);
        // Not before the registry was read: a waiting count reports everything from its start on.
        let is_unused = self.registry_read && census.capacity() == 0 && self.pending == 0;
        // Beyond the worker limit, the exact number makes no difference.
        let matters = self.stale && self.pending <= self.options.config.max_workers().into();
        if self.counting.is_some() || now < self.count_at || !(self.due || matters || is_unused) {
            return;
        }
        let request = WaitingRequest {
            caps: self.options.worker.caps.clone(),
            queues: self.options.worker.queues.clone(),
            before: None,
            max: MAX_COUNT,
            wait: if is_unused {
                self.poll()
            } else {
                Duration::ZERO
            },
        };
        (self.stale, self.due, self.taken) = (false, false, 0);
        let broker = Arc::clone(&self.broker);
        self.counting = Some(Box::pin(async move { broker.count_waiting(request).await }));
    }

    // -- status

    pub(super) fn status(&self) -> &'static str {
        match self.stage() {
            StopStage::Running if self.paused => "paused",
            StopStage::Running if self.core.held_until(GROUP, self.now()).is_some() => {
                "backing_off"
            }
            StopStage::Running if self.workers.census(0).busy > 0 => "busy",
            StopStage::Running => "listening",
            StopStage::Draining => "draining",
            StopStage::Terminating | StopStage::Killing => "stopping",
        }
    }

    fn publish_status(&mut self) {
        let warm_pool = self.warm_pool(self.now());
        let census = self.workers.census(self.pending);
        let is_backing_off = self.core.census(GROUP).backing_off > 0;
        let snapshot = SpawnerSnapshot {
            pending: self.pending,
            starting: census.starting,
            idle: census.idle,
            busy: census.busy,
            warm_pool,
            launched: self.launched(),
            failed_starts: self.failed_starts,
            launch_failures: self.launch_failures,
            backing_off: is_backing_off,
        };
        self.snapshot_tx
            .send_if_modified(|snapshot_tx| std::mem::replace(snapshot_tx, snapshot) != snapshot);
        let stats = &self.registration.stats;
        stats.spawned.store(self.claimed, Ordering::Relaxed);
        stats.busy.store(census.busy, Ordering::Relaxed);
        stats.set_status(match self.stage() {
            StopStage::Running if self.paused => WorkerStatus::Paused,
            StopStage::Running if is_backing_off => WorkerStatus::BackingOff,
            StopStage::Running => WorkerStatus::Active,
            _ => WorkerStatus::Draining,
        });
        let title = title::format(self.registration.tid, &self.options.name, self.status());
        if self.title != title {
            raddle_runner::title::set(&title);
            self.title = title;
        }
    }
}

/// Awaits a query, and clears it when it is done.
async fn await_query<T>(query: &mut Option<PendingQuery<T>>) -> Result<T> {
    let found = query.as_mut().expect("polled only when there is one").await;
    *query = None;
    found
}
