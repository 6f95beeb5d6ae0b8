//! `Process` and `GroupWorker`: the configuration of a group. Values only.

use std::{collections::BTreeMap, time::Duration};

use raddle_model::{
    HumanDuration, Limits, RetryPolicy, Schedule, Target, TaskSpec,
    schedule::{Cron, MissedPolicy, SCHEDULE_KEY},
    spec::{Isolation, ReservedPolicy},
    stop::StopPolicy,
};
use raddle_supervisor::{
    BackoffScope, GroupId, GroupPolicy, PARALLEL, RecyclePolicy, RestartPolicy,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::event_worker::RegisteredEventWorker;

/// A process and its replicas: a group.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Process {
    /// Its name.
    #[serde(skip)]
    pub name: String,
    /// The workers that it hosts.
    #[serde(rename = "worker")]
    pub workers: Vec<GroupWorker>,
    /// Number of replicas. More than one requires a single worker without a trigger.
    pub replicas: u32,
    /// Attempts that each process runs at once.
    pub concurrency: u32,
    /// How long a process may take to end after its attempts were cancelled.
    pub shutdown_timeout: HumanDuration,
    /// How long it may take to become ready.
    pub start_timeout: HumanDuration,
    /// How long it may show no progress.
    pub hang_timeout: HumanDuration,
    /// Whether it is restarted when it ends by itself.
    pub restart: RestartPolicy,
    /// It is replaced after this many tasks.
    pub max_tasks: Option<u64>,
    /// It is replaced at this age.
    pub max_age: Option<HumanDuration>,
    /// It is replaced when it uses this much memory.
    pub max_rss_mb: Option<u64>,
    /// Random part of the three limits above.
    pub jitter: f64,
    /// Number of hosts that run its routines and keep state between tasks. Without it there is one
    /// if the process has routines or a `host`; with 0, each task has its own process.
    pub hosts: Option<u32>,
    /// A program in any language that runs its routines as a host.
    pub host: Vec<String>,
    /// A command to run before the first task.
    pub startup: Vec<String>,
    /// A command to run after the last task.
    pub shutdown: Vec<String>,
    /// Processes that must be up before it starts.
    pub after: Vec<String>,
    /// Capabilities that it offers.
    pub caps: Vec<String>,
    /// How it reconnects to Redis.
    pub reconnect: Option<ReconnectPolicy>,
}

/// How a process reconnects to Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReconnectPolicy {
    /// The first pause. It doubles from there.
    pub initial: Option<HumanDuration>,
    /// The longest pause.
    pub max: Option<HumanDuration>,
    /// How long to retry before the process ends.
    pub give_up_after: Option<HumanDuration>,
}

/// A worker: what runs for tasks of its queue, the slug, and for events.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GroupWorker {
    /// Its name, which is also the name of its queue.
    pub slug: String,
    /// Queues whose messages are events for it.
    pub sources: Vec<String>,
    /// Timeout of an attempt.
    pub execution_timeout: HumanDuration,
    /// The fate of an event whose task fails.
    pub on_error: OnError,
    /// Retry policy, with `on_error = "retry"`.
    pub retry: Option<RetryPolicy>,
    /// Runs a program for an event, with the message on stdin.
    pub command: Option<Vec<String>>,
    /// Runs a routine for an event, with the message as arguments.
    pub routine: Option<String>,
    /// Runs a handler for an event, with the message as arguments.
    pub handler: Option<String>,
    /// Makes events without a message at certain times.
    pub trigger: Option<Trigger>,
    /// Limits of an attempt.
    pub limits: Limits,
    /// Isolation of an attempt.
    pub isolation: Option<Isolation>,
    /// Environment variables of an attempt.
    pub env: BTreeMap<String, String>,
    /// Working directory of an attempt.
    pub cwd: Option<String>,
}

/// The fate of an event whose task fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// It is logged.
    #[default]
    Ack,
    /// It is retried, and dead-lettered when the retries are exhausted.
    Retry,
    /// It is dead-lettered.
    Dead,
}

/// When to make events without a message.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trigger {
    /// At this interval.
    pub every: Option<HumanDuration>,
    /// At these times.
    pub cron: Option<Cron>,
    /// Their time zone.
    pub timezone: Option<String>,
    /// The policy for missed due times.
    #[serde(default)]
    pub missed: MissedPolicy,
    /// How long after its due time an event may start.
    pub lifetime: Option<HumanDuration>,
    /// Random delay of each event.
    pub jitter: Option<HumanDuration>,
}

/// Default number of attempts.
const DEFAULT_ATTEMPTS: u32 = 3;
/// Metadata keys of an event's task: the source queue and the message id.
const SOURCE: &str = "source";
const MESSAGE: &str = "message";

