//! Options of a worker.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, LazyLock},
    thread,
    time::Duration,
};

use raddle_broker_connect::BrokerUrl;
use raddle_model::{
    CapSet, Tid,
    manager::{REQUEST, SpawnPolicy},
    queue_name::{WAITING, requests},
    spec::{DEFAULT_QUEUE, DOCKER, Isolation, SANDBOX, handler_tag, routine_tag},
    worker::{WorkerInfo, kind},
};

use super::time_limits::TimeLimits;
use crate::{host::HostOptions, plugins::Plugins};
use raddle_model::routine::Routines;

/// How a worker behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name in lists and titles.
    pub name: String,
    /// Capabilities that it offers.
    pub caps: CapSet,
    /// Queues that it serves.
    pub queues: Vec<String>,
    /// Attempts that run at once.
    pub concurrency: u32,
    /// Exit after this idle time. Zero: exit as soon as no task waits.
    pub idle_exit: Option<Duration>,
    /// Exit after this many attempts.
    pub max_tasks: Option<u64>,
    /// Age at which it starts nothing more, and exits after its running attempts.
    pub max_uptime: Option<Duration>,
    /// Run only this task, whatever it requires, and exit when it is finished.
    pub only: Option<Tid>,
    /// Length of its lease: how long after its last renewal others reclaim its tasks.
    pub lease: Duration,
    /// Time between SIGTERM and SIGKILL for an attempt that is stopped.
    pub grace: Duration,
    /// Time limits that apply to every task, and where a supervisor can watch them.
    pub time_limits: TimeLimits,
    /// How long the broker agent may be unreachable before the worker exits. Redis has its own
    /// limit, in its URL.
    pub give_up_after: Duration,
    /// Environment variables for tasks whose spec does not set them.
    pub env: BTreeMap<String, String>,
    /// Minimum isolation. A task that asks for less gets this.
    pub min_isolation: Isolation,
    /// Image for tasks in containers. Without it, and without a Docker engine, the worker takes no
    /// such tasks. The `runner` program must also serve as container supervisor:
    /// [`raddle_container::task::SUPERVISOR_ARGUMENT`].
    pub task_image: Option<String>,
    /// Handler plug-ins.
    pub plugins: Arc<Plugins>,
    /// The spawn policy, if it serves a manager. It then runs nothing else.
    pub spawn_policy: Option<Arc<SpawnPolicy>>,
    /// Hosts for tasks that may share a process.
    pub hosts: Vec<Arc<HostOptions>>,
    /// The program that runners are started from. It must call
    /// `raddle_runner::runner_main_if_requested` first.
    pub runner: PathBuf,
    /// Whether the parent process has already put it into a cgroup that it can use.
    pub in_cgroup: bool,
    /// Whether it fires schedules and expires tasks. Any number of workers may: each due time is
    /// fired once.
    pub schedules: bool,
    /// The task that started it.
    pub parent: Option<Tid>,
    /// Whether it starts paused, and claims nothing until `RESUME`.
    pub paused: bool,
}

const GRACE: Duration = Duration::from_secs(5);
/// As long as a Redis server may be unreachable: both are usually started by the same supervisor.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);

impl Options {
    /// A worker that claims tasks as they come, one per core at a time.
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

    /// The most attempts that it starts.
    pub(super) fn max_attempts(&self) -> Option<u64> {
        self.max_tasks
            .into_iter()
            .chain(self.time_limits.max_tasks)
            .min()
    }

    /// Whether it runs a single task.
    pub(super) fn is_single_task(&self) -> bool {
        self.only.is_some() || self.max_tasks == Some(1)
    }

    /// A worker that claims one task, runs it and exits.
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
            lease: crate::registration::LEASE,
            grace: GRACE,
            time_limits: TimeLimits::default(),
            give_up_after: GIVE_UP_AFTER,
            env: BTreeMap::new(),
            min_isolation: Isolation::Shared,
            task_image: None,
            plugins: Arc::default(),
            spawn_policy: None,
            hosts: Vec::new(),
            runner: "/proc/self/exe".into(),
            in_cgroup: false,
            schedules: false,
            parent: None,
            paused: false,
        }
    }

    /// A worker that takes no tasks and only fires schedules.
    pub fn scheduler() -> Self {
        Self {
            name: kind::SCHEDULER.into(),
            schedules: true,
            ..Self::inline(None)
        }
    }

    /// Adds capabilities for these routines, for those handlers that can run here, for sandboxes,
    /// and for containers if there is an image.
    pub fn offering(mut self, routines: &Routines, plugins: Plugins) -> Self {
        let containers = self.task_image.is_some().then(|| DOCKER.to_owned());
        let isolation = [SANDBOX.to_owned()].into_iter().chain(containers);
        let handlers: Vec<String> = plugins.tags(&self.caps).collect();
        for tag in routines
            .names()
            .map(routine_tag)
            .chain(handlers)
            .chain(isolation)
        {
            // A name that is no valid label cannot be required by a task either.
            let _ = self.caps.insert(&tag);
        }
        self.plugins = Arc::new(plugins);
        self
    }

    /// Keeps these hosts, and offers what they run.
    pub fn hosting(mut self, hosts: impl IntoIterator<Item = HostOptions>) -> Self {
        for hosts in hosts {
            for name in hosts.routines.keys().filter(|_| hosts.handler.is_none()) {
                // A name that is no valid label has no task either.
                let _ = self.caps.insert(&routine_tag(name));
            }
            if let Some(handler) = &hosts.handler {
                let _ = self.caps.insert(&handler_tag(handler));
            }
            self.hosts.push(Arc::new(hosts));
        }
        self
    }

    /// Makes it serve the requests of a manager with this policy: its queues and the capabilities
    /// that the policy lists.
    pub fn with_spawn_policy(mut self, spawn_policy: Arc<SpawnPolicy>) -> Self {
        self.queues = vec![requests(&spawn_policy.kind), WAITING.into()];
        for tag in spawn_policy.registry.names().chain([REQUEST]) {
            // The registry contains only valid labels.
            let _ = self.caps.insert(tag);
        }
        self.spawn_policy = Some(spawn_policy);
        self
    }

    fn kind(&self) -> &'static str {
        match self.max_tasks {
            _ if self.queues.is_empty() && self.schedules => kind::SCHEDULER,
            // Without queues it runs the one task that it was given.
            _ if self.queues.is_empty() => kind::INLINE,
            Some(1) => kind::ONE_SHOT,
            _ => kind::RESIDENT,
        }
    }

    /// The registration of a worker with these options in this process.
    pub fn worker_info(&self) -> WorkerInfo {
        let pid = std::process::id();
        let host_slots = |hosts: &Arc<HostOptions>| hosts.async_slots() + hosts.plain_slots();
        let shared = self.hosts.iter().map(host_slots).sum::<usize>() as u32;
        WorkerInfo {
            capabilities: self.caps.clone(),
            queues: self.queues.clone(),
            concurrency: self.concurrency + shared,
            shared,
            pid,
            born: raddle_runner::process_start_time(pid),
            host: this_host(),
            place: raddle_runner::pid_scope().map(Into::into),
            parent: self.parent,
            ..WorkerInfo::new(&self.name, self.kind())
        }
    }
}

/// Variables of this process that tasks must not see: a queue URL that contains a password.
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

/// Whether the worker's PID names a process of this machine and PID namespace.
pub fn is_local(info: &WorkerInfo) -> bool {
    info.is_at(&this_host(), raddle_runner::pid_scope())
}

/// The name of this machine, as its workers report it.
pub fn this_host() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}
