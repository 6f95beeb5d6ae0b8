//! What a group is to be like: a process, the workers that it hosts, and how many of it there are. Values only.

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

/// A process, and how many of it there are: a group.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Process {
    /// What it is called.
    #[serde(skip)]
    pub name: String,
    /// The workers in it.
    #[serde(rename = "worker")]
    pub workers: Vec<GroupWorker>,
    /// How many of it there are. More than one only where there is one worker in it, which has no trigger.
    pub replicas: u32,
    /// How many tasks each runs at a time.
    pub concurrency: u32,
    /// How long a process may take to end once what it runs was cancelled.
    pub shutdown_timeout: HumanDuration,
    /// How long it may take until it is ready.
    pub start_timeout: HumanDuration,
    /// How long it may show no progress.
    pub hang_timeout: HumanDuration,
    /// What follows when it ends by itself.
    pub restart: RestartPolicy,
    /// It is replaced after so many tasks.
    pub max_tasks: Option<u64>,
    /// It is replaced at this age.
    pub max_age: Option<HumanDuration>,
    /// It is replaced when it has so much in memory.
    pub max_rss_mb: Option<u64>,
    /// The share of these bounds that is left to chance.
    pub jitter: f64,
    /// In how many hosts its routines run, and so keep state between tasks. Without this and `host`, each task has a
    /// process of its own.
    pub hosts: Option<u32>,
    /// A program, in any language, that runs its routines as a host.
    pub host: Vec<String>,
    /// A command that is run before it takes its first task.
    pub startup: Vec<String>,
    /// A command that is run after its last.
    pub shutdown: Vec<String>,
    /// The processes that have to be up before it is started.
    pub after: Vec<String>,
    /// What it offers to tasks that require it.
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
    /// After how long it ends instead.
    pub give_up_after: Option<HumanDuration>,
}

/// A worker: what is done with the tasks of one queue, its slug, and with the events of others.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GroupWorker {
    /// Its name, and that of its queue.
    pub slug: String,
    /// The queues whose every message is an event for it.
    pub sources: Vec<String>,
    /// How long one task may take.
    pub execution_timeout: HumanDuration,
    /// What becomes of an event that it fails with.
    pub on_error: OnError,
    /// How often it is tried, with `on_error = "retry"`.
    pub retry: Option<RetryPolicy>,
    /// What is run for an event: a program, which has the message on its standard input.
    pub command: Option<Vec<String>>,
    /// What is run for an event: a function, which has the message as its arguments.
    pub routine: Option<String>,
    /// What is run for an event: a handler, which has the message as its arguments.
    pub handler: Option<String>,
    /// When there is an event without a message.
    pub trigger: Option<Trigger>,
    /// What an attempt may use.
    pub limits: Limits,
    /// How far an attempt is kept apart.
    pub isolation: Option<Isolation>,
    /// What is in the environment of an attempt.
    pub env: BTreeMap<String, String>,
    /// Where it is run.
    pub cwd: Option<String>,
}

/// What becomes of an event that a worker fails with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// It is logged, and done with.
    #[default]
    Ack,
    /// It is tried again, and dead when that is used up.
    Retry,
    /// It stands in the dead-letter queue.
    Dead,
}

/// When there is an event without a message.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trigger {
    /// So often.
    pub every: Option<HumanDuration>,
    /// At these times.
    pub cron: Option<Cron>,
    /// The zone that those are in.
    pub timezone: Option<String>,
    /// What becomes of due times that nobody was there for.
    #[serde(default)]
    pub missed: MissedPolicy,
    /// How long after its time an event may still be begun.
    pub lifetime: Option<HumanDuration>,
    /// Each begins up to so much later, by chance.
    pub jitter: Option<HumanDuration>,
}

/// How often an event is tried where that is not said.
const ATTEMPTS: u32 = 3;
/// Where the metadata of an event's task says which message it was, and of which queue.
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
    /// One process of this name, which hosts nothing yet.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// Hosts a worker as well.
    pub fn worker(mut self, worker: GroupWorker) -> Self {
        self.workers.push(worker);
        self
    }

    /// Has so many of it.
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// May take so long to end once what it runs was cancelled.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.shutdown_timeout = HumanDuration(timeout);
        self
    }

    /// Starts when those that are called so are up.
    pub fn after(mut self, name: impl Into<String>) -> Self {
        self.after.push(name.into());
        self
    }

    /// The longest that a task of it may take.
    pub fn longest(&self) -> Duration {
        self.workers
            .iter()
            .map(|worker| worker.execution_timeout.0)
            .max()
            .unwrap_or_default()
    }

    /// How its processes are stopped.
    pub(super) fn stop(&self) -> StopPolicy {
        StopPolicy {
            drain: Some(self.longest()),
            grace: self.shutdown_timeout.0,
        }
    }

    /// How its processes are treated. The number of each process is its place among `names`.
    pub(super) fn policy(&self, names: &[&str]) -> GroupPolicy {
        let number = |name: &String| names.iter().position(|other| other == name).map(GroupId);
        GroupPolicy {
            replicas: self.replicas as usize,
            on: true,
            restart: self.restart,
            stop: self.stop(),
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
    /// A worker for the tasks of the queue `slug`.
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

    /// A worker that calls a function for each event.
    pub fn routine(slug: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            routine: Some(name.into()),
            ..Self::new(slug)
        }
    }

    /// Every message of this queue is an event for it.
    pub fn source(mut self, queue: impl Into<String>) -> Self {
        self.sources.push(queue.into());
        self
    }

    /// One task may take so long.
    pub fn execution_timeout(mut self, timeout: Duration) -> Self {
        self.execution_timeout = HumanDuration(timeout);
        self
    }

    /// What becomes of an event that it fails with.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// There is an event so often.
    pub fn every(mut self, every: Duration) -> Self {
        self.trigger = Some(Trigger {
            every: Some(HumanDuration(every)),
            ..Trigger::default()
        });
        self
    }

    /// What its events are run as, if it says.
    pub(super) fn target(&self) -> Option<Target> {
        let command = self.command.clone().map(Target::Command);
        let routine = || self.routine.clone().map(Target::Routine);
        command
            .or_else(routine)
            .or_else(|| self.handler.clone().map(Target::Handler))
    }

    /// The task that an event is, without its message.
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
                    attempts: ATTEMPTS,
                    ..RetryPolicy::default()
                }),
            ),
        };
        Some(spec)
    }

    /// What is due when it is triggered.
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

/// Whether a task was made of an event: a message, or a due time of a trigger.
pub(super) fn is_event(task: &TaskSpec) -> bool {
    task.metadata.contains_key(SOURCE) || task.metadata.contains_key(SCHEDULE_KEY)
}

/// The task that is made of a message. A command has it as its input; a function as its arguments: an object by their names, a list in their
/// order, anything else as the only one.
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
    fn what_becomes_of_an_error_is_in_the_task() {
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
    fn a_message_is_input_or_arguments() {
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
        let of = |body| {
            with_message(
                GroupWorker::routine("a", "f").event().unwrap(),
                "q",
                "7",
                body,
            )
        };
        assert_eq!(of(r#"{"x": 1}"#).kwargs["x"], 1);
        assert_eq!(of("[1, 2]").args, [Value::from(1), Value::from(2)]);
        assert_eq!(
            (of("3").args, of("three").args),
            (vec![Value::from(3)], vec![Value::from("three")])
        );
    }
}