impl Default for Process {
    fn default() -> Self {
        Self {
            name: String::new(),
            workers: Vec::new(),
            replicas: 1,
            concurrency: 1,
            shutdown_timeout: HumanDuration::secs(20),
            start_timeout: HumanDuration::secs(30),
            hang_timeout: HumanDuration::secs(10),
            restart: RestartPolicy::default(),
            max_tasks: None,
            max_age: None,
            max_rss_mb: None,
            jitter: 0.1,
            hosts: None,
            host: Vec::new(),
            startup: Vec::new(),
            shutdown: Vec::new(),
            after: Vec::new(),
            caps: Vec::new(),
            reconnect: None,
        }
    }
}

impl Default for GroupWorker {
    fn default() -> Self {
        Self {
            slug: String::new(),
            sources: Vec::new(),
            execution_timeout: HumanDuration::secs(60),
            on_error: OnError::default(),
            retry: None,
            command: None,
            routine: None,
            handler: None,
            trigger: None,
            limits: Limits::default(),
            isolation: None,
            env: BTreeMap::new(),
            cwd: None,
        }
    }
}

impl Process {
    /// A process with this name, without workers.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// Adds a worker.
    pub fn worker(mut self, worker: GroupWorker) -> Self {
        self.workers.push(worker);
        self
    }

    /// Sets the number of replicas.
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets how long it may take to end after its attempts were cancelled.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.shutdown_timeout = HumanDuration(timeout);
        self
    }

    /// Starts after the process with this name is up.
    pub fn after(mut self, name: impl Into<String>) -> Self {
        self.after.push(name.into());
        self
    }

    /// Adds an event worker of this program.
    pub fn hosting<W: RegisteredEventWorker>(self) -> Self {
        let mut worker = W::settings();
        worker.routine = Some(W::ROUTINE.into());
        self.worker(worker)
    }

    /// How many hosts each of its processes has.
    pub(super) fn host_count(&self) -> u32 {
        let has_routines = self.workers.iter().any(|worker| worker.routine.is_some());
        self.hosts
            .unwrap_or(u32::from(has_routines || !self.host.is_empty()))
    }

    /// The longest timeout of its workers.
    pub fn longest_timeout(&self) -> Duration {
        self.workers
            .iter()
            .map(|worker| worker.execution_timeout.0)
            .max()
            .unwrap_or_default()
    }

    /// How its processes are stopped.
    pub(super) fn stop_policy(&self) -> StopPolicy {
        StopPolicy {
            drain: Some(self.longest_timeout()),
            grace: self.shutdown_timeout.0,
        }
    }

    /// The policy for the supervisor. A process has the index of its name in `names` as its group
    /// id.
    pub(super) fn policy(&self, names: &[&str]) -> GroupPolicy {
        let number = |name: &String| names.iter().position(|other| other == name).map(GroupId);
        GroupPolicy {
            replicas: self.replicas as usize,
            on: true,
            restart: self.restart,
            stop: self.stop_policy(),
            start_timeout: Some(self.start_timeout.0),
            hang_timeout: Some(self.hang_timeout.0),
            recycle: RecyclePolicy {
                tasks: self.max_tasks,
                age: self.max_age.map(|age| age.0),
                rss: self.max_rss_mb.map(|mb| mb << 20),
                jitter: self.jitter,
            },
            after: self.after.iter().filter_map(number).collect(),
            parallel: PARALLEL,
            backoff_scope: BackoffScope::Slot,
        }
    }
}

impl GroupWorker {
    /// A worker for tasks of the queue `slug`.
    pub fn new(slug: impl Into<String>) -> Self {
        Self {
            slug: slug.into(),
            ..Self::default()
        }
    }

    /// A worker that runs a program for each event.
    pub fn command<S: Into<String>>(
        slug: impl Into<String>,
        argv: impl IntoIterator<Item = S>,
    ) -> Self {
        Self {
            command: Some(argv.into_iter().map(Into::into).collect()),
            ..Self::new(slug)
        }
    }

