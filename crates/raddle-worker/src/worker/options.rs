//! How a worker behaves.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, LazyLock},
    thread,
    time::Duration,
};

use raddle_broker::BrokerUrl;
use raddle_model::{
    CapSet, Tid,
    manager::{REQUEST, SpawnPolicy},
    queue_name::{WAITING, requests},
    spec::{DEFAULT_QUEUE, DOCKER, Isolation, SANDBOX, handler_tag, routine_tag},
    worker::{WorkerInfo, kind},
};

use super::time_limits::TimeLimits;
use crate::{handler::Plugins, host::HostOptions, routine::Routines};

/// How a worker behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name, for lists and titles.
    pub name: String,
    /// What it offers.
    pub caps: CapSet,
    /// The queues it serves.
    pub queues: Vec<String>,
    /// How many attempts it runs at once.
    pub concurrency: u32,
    /// It leaves after having had nothing to do for so long; with zero, as soon as nothing is waiting.
    pub idle_exit: Option<Duration>,
    /// It leaves after having begun so many attempts.
    pub max_tasks: Option<u64>,
    /// When it is so old it takes nothing new, and leaves after what it runs.
    pub max_uptime: Option<Duration>,
    /// It runs this task and no other, whatever the task needs, and leaves when that is over.
    pub only: Option<Tid>,
    /// How long others wait after its last sign of life before they take its tasks over.
    pub lease: Duration,
    /// How long what is told to end may take before it is killed.
    pub grace: Duration,
    /// How long tasks may take, whatever they say themselves, and what somebody sees of that.
    pub bound: TimeLimits,
    /// How long the agent that it reaches its broker through may be away before it ends. Redis has a bound of its own, in its URL.
    pub give_up_after: Duration,
    /// What is in the environment of tasks whose spec does not set it otherwise.
    pub env: BTreeMap<String, String>,
    /// How far it keeps every task apart, at least. One that asks for less is given this.
    pub min_isolation: Isolation,
    /// What it makes containers from, for tasks that are to run in one of their own. Without it, and without a Docker engine, it takes none.
    /// The program that runners are started from has to be a leash as well: [`crate::contained::LEASH`].
    pub task_image: Option<String>,
    /// The handlers it has.
    pub plugins: Arc<Plugins>,
    /// What its manager may spawn, if it has one that is asked: nothing else is run.
    pub charter: Option<Arc<SpawnPolicy>>,
    /// The hosts that it keeps, for tasks that may share a process.
    pub hosts: Vec<Arc<HostOptions>>,
    /// The program that runners are started from; it calls `raddle_runner::runner_main_if_asked` first.
    pub runner: PathBuf,
    /// Whoever has started it has looked for a control group to work in, and it is in that.
    pub grouped: bool,
    /// Whether it fires schedules, and ends tasks that have expired. Any number may: each due time is fired once.
    pub schedules: bool,
    /// The task that has started it, if one has.
    pub parent: Option<Tid>,
    /// Whether it begins paused: then it takes nothing before it is told to go on.
    pub paused: bool,
}

/// A worker that dies is replaced within seconds, and one that is only slow is not: it renews four times as often.
const LEASE: Duration = Duration::from_secs(3);
const GRACE: Duration = Duration::from_secs(5);
/// As long as a server on another machine may be away: whoever started the one started the other.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);

impl Options {
    /// A worker that takes tasks as they come, one per core at a time.
    pub fn resident() -> Self {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        Self {
            concurrency: cores,
            max_tasks: None,
            schedules: true,
            ..Self::one_shot()
        }
    }

    pub(super) fn slots(&self) -> usize {
        self.concurrency.max(1) as usize
    }

    /// How many attempts it begins at most.
    pub(super) fn most_tasks(&self) -> Option<u64> {
        self.max_tasks.into_iter().chain(self.bound.max_tasks).min()
    }

    /// Whether it is there for one task alone.
    pub(super) fn is_for_one(&self) -> bool {
        self.only.is_some() || self.max_tasks == Some(1)
    }

    /// A worker that takes one task as it comes, runs it and leaves.
    pub fn one_shot() -> Self {
        let (name, queues) = ("worker".into(), vec![DEFAULT_QUEUE.into()]);
        Self {
            name,
            queues,
            concurrency: 1,
            max_tasks: Some(1),
            ..Self::inline(None)
        }
    }

