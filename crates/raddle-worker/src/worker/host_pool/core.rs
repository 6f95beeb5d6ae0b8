//! The state of a pool of hosts, what can happen to it, and which attempt runs where.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque},
    time::Duration,
};

use raddle_broker::{AttemptId, AttemptStarted, Completion, LeasedTask};
use raddle_model::{
    AttemptInput, ExitStatus, Target, Tid,
    host::{FromHost, RoutineKind, StartAttempt, ToHost, encode_message},
    spec::Isolation,
};
use raddle_runner::RunnerCommand;

use super::side::SideMessage;
use crate::host::{HostOptions, HostProgram};

/// Number of a host within its pool.
pub(super) type HostId = u64;

/// Something that has happened.
#[derive(Debug)]
pub(super) enum HostEvent {
    /// The worker has a task for a slot.
    Run { slot: usize, claim: Box<LeasedTask> },
    /// The worker has an order for the attempt in a slot.
    Order { slot: usize, order: RunnerCommand },
    /// The process of a host exists.
    Spawned { host: HostId, pid: u32 },
    /// A host has sent messages.
    Messages {
        host: HostId,
        messages: Vec<(FromHost, Option<Vec<u8>>)>,
    },
    /// A host does not speak the protocol, or has closed its connection.
    Broken { host: HostId, reason: String },
    /// A host is gone, and no process of it is left.
    Exited { host: HostId, exit: ExitStatus },
    /// A host uses this much memory.
    Rss { host: HostId, bytes: u64 },
    /// The worker stops: no more attempts come.
    Close,
    /// Time has passed.
    Time,
}

/// Something to do.
#[derive(Debug)]
pub(super) enum HostEffect {
    /// Start the process of a host.
    Spawn(HostId),
    /// Send bytes to a host.
    Send(HostId, Vec<u8>),
    /// Kill a host with all its children.
    Kill(HostId),
    /// Read how much memory a host uses.
    Measure(HostId),
    /// Report where a host hangs.
    ReportStack(HostId),
    /// An attempt runs.
    Started(AttemptStarted),
    /// An attempt has said something.
    Side(AttemptId, SideMessage),
    /// An attempt is over.
    Ended {
        slot: usize,
        finish: Box<Completion>,
        killed: bool,
    },
    /// Run an attempt in a fresh process.
    Fresh { slot: usize, claim: Box<LeasedTask> },
    /// Pass an order on to an attempt in a fresh process.
    FreshOrder { slot: usize, order: RunnerCommand },
    /// Write to the worker's log.
    Warn(String),
    /// Write to the worker's log.
    Info(String),
}

/// How far an attempt is suspected of having crashed a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Suspicion {
    /// It may share a host.
    None,
    /// It runs in a host without any other.
    Alone,
    /// It runs in a process that is new for it.
    Fresh,
}

/// An attempt of this pool.
#[derive(Debug)]
pub(super) struct PoolAttempt {
    pub(super) claim: Box<LeasedTask>,
    pub(super) kind: RoutineKind,
    pub(super) suspicion: Suspicion,
    /// How many hosts were killed from outside while it ran.
    pub(super) kills: u32,
    pub(super) place: Placement,
    /// How it ends, whatever the host answers.
    pub(super) ending: Option<ExitStatus>,
    /// Whether it was told that it has to end now.
    pub(super) forced: bool,
}

/// Where an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// In no host.
    Waiting,
    /// In a host.
    Host {
        host: HostId,
        /// The number that the host knows it by.
        run: u64,
        acked: bool,
        started_at: jiff::Timestamp,
    },
}

/// The purpose of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Many attempts at once.
    Shared,
    /// One suspect after the other.
    Alone,
    /// One suspect, and no more.
    Fresh,
}

/// How far a host has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not ready yet.
    Starting,
    /// It takes attempts.
    Ready,
    /// It finishes its attempts and takes no more.
    Draining,
    /// It was told to shut down.
    Stopping,
    /// It was killed.
    Killed,
}

