//! The loop: waits for what happens, says how many workers are wanted, and has the core's decisions carried out.
//!
//! An arrival is heard of without being looked for: an idle worker that takes it says so, and where none is idle the broker is waited on.
//! `poll` is only the longest pause between two looks, for what nobody tells: workers that others have launched, and those that were killed.

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
    launching::NoLaunch,
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

/// Further than this nobody counts: the ceiling is lower.
const COUNTED: u32 = 100_000;
/// Its workers are one group of the core.
pub(super) const GROUP: GroupId = GroupId(0);
/// How many workers start at a time: more of them would keep each other from being ready.
const MAX_STARTING: usize = 50;
/// How long workers that were told to give back what they run may take, beyond the grace that they have themselves.
const BEYOND_GRACE: Duration = Duration::from_secs(5);
/// After an error of the broker, before the next look.
const ERROR_PAUSE: Duration = Duration::from_millis(500);
/// How often expired records are removed: its workers do not live long enough to do it.
const PURGE_EVERY: Duration = Duration::from_secs(60);

type SpawnerQueries<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

pub(super) struct SpawnerService {
    broker: Arc<dyn Broker>,
    pub(super) options: Options,
    pub(super) launcher: Box<dyn Launcher>,
    shown: watch::Sender<SpawnerSnapshot>,
    pub(super) line: Registration,
    pub(super) roster: WorkerTable,
    /// Decides who is started, held back and stopped.
    pub(super) core: Supervisor,
    /// What the last worker died of that was none yet, or what was in the way of it.
    pub(super) grief: Option<NoLaunch>,
    pub(super) auto: Option<AutoSizer>,
    /// How far others were told to stop.
    pub(super) entered: StopStage,
    heeded: u32,
    asked: watch::Receiver<u32>,
    /// When those that are left are killed, whatever they do.
    pub(super) leave_by: Option<Duration>,
    pub(super) paused: bool,
    /// Each `PAUSE` that is yet to be answered.
    pub(super) pausing: Vec<ControlMessage>,
    /// Idle workers that were stopped since it is paused.
    pub(super) dismissed: BTreeSet<Tid>,
    /// What waited when it was last looked at, less what was taken since.
    pub(super) pending: u64,
    counting: Option<SpawnerQueries<u64>>,
    /// Tasks that were taken since the look that is under way began.
    taken: u64,
    /// Whether something has happened that the last look does not show.
    stale: bool,
    /// Whether it is time for a look, whatever has happened.
    due: bool,
    /// Not before this.
    count_at: Duration,
    registry: Option<SpawnerQueries<Vec<WorkerEntry>>>,
    /// Whether the registry was seen: before that nobody knows who is there already.
    pub(super) seen: bool,
    /// The other spawners that are alive, under each id that they have had.
    pub(super) others: Vec<Tid>,
    /// Whether one that is gone may have left workers that the launcher is to take charge of.
    pub(super) estate: bool,
    pub(super) poll_at: Duration,
    purge_at: Duration,
    pub(super) last_task: Duration,
    stillborn: u64,
    /// Tasks that its workers have taken.
    begun: u64,
    /// What managers were told last that stop with it.
    pub(super) told: BTreeMap<Tid, ControlCommand>,
    /// Whether its workers were told that they are killed.
    pub(super) kills: bool,
    /// How many of them were left when it last looked; nothing before it has.
    pub(super) managers_left: Option<usize>,
    pub(super) obstacles: LaunchFailureCounts,
    pub(super) errands: CommandJobs,
    _haste: ShutdownDeadline,
    began: Instant,
    title: String,
}

enum SpawnerEvent {
    News(LaunchId, WorkerEvent),
    Counted(Result<u64>),
    Registry(Result<Vec<WorkerEntry>>),
    Word(ControlDelivery),
    Asked(u32),
    LeaseLost,
    Time,
}

