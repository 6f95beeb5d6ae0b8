//! The loop of a pool of hosts: takes orders of the worker and news of hosts, asks `core`, acts.

use std::{
    collections::HashMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use raddle_broker::LeasedTask;
use raddle_client::orphan_processes::kill_hosts_of_earlier_attempts;
use raddle_model::{attempt_input::WORKER_VARIABLE, title};
use raddle_runner::{OutputChannel, RunnerCommand, RunnerOptions};
use tokio::{
    sync::mpsc,
    task::{JoinHandle, JoinSet},
    time::sleep_until,
};

use super::{
    core::{Grace, HostEffect, HostEvent, HostId, PoolCore},
    process::{HostCommand, HostContext, HostNews, NEWS, run_host},
    side::{SideMessage, Sides},
};
use crate::{
    host::{HostOptions, QUEUES_VARIABLE, report_start_failure},
    worker::{
        event::WorkerLoopEvent,
        options::secret_variables,
        slot::{Slot, SlotContext},
    },
};

/// The worker's handle on the hosts of one program.
pub(in crate::worker) struct HostPool {
    commands: mpsc::UnboundedSender<HostEvent>,
    /// Whether its hosts do not start at present.
    is_failing: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl HostPool {
    /// Starts the hosts. The ends of attempts are sent to `events`, as slots do.
    pub(in crate::worker) fn start(
        options: Arc<HostOptions>,
        context: Arc<SlotContext>,
        worker: raddle_model::Tid,
        events: mpsc::UnboundedSender<WorkerLoopEvent>,
    ) -> Self {
        // As many as there are slots, and a few orders for each.
        let (commands, queue) = mpsc::unbounded_channel();
        let (news, heard) = mpsc::channel(NEWS);
        let grace = Grace {
            stop: context.options.grace,
            overtime: context
                .options
                .time_limits
                .overtime
                .unwrap_or(context.options.grace),
        };
        let host = HostContext {
            runner: RunnerOptions {
                program: context.options.runner.clone(),
                title_idle: title::format(worker, &options.name, "host"),
                lease_deadline: None,
                removed_variables: secret_variables(),
            },
            worker,
            env: context
                .options
                .env
                .clone()
                .into_iter()
                .chain([
                    (QUEUES_VARIABLE.to_owned(), context.options.queues.join(",")),
                    (WORKER_VARIABLE.to_owned(), worker.to_string()),
                ])
                .collect(),
            options: Arc::clone(&options),
            lease: Arc::clone(&context.attempt_id),
        };
        let is_failing = Arc::<AtomicBool>::default();
        let service = PoolService {
            core: PoolCore::new(HostOptions::clone(&options), grace),
            began: Instant::now(),
            sides: Sides::new(Arc::clone(&context.broker), events.clone()),
            host,
            hosts: HashMap::new(),
            pids: HashMap::new(),
            processes: JoinSet::new(),
            fresh: HashMap::new(),
            held: HashMap::new(),
            searches: JoinSet::new(),
            outgoing: HashMap::new(),
            is_failing: Arc::clone(&is_failing),
            failure: None,
            context,
            events,
            news,
        };
        let task = tokio::spawn(service.run(queue, heard));
        Self {
            commands,
            is_failing,
            task,
        }
    }

    /// Whether its hosts do not start at present.
    pub(in crate::worker) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    /// Runs an attempt in one of the hosts.
    pub(in crate::worker) fn run(&self, slot: usize, claim: Box<LeasedTask>) {
        let _ = self.commands.send(HostEvent::Run { slot, claim });
    }

    /// Passes on an order about the attempt in a slot.
    pub(in crate::worker) fn order(&self, slot: usize, order: RunnerCommand) {
        let _ = self.commands.send(HostEvent::Order { slot, order });
    }

    /// Shuts all hosts down, and waits until they are gone.
    pub(in crate::worker) async fn close(self) {
        let _ = self.commands.send(HostEvent::Close);
        drop(self.commands);
        let _ = self.task.await;
    }
}

struct PoolService {
    core: PoolCore,
    began: Instant,
    context: Arc<SlotContext>,
    events: mpsc::UnboundedSender<WorkerLoopEvent>,
    sides: Sides,
    host: HostContext,
    hosts: HashMap<HostId, mpsc::UnboundedSender<HostCommand>>,
    pids: HashMap<HostId, u32>,
    processes: JoinSet<()>,
    /// Runners of attempts that are run in fresh processes because they crash hosts.
    fresh: HashMap<usize, Slot>,
    /// Later attempts that begin when nothing is left of the earlier ones, with orders for them.
    held: HashMap<usize, (Box<LeasedTask>, Vec<RunnerCommand>)>,
    searches: JoinSet<usize>,
    /// The messages to hosts, collected over one turn.
    outgoing: HashMap<HostId, Vec<u8>>,
    is_failing: Arc<AtomicBool>,
    /// Why its hosts do not start, as it was reported last.
    failure: Option<String>,
    news: mpsc::Sender<HostNews>,
}

impl PoolService {
    async fn run(
        mut self,
        mut queue: mpsc::UnboundedReceiver<HostEvent>,
        mut heard: mpsc::Receiver<HostNews>,
    ) {
        self.turn(HostEvent::Time);
        let mut commands_open = true;
        while !self.core.is_closed() {
            let wake = self.core.wake_at().map(|at| (self.began + at).into());
            tokio::select! {
                command = queue.recv(), if commands_open => match command {
                    Some(command) => self.take(command),
                    None => {
                        commands_open = false;
                        self.turn(HostEvent::Close);
                    }
                },
                Some(news) = heard.recv() => self.take_news(news),
                Some(searched) = self.searches.join_next() => {
                    if let Ok(slot) = searched {
                        self.begin_held(slot);
                    }
                }
                () = async { sleep_until(wake.expect("polled only when there is one")).await }, if wake.is_some() => {
                    self.turn(HostEvent::Time);
                }
            }
            // Whatever else is at hand is one turn with it, so that a host gets one write for all.
            while let Ok(news) = heard.try_recv() {
                self.take_news(news);
            }
            while let Ok(command) = queue.try_recv() {
                self.take(command);
            }
            self.flush();
            self.publish_failure();
            while self.processes.try_join_next().is_some() {}
        }
        self.hosts.clear();
        while self.processes.join_next().await.is_some() {}
        for (_, slot) in self.fresh.drain() {
            slot.close().await;
        }
    }

    /// Makes it known whether hosts start, and why not.
    fn publish_failure(&mut self) {
        let failure = self.core.start_failure();
        if self.is_failing.swap(failure.is_some(), Ordering::Relaxed) != failure.is_some() {
            let _ = self.events.send(WorkerLoopEvent::HostsChanged);
        }
        if failure.is_none() || failure == self.failure.as_deref() {
            return;
        }
        self.failure = failure.map(str::to_owned);
        let reason = self.failure.clone().unwrap_or_default();
        let options = &self.context.options;
        let owner = options.parent.unwrap_or(self.host.worker);
        let (broker, queues) = (Arc::clone(&self.context.broker), options.queues.clone());
        tokio::spawn(async move {
            if let Err(error) = report_start_failure(&*broker, owner, &queues, &reason).await {
                tracing::warn!(%error, "the failure of a host could not be stored");
            }
        });
    }

    /// Takes an event of the worker. The first attempt of a task begins at once.
    fn take(&mut self, command: HostEvent) {
        match command {
            HostEvent::Run { slot, claim } if claim.attempt_id.attempt > 1 => {
                let (broker, attempt_id) = (Arc::clone(&self.context.broker), claim.attempt_id);
                self.held.insert(slot, (claim, Vec::new()));
                self.searches.spawn(async move {
                    kill_hosts_of_earlier_attempts(&*broker, attempt_id).await;
                    slot
                });
            }
            HostEvent::Order { slot, order } if self.held.contains_key(&slot) => {
                let held = self.held.get_mut(&slot).expect("it is there");
                held.1.push(order);
            }
            command => self.begin(command),
        }
    }

    fn begin_held(&mut self, slot: usize) {
        if let Some((claim, orders)) = self.held.remove(&slot) {
            self.begin(HostEvent::Run { slot, claim });
            for order in orders {
                self.begin(HostEvent::Order { slot, order });
            }
        }
    }

    fn begin(&mut self, command: HostEvent) {
        if let HostEvent::Run { slot, claim } = &command {
            let timeout = self.context.options.time_limits.timeout_of(&claim.spec);
            self.core.set_timeout(*slot, timeout);
        }
        self.turn(command);
    }

    fn take_news(&mut self, news: HostNews) {
        match news {
            HostNews::Event(event) => {
                match &event {
                    HostEvent::Spawned { host, pid } => drop(self.pids.insert(*host, *pid)),
                    HostEvent::Exited { host, .. } => {
                        self.hosts.remove(host);
                        self.pids.remove(host);
                        self.outgoing.remove(host);
                    }
                    _ => {}
                }
                self.turn(event);
            }
            HostNews::Output {
                host,
                stream,
                bytes,
            } => self.output(host, stream, bytes),
        }
    }

    /// Output of a host belongs to its attempt if it runs one at a time, otherwise to the log.
    fn output(&mut self, host: HostId, stream: OutputChannel, bytes: Vec<u8>) {
        if let Some(attempt_id) = self.core.sole_attempt(host) {
            return self
                .sides
                .say(attempt_id, SideMessage::Output(stream, bytes));
        }
        let (text, name) = (String::from_utf8_lossy(&bytes), &self.host.options.name);
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            // Errors, and the stack that a blocked host prints, must be seen without -v.
            match stream {
                OutputChannel::Stderr => tracing::warn!(host = %name, number = host, "{line}"),
                _ => tracing::info!(host = %name, number = host, "{line}"),
            }
        }
    }

    fn turn(&mut self, event: HostEvent) {
        let now = self.began.elapsed();
        self.core.on(event, now);
        for effect in self.core.take_effects() {
            self.act(effect);
        }
    }

    fn act(&mut self, effect: HostEffect) {
        match effect {
            HostEffect::Spawn(host) => {
                let (commands, queue) = mpsc::unbounded_channel();
                self.hosts.insert(host, commands);
                let running = run_host(host, self.host.clone(), queue, self.news.clone());
                self.processes.spawn(running);
            }
            HostEffect::Send(host, bytes) => {
                let buffer = self.outgoing.entry(host).or_default();
                if buffer.is_empty() {
                    *buffer = bytes;
                } else {
                    buffer.extend(bytes);
                }
            }
            HostEffect::Kill(host) => {
                self.outgoing.remove(&host);
                if let Some(commands) = self.hosts.get(&host) {
                    let _ = commands.send(HostCommand::Kill);
                }
            }
            HostEffect::Measure(host) => {
                if let Some(bytes) = self.pids.get(&host).and_then(|pid| resident_bytes(*pid)) {
                    let now = self.began.elapsed();
                    self.core.on(HostEvent::Rss { host, bytes }, now);
                }
            }
            HostEffect::ReportStack(host) => self.report_stack(host),
            HostEffect::Started(started) => {
                let _ = self.events.send(WorkerLoopEvent::Started(started));
            }
            HostEffect::Side(attempt_id, message) => self.sides.say(attempt_id, message),
            HostEffect::Ended {
                slot,
                finish,
                killed,
            } => self.sides.end(slot, finish, killed),
            HostEffect::Fresh { slot, claim } => {
                self.sides.forget_attempt(claim.attempt_id);
                let (context, events) = (&self.context, &self.events);
                self.fresh
                    .entry(slot)
                    .or_insert_with(|| Slot::start(slot, Arc::clone(context), events.clone()))
                    .run(claim);
            }
            HostEffect::FreshOrder { slot, order } => {
                if let Some(slot) = self.fresh.get(&slot) {
                    slot.send(order);
                }
            }
            HostEffect::Warn(message) => tracing::warn!("{message}"),
            HostEffect::Info(message) => tracing::info!("{message}"),
        }
    }

    fn flush(&mut self) {
        for (host, bytes) in self.outgoing.drain() {
            if let Some(commands) = self.hosts.get(&host) {
                let _ = commands.send(HostCommand::Send(bytes));
            }
        }
    }

    /// Says where a host hangs: what the kernel knows, and what a language prints on `SIGUSR2`.
    fn report_stack(&self, host: HostId) {
        let Some(pid) = self.pids.get(&host).copied() else {
            return;
        };
        let read = |name: &str| {
            fs::read_to_string(format!("/proc/{pid}/{name}"))
                .map(|text| text.trim().replace('\n', " < "))
                .unwrap_or_default()
        };
        tracing::warn!(
            host = %self.host.options.name,
            pid,
            wchan = read("wchan"),
            stack = read("stack"),
            syscall = read("syscall"),
            "the event loop of a host is blocked: its attempts cannot be cancelled, and other attempts wait for it"
        );
        if catches_usr2(pid) {
            raddle_runner::signal_usr2(pid);
        }
    }
}

/// Whether a process handles `SIGUSR2`, which ends one that does not.
fn catches_usr2(pid: u32) -> bool {
    const USR2: u32 = 12;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & (1 << (USR2 - 1)) != 0)
}

/// The memory that a process uses.
fn resident_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