/// A host.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) purpose: Purpose,
    pub(super) phase: Phase,
    pub(super) pid: Option<u32>,
    pub(super) greeted: bool,
    /// The slots whose attempts it runs.
    pub(super) running: HashSet<usize>,
    pub(super) plain: usize,
    pub(super) begun: u64,
    pub(super) most_tasks: Option<u64>,
    /// It is replaced as soon as another is ready.
    pub(super) retiring: bool,
    pub(super) concurrency: usize,
    pub(super) threads: usize,
    /// The slot whose attempt it is killed for.
    pub(super) culprit: Option<usize>,
    /// Why it is killed, if it did something wrong itself.
    pub(super) fault: Option<String>,
    pub(super) pings: u64,
    pub(super) pongs: u64,
    /// Since when a ping has not been answered.
    pub(super) unanswered_since: Option<Duration>,
    pub(super) blocked_reported: bool,
    pub(super) ping_is_due: bool,
}

/// The purpose of a timer. Timers whose cause is gone are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// An attempt runs past its timeout.
    Timeout { slot: usize, run: u64 },
    /// The grace of an attempt is over.
    Force { slot: usize, run: u64 },
    /// An attempt that had to end now is still there.
    KillFor { slot: usize, run: u64 },
    /// A host is not ready in time.
    Startup(HostId),
    /// A host has not shut down in time.
    Shutdown(HostId),
    /// A host is old enough.
    Retire(HostId),
    /// Look whether the loop of a host turns.
    Ping(HostId),
    /// A host may be started again.
    Spawn,
}

/// How long an attempt that has to end now may take before its host is killed.
pub(super) const FORCE_WAIT: Duration = Duration::from_millis(500);
/// How often a busy host is asked whether its loop turns.
pub(super) const PING_EVERY: Duration = Duration::from_secs(1);
/// How many tasks are known to have crashed a host alone.
const MOST_POISONS: usize = 1024;

/// The time limits of a worker, as far as hosts need them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grace {
    /// Between the request to end and the last one.
    pub(super) stop: Duration,
    /// The same for one that runs past its timeout.
    pub(super) overtime: Duration,
}

pub(super) struct PoolCore {
    pub(super) options: HostOptions,
    pub(super) grace: Grace,
    pub(super) attempts: HashMap<usize, PoolAttempt>,
    /// The slot of each run.
    pub(super) runs: HashMap<u64, usize>,
    /// Slots without a host, first come first served.
    pub(super) waiting: VecDeque<usize>,
    pub(super) alone: VecDeque<usize>,
    pub(super) fresh: VecDeque<usize>,
    /// Tasks that crashed a host while they were alone in it.
    poisons: VecDeque<Tid>,
    pub(super) hosts: BTreeMap<HostId, Host>,
    pub(super) last_host: HostId,
    last_run: u64,
    pub(super) timers: BinaryHeap<Reverse<(Duration, Timer)>>,
    /// How often in a row a host did not become ready.
    pub(super) start_failures: u32,
    pub(super) last_failure: String,
    /// No host is started before.
    pub(super) spawn_at: Duration,
    pub(super) closing: bool,
    pub(super) effects: Vec<HostEffect>,
    /// How long an attempt of a task may run.
    pub(super) timeouts: HashMap<usize, Duration>,
}

impl PoolCore {
    pub(super) fn new(options: HostOptions, grace: Grace) -> Self {
        Self {
            options,
            grace,
            attempts: HashMap::new(),
            runs: HashMap::new(),
            waiting: VecDeque::new(),
            alone: VecDeque::new(),
            fresh: VecDeque::new(),
            poisons: VecDeque::new(),
            hosts: BTreeMap::new(),
            last_host: 0,
            last_run: 0,
            timers: BinaryHeap::new(),
            start_failures: 0,
            last_failure: String::new(),
            spawn_at: Duration::ZERO,
            closing: false,
            effects: Vec::new(),
            timeouts: HashMap::new(),
        }
    }

    /// Decides what follows from an event. `now` is the age of the pool.
    pub(super) fn on(&mut self, event: HostEvent, now: Duration) {
        match event {
            HostEvent::Run { slot, claim } => self.admit(slot, claim),
            HostEvent::Order { slot, order } => self.order(slot, order, now),
            HostEvent::Spawned { host, pid } => {
                if let Some(host) = self.hosts.get_mut(&host) {
                    host.pid = Some(pid);
                }
            }
            HostEvent::Messages { host, messages } => self.receive(host, messages, now),
            HostEvent::Broken { host, reason } => self.fault(host, reason),
            HostEvent::Exited { host, exit } => self.exited(host, &exit, now),
            HostEvent::Rss { host, bytes } => self.measured(host, bytes),
            HostEvent::Close => self.close(now),
            HostEvent::Time => {}
        }
        self.tick(now);
        self.dispatch(now);
    }