    /// A worker for one task, in the process that submitted it.
    pub fn inline(tid: Option<Tid>) -> Self {
        Self {
            name: kind::INLINE.into(),
            caps: CapSet::new(),
            queues: Vec::new(),
            concurrency: 1,
            idle_exit: None,
            max_tasks: None,
            max_uptime: None,
            only: tid,
            lease: LEASE,
            grace: GRACE,
            bound: TimeLimits::default(),
            give_up_after: GIVE_UP_AFTER,
            env: BTreeMap::new(),
            min_isolation: Isolation::Shared,
            task_image: None,
            plugins: Arc::default(),
            charter: None,
            hosts: Vec::new(),
            runner: "/proc/self/exe".into(),
            grouped: false,
            schedules: false,
            parent: None,
            paused: false,
        }
    }

    /// A worker that takes no tasks, and fires schedules alone.
    pub fn scheduler() -> Self {
        Self {
            name: kind::SCHEDULER.into(),
            schedules: true,
            ..Self::inline(None)
        }
    }

    /// Offers these routines, and those of these handlers that may run here, to tasks; a sandbox, which every worker has; and containers, if there is an
    /// image for them.
    pub fn offering(mut self, routines: &Routines, plugins: Plugins) -> Self {
        let containers = self.task_image.is_some().then(|| DOCKER.to_owned());
        let apart = [SANDBOX.to_owned()].into_iter().chain(containers);
        let handlers: Vec<String> = plugins.tags(&self.caps).collect();
        for tag in routines
            .names()
            .map(routine_tag)
            .chain(handlers)
            .chain(apart)
        {
            // A name that is no label has no task either.
            let _ = self.caps.insert(&tag);
        }
        self.plugins = Arc::new(plugins);
        self
    }

    /// Keeps these hosts, and offers what they run.
    pub fn hosting(mut self, hosts: impl IntoIterator<Item = HostOptions>) -> Self {
        for hosts in hosts {
            for name in hosts.routines.keys().filter(|_| hosts.handler.is_none()) {
                // A name that is no label has no task either.
                let _ = self.caps.insert(&routine_tag(name));
            }
            if let Some(handler) = &hosts.handler {
                let _ = self.caps.insert(&handler_tag(handler));
            }
            self.hosts.push(Arc::new(hosts));
        }
        self
    }

    /// Spawns what is asked of a manager with this charter: it serves the queues of that, and offers what that lists.
    pub fn chartered(mut self, charter: Arc<SpawnPolicy>) -> Self {
        self.queues = vec![requests(&charter.kind), WAITING.into()];
        for tag in charter.registry.names().chain([REQUEST]) {
            // Names that are no tags are in no registry.
            let _ = self.caps.insert(tag);
        }
        self.charter = Some(charter);
        self
    }

    fn kind(&self) -> &'static str {
        match self.max_tasks {
            _ if self.queues.is_empty() && self.schedules => kind::SCHEDULER,
            // One that serves no queue is there for a task that it was given.
            _ if self.queues.is_empty() => kind::INLINE,
            Some(1) => kind::ONE_SHOT,
            _ => kind::RESIDENT,
        }
    }

    pub(crate) fn info(&self) -> WorkerInfo {
        let pid = std::process::id();
        WorkerInfo {
            capabilities: self.caps.clone(),
            queues: self.queues.clone(),
            concurrency: self.concurrency,
            pid,
            born: raddle_runner::process_start_time(pid),
            host: this_host(),
            place: raddle_runner::place().map(Into::into),
            parent: self.parent,
            ..WorkerInfo::new(&self.name, self.kind())
        }
    }
}

/// Variables of this process that its tasks do not see: a queue URL with a password in it.
pub(super) fn secret_variables() -> &'static [&'static str] {
    const QUEUE_URL: [&str; 1] = ["QUEUE_URL"];
    static SECRET: LazyLock<bool> = LazyLock::new(|| {
        let url = std::env::var(QUEUE_URL[0])
            .ok()
            .and_then(|url| url.parse::<BrokerUrl>().ok());
        url.is_some_and(|url| url.has_password())
    });
    if *SECRET { &QUEUE_URL } else { &[] }
}

/// Whether the process of a worker can be looked at here, by its number.
pub fn is_local(info: &WorkerInfo) -> bool {
    info.is_at(&this_host(), raddle_runner::place())
}

/// The name of this machine, as workers on it give it.
pub fn this_host() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}