impl SpawnerService {
    pub(super) fn new(
        broker: Arc<dyn Broker>,
        options: Options,
        launcher: Box<dyn Launcher>,
        line: Registration,
        shown: watch::Sender<SpawnerSnapshot>,
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
            stop: StopPolicy::drain(options.worker.grace + BEYOND_GRACE),
            // Its launcher knows how long it may take, and its own lease shows whether it gets on.
            start_timeout: None,
            hang_timeout: None,
            recycle: RecyclePolicy::default(),
            after: Vec::new(),
            parallel: MAX_STARTING,
            backoff_scope: BackoffScope::Group,
        };
        let haste = ShutdownDeadline::new();
        Self {
            launcher,
            shown,
            line,
            roster: WorkerTable::new(options.worker.worker_info()),
            core: Supervisor::new([policy]),
            grief: None,
            auto: (warm_pool == WarmPool::Auto)
                .then(|| AutoSizer::new(hit_target, options.config.max_workers())),
            entered: StopStage::Running,
            heeded: 0,
            asked: shutdown.subscribe(),
            leave_by: None,
            paused: false,
            pausing: Vec::new(),
            dismissed: BTreeSet::new(),
            pending: 0,
            counting: None,
            taken: 0,
            stale: true,
            due: true,
            count_at: Duration::ZERO,
            registry: None,
            seen: false,
            others: Vec::new(),
            estate: true,
            poll_at: Duration::ZERO,
            purge_at: PURGE_EVERY,
            last_task: Duration::ZERO,
            stillborn: 0,
            begun: 0,
            told: BTreeMap::new(),
            kills: false,
            managers_left: None,
            obstacles: LaunchFailureCounts::default(),
            errands: CommandJobs::start(Arc::clone(&broker), haste.watch()),
            _haste: haste,
            began: Instant::now(),
            title: String::new(),
            broker,
            options,
        }
    }

    /// Goes on under another id. A look at the registry that was begun under the last one would take that for somebody else's.
    pub(super) fn resume(&mut self, line: Registration) {
        self.line = line;
        self.registry = None;
        self.poll_at = Duration::ZERO;
    }

    pub(super) fn tid(&self) -> Tid {
        self.line.tid
    }

    pub(super) fn launched(&self) -> u64 {
        self.roster.total()
    }

    /// Works until all that it has launched is gone, on request, with `true`, or until the lease is lost, with `false`.
    pub(super) async fn run(&mut self) -> Result<bool> {
        let mut event = SpawnerEvent::Asked(*self.asked.borrow_and_update());
        loop {
            self.heed(event)?;
            if self.line.lost {
                return Ok(false);
            }
            self.go_on().await;
            self.show();
            let is_killed = self.leave_by.is_some_and(|by| by <= self.now());
            let is_alone = self.core.is_over() && self.has_no_managers();
            if self.stage() != StopStage::Running && (is_alone || is_killed) {
                return Ok(true);
            }
            event = self.next().await;
        }
    }

    /// Says what is left to say.
    pub(super) async fn close(self) {
        drop(self.line);
        self.errands.close().await;
    }

    fn poll(&self) -> Duration {
        Duration::from_millis(self.options.config.poll_ms)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    async fn next(&mut self) -> SpawnerEvent {
        let time = self.began + self.wake_at();
        let Registration {
            commands, renewer, ..
        } = &mut self.line;
        tokio::select! {
            (id, news) = self.launcher.next() => SpawnerEvent::News(id, news),
            counted = look(&mut self.counting), if self.counting.is_some() => SpawnerEvent::Counted(counted),
            registry = look(&mut self.registry), if self.registry.is_some() => SpawnerEvent::Registry(registry),
            Some(word) = commands.recv() => SpawnerEvent::Word(word),
            Ok(()) = self.asked.changed() => SpawnerEvent::Asked(*self.asked.borrow_and_update()),
            _ = renewer.lost() => SpawnerEvent::LeaseLost,
            () = sleep_until(time) => SpawnerEvent::Time,
        }
    }

    fn wake_at(&self) -> Duration {
        let now = self.now();
        let count_at = Some(self.count_at).filter(|at| *at > now && self.counting.is_none());
        [
            self.core.held_until(GROUP, now),
            self.core.wake_at(now),
            self.leave_by,
            count_at,
        ]
        .into_iter()
        .flatten()
        .fold(self.poll_at, Duration::min)
    }

    // -- what has happened

    fn heed(&mut self, event: SpawnerEvent) -> Result<()> {
        let now = self.now();
        match event {
            SpawnerEvent::News(id, news) => self.hear(&id, &news, now),
            SpawnerEvent::Counted(counted) => self.counted(counted, now)?,
            SpawnerEvent::Registry(registry) => self.registered(registry, now)?,
            SpawnerEvent::Word(ControlDelivery { tid, body }) => {
                match body.parse::<ControlMessage>() {
                    Ok(message) if tid == self.line.tid => self.apply_command(message, now),
                    Ok(message) => self.errands.push(CommandJob::Forward { tid, message }),
                    Err(error) => tracing::warn!(%tid, %error, "a control message was passed over"),
                }
            }
            SpawnerEvent::Asked(times) => {
                for _ in self.heeded..times {
                    self.core.note(SupervisorEvent::Stop, now);
                }
                self.heeded = times;
            }
            SpawnerEvent::LeaseLost => self.line.lost = true,
            SpawnerEvent::Time => {}
        }
        if self.leave_by.is_some_and(|by| by <= now) {
            tracing::error!("workers that did not leave are killed");
            self.launcher.tell(BroadcastCommand::Kill);
        }
        Ok(())
    }

    fn hear(&mut self, id: &LaunchId, news: &WorkerEvent, now: Duration) {
        let Some(child) = self.roster.child(id) else {
            return;
        };
        let meaning = self.roster.hear(id, news, now);
        match meaning {
            EventMeaning::Started(took) => {
                if let Some(auto) = &mut self.auto {
                    auto.started(took);
                }
                self.core.note(SupervisorEvent::Ready(child), now);
            }
            EventMeaning::Taken => {
                self.last_task = now;
                self.begun += 1;
                self.taken += 1;
                match self.pending.checked_sub(1) {
                    Some(left) => self.pending = left,
                    // Nobody had seen it wait.
                    None => self.arrived(1),
                }
            }
            EventMeaning::Stillborn(gone) => {
                self.stillborn += 1;
                self.exited(if gone == ExitKind::OutOfMemory {
                    ExitReason::OutOfMemory
                } else {
                    ExitReason::Error
                });
                self.grief = Some(NoLaunch::Died(gone));
                self.core
                    .note(SupervisorEvent::Exited(child, ChildExit::Failure), now);
            }
            EventMeaning::Left { gone, had_task } => {
                self.exited(match gone {
                    ExitKind::Code(0) if had_task => ExitReason::Success,
                    ExitKind::Code(0) if self.leaves_by_age() => ExitReason::Timeout,
                    ExitKind::Code(0) => ExitReason::Idle,
                    ExitKind::OutOfMemory => ExitReason::OutOfMemory,
                    _ => ExitReason::Error,
                });
                if gone != ExitKind::Code(0) {
                    tracing::warn!(worker = %id, how = %gone, had_task, "a worker failed: its task is taken back");
                }
                // One that dies with its task may die of that. Its task is not run again for ever.
                let is_idle_death = gone != ExitKind::Code(0) && !had_task;
                if is_idle_death {
                    self.grief = Some(NoLaunch::DiedIdle(gone));
                }
                let end = if is_idle_death {
                    ChildExit::Failure
                } else {
                    ChildExit::Success
                };
                self.core.note(SupervisorEvent::Exited(child, end), now);
            }
            EventMeaning::NotLaunched => {
                if let WorkerEvent::Failed(error) = news {
                    self.not_launched(error.clone());
                }
                self.core
                    .note(SupervisorEvent::Exited(child, ChildExit::Failure), now);
            }
            EventMeaning::Nothing => return,
        }
        self.stale = true;
    }

    /// Whether a worker that never had a task, and was not told to leave, has left because of its age: it would have been idle for long enough only later.
    fn leaves_by_age(&self) -> bool {
        let Config {
            max_uptime,
            idle_timeout,
            ..
        } = self.options.config;
        !self.paused
            && self.stage() == StopStage::Running
            && max_uptime.is_some_and(|uptime| uptime < idle_timeout)
    }

    fn exited(&self, reason: ExitReason) {
        if let Some(book) = &self.options.book {
            book.exited(reason);
        }
    }

    fn arrived(&mut self, tasks: u64) {
        if let Some(auto) = &mut self.auto {
            auto.arrived(tasks);
        }
    }

    fn counted(&mut self, counted: Result<u64>, now: Duration) -> Result<()> {
        match counted {
            Ok(found) => {
                // What was taken while it was counted may be in the number or not. Too few workers are launched by the next look, too many
                // are not called back.
                let pending = found.saturating_sub(self.taken);
                self.arrived(pending.saturating_sub(self.pending));
                self.pending = pending;
                if pending > 0 {
                    self.last_task = now;
                }
            }
            Err(error) => {
                self.tolerate(error, "what waits cannot be counted")?;
                (self.due, self.count_at) = (true, now + ERROR_PAUSE);
            }
        }
        Ok(())
    }

    fn registered(&mut self, registry: Result<Vec<WorkerEntry>>, now: Duration) -> Result<()> {
        match registry {
            Ok(entries) => {
                self.seen = true;
                let others = spawner_ids::others(&entries, self.line.tid, is_running);
                self.estate |= self.others.iter().any(|tid| !others.contains(tid));
                self.others = others;
                let recognise = |info: &WorkerInfo| self.launcher.recognise(info);
                let RegistryDiff { found, strays } =
                    self.roster.look_at(&entries, &self.others, recognise, now);
                for tid in found {
                    tracing::info!(worker = %tid, "found a worker that another spawner has launched");
                }
                for id in strays {
                    tracing::warn!(worker = %id, "another spawner has left it, and it is not registered: it is ended");
                    self.launcher.discard(&id);
                }
                self.launcher.look_at(&entries);
                self.stop_managers(&entries, now);
            }
            Err(error) => self.tolerate(error, "the registry cannot be read")?,
        }
        Ok(())
    }

    /// What may pass is waited for: workers go on meanwhile.
    fn tolerate(&self, error: Error, what: &str) -> Result<()> {
        if matches!(error, Error::Unreachable { .. }) || !error.is_retryable() {
            return Err(error);
        }
        tracing::error!(%error, "{what}");
        Ok(())
    }

    // -- what follows

    async fn go_on(&mut self) {
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
                self.errands.push(CommandJob::Purge);
            }
        }
        if self.stage() == StopStage::Running {
            self.inherit(now).await;
        }
        let wanted = SupervisorEvent::Scale(GROUP, self.wanted(now));
        let effects = self.core.on(wanted, now);
        self.pass_on(now);
        self.kill_workers(now);
        self.dismiss_idle(now);
        self.carry_out(effects, now).await;
        if self.stage() == StopStage::Running {
            self.count(now);
        } else {
            self.counting = None;
        }
    }

    /// Begins a look at what waits, where the last one may be out of date and another number could matter.
    fn count(&mut self, now: Duration) {
        let census = self.roster.census(self.pending);
        // Not before it is known who is there: whoever waits listens to all that happens from then on.
        let nobody_waits = self.seen && census.capacity() == 0 && self.pending == 0;
        // Whether a few more or less wait than the most workers could take makes no difference.
        let matters = self.stale && self.pending <= self.options.config.max_workers().into();
        if self.counting.is_some() || now < self.count_at || !(self.due || matters || nobody_waits)
        {
            return;
        }
        let request = WaitingRequest {
            caps: self.options.worker.caps.clone(),
            queues: self.options.worker.queues.clone(),
            before: None,
            max: COUNTED,
            wait: if nobody_waits {
                self.poll()
            } else {
                Duration::ZERO
            },
        };
        (self.stale, self.due, self.taken) = (false, false, 0);
        let broker = Arc::clone(&self.broker);
        self.counting = Some(Box::pin(async move { broker.count_waiting(request).await }));
    }

    // -- what others see of it

    pub(super) fn status(&self) -> &'static str {
        match self.stage() {
            StopStage::Running if self.paused => "paused",
            StopStage::Running if self.core.held_until(GROUP, self.now()).is_some() => "braking",
            StopStage::Running if self.roster.census(0).busy > 0 => "busy",
            StopStage::Running => "listening",
            StopStage::Draining => "draining",
            StopStage::Terminating | StopStage::Killing => "stopping",
        }
    }

    fn show(&mut self) {
        let warm_pool = self.warm_pool(self.now());
        let census = self.roster.census(self.pending);
        let is_braking = self.core.census(GROUP).backing_off > 0;
        let snapshot = SpawnerSnapshot {
            pending: self.pending,
            starting: census.starting,
            idle: census.idle,
            busy: census.busy,
            warm_pool,
            launched: self.launched(),
            stillborn: self.stillborn,
            obstacles: self.obstacles,
            braking: is_braking,
        };
        self.shown
            .send_if_modified(|shown| std::mem::replace(shown, snapshot) != snapshot);
        let stats = &self.line.stats;
        stats.spawned.store(self.begun, Ordering::Relaxed);
        stats.busy.store(census.busy, Ordering::Relaxed);
        stats.set_status(match self.stage() {
            StopStage::Running if self.paused => WorkerStatus::Paused,
            StopStage::Running if is_braking => WorkerStatus::Braking,
            StopStage::Running => WorkerStatus::Active,
            _ => WorkerStatus::Draining,
        });
        let title = title::format(self.line.tid, &self.options.name, self.status());
        if self.title != title {
            raddle_runner::title::set(&title);
            self.title = title;
        }
    }
}

/// Waits for a look that is under way, and forgets it when it is over.
async fn look<T>(looking: &mut Option<SpawnerQueries<T>>) -> Result<T> {
    let found = looking
        .as_mut()
        .expect("polled only when there is one")
        .await;
    *looking = None;
    found
}