    /// Returns the pending effects, once all events at hand are handled.
    pub(super) fn take_effects(&mut self) -> Vec<HostEffect> {
        std::mem::take(&mut self.effects)
    }

    /// Says how long the next attempt in a slot may run.
    pub(super) fn set_timeout(&mut self, slot: usize, timeout: Option<Duration>) {
        match timeout {
            Some(timeout) => drop(self.timeouts.insert(slot, timeout)),
            None => drop(self.timeouts.remove(&slot)),
        }
    }

    pub(super) fn wake_at(&self) -> Option<Duration> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Why hosts do not start, while none is ready.
    pub(super) fn start_failure(&self) -> Option<&str> {
        let is_ready = |host: &Host| host.phase == Phase::Ready;
        (self.start_failures > 0 && !self.closing && !self.hosts.values().any(is_ready))
            .then_some(self.last_failure.as_str())
    }

    /// Whether nothing is left to wait for after the close.
    pub(super) fn is_closed(&self) -> bool {
        self.closing && self.hosts.is_empty()
    }

    /// The one attempt that a host runs, if it runs one at a time.
    pub(super) fn sole_attempt(&self, host: HostId) -> Option<AttemptId> {
        let host = self.hosts.get(&host)?;
        if host.purpose == Purpose::Shared && self.options.concurrency > 1 {
            return None;
        }
        let slot = (host.running.len() == 1).then(|| host.running.iter().next())??;
        Some(self.attempts.get(slot)?.claim.attempt_id)
    }

    fn admit(&mut self, slot: usize, claim: Box<LeasedTask>) {
        let name = match &claim.spec.target {
            Target::Routine(name) | Target::Handler(name) => name,
            _ => "",
        };
        let kind = self.options.routines.get(name).copied().unwrap_or_default();
        let is_fresh = self.options.is_fresh
            || claim.spec.isolation() > Isolation::Shared
            || self.poisons.contains(&claim.attempt_id.tid);
        self.attempts.insert(
            slot,
            PoolAttempt {
                claim,
                kind,
                suspicion: if is_fresh {
                    Suspicion::Fresh
                } else {
                    Suspicion::None
                },
                kills: 0,
                place: Placement::Waiting,
                ending: None,
                forced: false,
            },
        );
        self.queue(slot, false);
    }

    /// Puts an attempt where it waits for a host.
    pub(super) fn queue(&mut self, slot: usize, is_first: bool) {
        let Some(attempt) = self.attempts.get_mut(&slot) else {
            return;
        };
        attempt.place = Placement::Waiting;
        let queue = match attempt.suspicion {
            Suspicion::None => &mut self.waiting,
            Suspicion::Alone => &mut self.alone,
            Suspicion::Fresh if self.options.program == HostProgram::Own => {
                // A runner forks a fresh process for it, as for any routine that does not share
                // one.
                let attempt = self.attempts.remove(&slot).expect("it is there");
                self.timeouts.remove(&slot);
                return self.effects.push(HostEffect::Fresh {
                    slot,
                    claim: attempt.claim,
                });
            }
            Suspicion::Fresh => &mut self.fresh,
        };
        if is_first {
            queue.push_front(slot);
        } else {
            queue.push_back(slot);
        }
    }

    pub(super) fn remember_poison(&mut self, tid: Tid) {
        if !self.poisons.contains(&tid) {
            self.poisons.truncate(MOST_POISONS - 1);
            self.poisons.push_front(tid);
        }
    }

    /// Gives attempts to hosts with room, and starts and stops hosts as that needs.
    fn dispatch(&mut self, now: Duration) {
        while let Some(slot) = self.next_placeable() {
            let (slot, host) = slot;
            self.begin(slot, host, now);
        }
        for purpose in [Purpose::Alone, Purpose::Fresh] {
            while let Some(host) = self.free_host_for_suspect(purpose) {
                let queue = match purpose {
                    Purpose::Alone => &mut self.alone,
                    _ => &mut self.fresh,
                };
                let Some(slot) = queue.pop_front() else {
                    break;
                };
                self.begin(slot, host, now);
            }
        }
        self.adjust_hosts(now);
    }