    /// A worker that runs a routine for each event.
    pub fn routine(slug: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            routine: Some(name.into()),
            ..Self::new(slug)
        }
    }

    /// Adds a source queue.
    pub fn source(mut self, queue: impl Into<String>) -> Self {
        self.sources.push(queue.into());
        self
    }

    /// Sets the timeout of an attempt.
    pub fn execution_timeout(mut self, timeout: Duration) -> Self {
        self.execution_timeout = HumanDuration(timeout);
        self
    }

    /// Sets what happens to an event whose task fails.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Makes an event at this interval.
    pub fn every(mut self, every: Duration) -> Self {
        self.trigger = Some(Trigger {
            every: Some(HumanDuration(every)),
            ..Trigger::default()
        });
        self
    }

    /// The target of its events, if it has one.
    pub(super) fn target(&self) -> Option<Target> {
        let command = self.command.clone().map(Target::Command);
        let routine = || self.routine.clone().map(Target::Routine);
        command
            .or_else(routine)
            .or_else(|| self.handler.clone().map(Target::Handler))
    }

    /// The task for an event, without its message.
    pub(super) fn event(&self) -> Option<TaskSpec> {
        let mut spec = TaskSpec::new(self.target()?);
        spec.name = Some(self.slug.clone());
        spec.queue = self.slug.clone();
        spec.timeout = Some(self.execution_timeout);
        spec.limits = self.limits.clone();
        spec.isolation = self.isolation;
        spec.env = self.env.clone();
        spec.cwd = self.cwd.clone();
        (spec.on_error, spec.retry) = match self.on_error {
            OnError::Ack => (ReservedPolicy::Clear, RetryPolicy::default()),
            OnError::Dead => (ReservedPolicy::Keep, RetryPolicy::default()),
            OnError::Retry => (
                ReservedPolicy::Keep,
                self.retry.clone().unwrap_or(RetryPolicy {
                    attempts: DEFAULT_ATTEMPTS,
                    ..RetryPolicy::default()
                }),
            ),
        };
        Some(spec)
    }

    /// The schedule of its trigger.
    pub(super) fn schedule(&self) -> Option<Schedule> {
        let Trigger {
            every,
            cron,
            timezone,
            missed,
            lifetime,
            jitter,
        } = self.trigger.clone()?;
        let (name, task) = (self.slug.clone(), self.event()?);
        Some(Schedule {
            name,
            every,
            cron,
            timezone,
            start: None,
            missed,
            lifetime,
            jitter,
            paused: false,
            task,
        })
    }
}

/// Whether a task was made from an event: a message, or a due time of a trigger.
pub(super) fn is_event(task: &TaskSpec) -> bool {
    task.metadata.contains_key(SOURCE) || task.metadata.contains_key(SCHEDULE_KEY)
}

/// The task for a message. A command gets it on stdin; a routine as arguments: an object as named
/// ones, a list as positional ones, anything else as the only one.
pub(super) fn with_message(mut event: TaskSpec, source: &str, id: &str, body: &str) -> TaskSpec {
    event.metadata.insert(SOURCE.into(), source.into());
    event.metadata.insert(MESSAGE.into(), id.into());
    if let Target::Command(_) = event.target {
        event.stdin = Some(body.to_owned());
        return event;
    }
    match serde_json::from_str(body) {
        Ok(Value::Object(named)) => event.kwargs = named,
        Ok(Value::Array(positional)) => event.args = positional,
        Ok(other) => event.args = vec![other],
        Err(_) => event.args = vec![body.into()],
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_error_becomes_part_of_the_task() {
        let spec = |on_error| {
            GroupWorker::command("mail", ["true"])
                .on_error(on_error)
                .event()
                .unwrap()
        };
        assert_eq!(
            (
                spec(OnError::Ack).on_error,
                spec(OnError::Ack).retry.attempts
            ),
            (ReservedPolicy::Clear, 1)
        );
        assert_eq!(
            (
                spec(OnError::Dead).on_error,
                spec(OnError::Dead).retry.attempts
            ),
            (ReservedPolicy::Keep, 1)
        );
        assert_eq!(
            (
                spec(OnError::Retry).on_error,
                spec(OnError::Retry).retry.attempts
            ),
            (ReservedPolicy::Keep, 3)
        );
        assert_eq!(spec(OnError::Ack).queue, "mail");
    }

    #[test]
    fn a_message_becomes_stdin_or_arguments() {
        let command = with_message(
            GroupWorker::command("a", ["cat"]).event().unwrap(),
            "q",
            "7",
            "hello",
        );
        assert_eq!(
            (
                command.stdin.as_deref(),
                command.metadata["source"].as_str()
            ),
            (Some("hello"), Some("q"))
        );
        let event = |body| {
            with_message(
                GroupWorker::routine("a", "f").event().unwrap(),
                "q",
                "7",
                body,
            )
        };
        assert_eq!(event(r#"{"x": 1}"#).kwargs["x"], 1);
        assert_eq!(event("[1, 2]").args, [Value::from(1), Value::from(2)]);
        assert_eq!(
            (event("3").args, event("three").args),
            (vec![Value::from(3)], vec![Value::from("three")])
        );
    }
}