    /// The first waiting attempt that a host has room for, taken out of the queue.
    fn next_placeable(&mut self) -> Option<(usize, HostId)> {
        if self.waiting.is_empty() {
            return None;
        }
        let mut full = [None; 2];
        for index in 0..self.waiting.len() {
            let slot = self.waiting[index];
            let Some(attempt) = self.attempts.get(&slot) else {
                self.waiting.remove(index);
                return self.next_placeable();
            };
            let is_plain = attempt.kind == RoutineKind::Plain;
            let known = &mut full[usize::from(is_plain)];
            if known.is_none() {
                *known = Some(());
                if let Some(host) = self.host_with_room(is_plain) {
                    self.waiting.remove(index);
                    return Some((slot, host));
                }
            }
            if full.iter().all(Option::is_some) {
                return None;
            }
        }
        None
    }

    /// The least busy host that may take one more.
    fn host_with_room(&self, is_plain: bool) -> Option<HostId> {
        let room = |host: &Host| {
            let is_open = host.purpose == Purpose::Shared && host.phase == Phase::Ready;
            is_open
                && host
                    .most_tasks
                    .is_none_or(|most| host.begun < most || host.retiring)
                && if is_plain {
                    host.plain < host.threads
                } else {
                    host.running.len() - host.plain < host.concurrency
                }
        };
        self.hosts
            .iter()
            .filter(|(_, host)| room(host))
            .min_by_key(|(_, host)| host.running.len())
            .map(|(id, _)| *id)
    }

    fn free_host_for_suspect(&self, purpose: Purpose) -> Option<HostId> {
        let is_free = |host: &Host| {
            host.purpose == purpose
                && host.phase == Phase::Ready
                && host.running.is_empty()
                && (purpose == Purpose::Alone || host.begun == 0)
        };
        self.hosts
            .iter()
            .find(|(_, host)| is_free(host))
            .map(|(id, _)| *id)
    }

    /// Sends an attempt to a host.
    fn begin(&mut self, slot: usize, host_id: HostId, now: Duration) {
        let (Some(attempt), Some(host)) =
            (self.attempts.get_mut(&slot), self.hosts.get_mut(&host_id))
        else {
            return;
        };
        self.last_run += 1;
        let run = self.last_run;
        attempt.place = Placement::Host {
            host: host_id,
            run,
            acked: false,
            started_at: jiff::Timestamp::now(),
        };
        self.runs.insert(run, slot);
        host.running.insert(slot);
        host.plain += usize::from(attempt.kind == RoutineKind::Plain);
        host.begun += 1;
        let LeasedTask {
            attempt_id,
            spec,
            fencing_token,
        } = &*attempt.claim;
        let (routine, is_handler) = match &spec.target {
            Target::Handler(_) => (self.options.handler.as_deref().unwrap_or_default(), true),
            Target::Routine(name) => (name.as_str(), false),
            _ => ("", false),
        };
        let timeout = self.timeouts.get(&slot).copied();
        let mut start =
            StartAttempt::new(run, routine).with_spec(spec, attempt_id.tid, attempt_id.attempt);
        start.handler = is_handler;
        start.fencing_token = *fencing_token;
        start.worker = Some(attempt_id.owner);
        start.timeout_ms = timeout.map(|timeout| timeout.as_millis() as u64);
        let payload = if is_handler {
            start.kwargs = std::borrow::Cow::Owned(serde_json::Map::new());
            let input = AttemptInput::new(attempt_id.tid, attempt_id.attempt, spec.clone());
            serde_json::to_vec(&input)
        } else {
            serde_json::to_vec(&spec.args)
        };
        let payload = payload.expect("a spec was read from JSON");
        let mut bytes = Vec::with_capacity(256 + payload.len());
        encode_message(&mut bytes, &ToHost::Start(start), Some(&payload));
        if !host.ping_is_due {
            host.ping_is_due = true;
            self.timers
                .push(Reverse((now + PING_EVERY, Timer::Ping(host_id))));
        }
        if let Some(timeout) = timeout {
            self.timers.push(Reverse((
                now.saturating_add(timeout),
                Timer::Timeout { slot, run },
            )));
        }
        self.effects.push(HostEffect::Send(host_id, bytes));
    }

    pub(super) fn send(&mut self, host: HostId, message: &ToHost<'_>) {
        let mut bytes = Vec::new();
        encode_message(&mut bytes, message, None);
        self.effects.push(HostEffect::Send(host, bytes));
    }
}
