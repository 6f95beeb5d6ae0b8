//! Task specs: one serde type for JSON and TOML, immutable once submitted.

mod mount;
pub mod network;
pub(crate) mod parse;
pub(crate) mod table;
mod target;
pub(crate) mod validate;

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    AttemptCounters, CapSet, HumanDuration, Limits, RetryPolicy, Tid,
    text::{is_default, names},
    time::{nanos_after, unix_nanos},
    trace::{TraceParent, TraceState},
};

pub use mount::{Mount, ParseMountError};
pub use network::NetworkPolicy;
pub use parse::ParseSpecError;
pub use validate::{InvalidSpec, MAX_SPEC_BYTES, is_label};

/// Queue of tasks that name none.
pub const DEFAULT_QUEUE: &str = "default";
/// Prefix of a queue that only one `raddle run --each-line` or `--array` serves.
pub const RUN_QUEUE_PREFIX: &str = "raddle.run.";
/// Handler name that leaves the choice to the worker: the first handler that provides the required
/// capabilities.
pub const ANY_HANDLER: &str = "any";
/// Capability implied by the isolation `sandbox`.
pub const SANDBOX: &str = "@sandbox";
/// Capability implied by the isolation `docker`.
pub const DOCKER: &str = "@docker";
/// Priority of tasks that name none: in the middle, so that others can be above or below.
pub const DEFAULT_PRIORITY: u8 = 5;
/// How long the record of a finished task is kept by default.
pub const DEFAULT_RESULT_TTL: HumanDuration = HumanDuration::secs(7 * 86_400);

/// Metadata key of a resubmitted task that names the original task.
const RETRY_OF: &str = "retry_of";

/// A task as submitted: target, placement, retries and limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    /// Label for human readers, shown in lists and process titles. The default derives from the
    /// target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Target of each attempt.
    pub target: Target,
    /// Positional arguments of a routine or handler.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Value>,
    /// Named arguments of a routine or handler.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub kwargs: serde_json::Map<String, Value>,
    /// Standard input of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Capabilities that a worker must have to claim the task.
    #[serde(default, skip_serializing_if = "CapSet::is_empty")]
    pub requires: CapSet,
    /// Label for metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Batch of the task: its tasks are counted, awaited and stopped together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
    /// Queue in which the task waits.
    #[serde(default = "default_queue", skip_serializing_if = "is_default_queue")]
    pub queue: String,
    /// 0 to 9; higher runs first.
    #[serde(
        default = "default_priority",
        skip_serializing_if = "is_default_priority"
    )]
    pub priority: u8,
    /// How long to wait before the first attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<HumanDuration>,
    /// When to start the first attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// How long the task may wait before a worker claims it. After that it expires and never runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<HumanDuration>,
    /// Like `lifetime`, as a point in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_before: Option<Timestamp>,
    /// Time limit of one attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<HumanDuration>,
    /// Resource limits of one attempt.
    #[serde(
        default,
        skip_serializing_if = "Limits::is_empty",
        deserialize_with = "table::only"
    )]
    pub limits: Limits,
    /// How often to try, and how long to wait in between.
    #[serde(
        default,
        skip_serializing_if = "is_default",
        deserialize_with = "table::only"
    )]
    pub retry: RetryPolicy,
    /// Fate of the message in `reserved` when the task is stopped on request.
    #[serde(
        default = "ReservedPolicy::clear",
        skip_serializing_if = "ReservedPolicy::is_clear"
    )]
    pub on_stop: ReservedPolicy,
    /// Fate of the message in `reserved` when the attempts are used up.
    #[serde(
        default = "ReservedPolicy::keep",
        skip_serializing_if = "ReservedPolicy::is_keep"
    )]
    pub on_error: ReservedPolicy,
    /// How strongly the attempt must at least be isolated. Without it, [`TaskSpec::isolation`]
    /// decides by the target and the limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Whether a sandbox may omit the parts that the host's kernel refuses, instead of failing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub isolation_fallback: bool,
    /// Network endpoints that an isolated attempt can reach.
    #[serde(default, skip_serializing_if = "NetworkPolicy::is_none")]
    pub network: NetworkPolicy,
    /// Host files that are visible in a sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Environment variables added to the worker's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Working directory of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Deduplication key: while a task with this key is unfinished, submitting another returns the
    /// first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// How long the record is kept after the task has finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_ttl: Option<HumanDuration>,
    /// W3C trace context that the task belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<TraceParent>,
    /// Vendor-specific part of the trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<TraceState>,
    /// Arbitrary data of the submitter.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metadata: serde_json::Map<String, Value>,
}

/// Target of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Target {
    /// A program with its arguments: text in, text out.
    Command(Vec<String>),
    /// A registered Rust function.
    Routine(String),
    /// A named plug-in.
    Handler(String),
    /// A long-lived process of Raddle itself. Services are tasks too, but register themselves; they
    /// cannot be submitted.
    Service(String),
    /// A request to a manager, as it was written. The manager's
    /// [`SpawnPolicy`](crate::manager::SpawnPolicy) decides what runs for it.
    Request(String),
}

/// When the first attempt may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartTime {
    /// This long after the submission.
    After(Duration),
    /// At this time.
    At(Timestamp),
}

/// Fate of a task's message in `reserved` once the attempt that took it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReservedPolicy {
    /// The message returns to the queue, and the task runs again.
    Requeue,
    /// The message is kept for inspection: an exhausted task goes to the dead-letter queue.
    Keep,
    /// The message is removed.
    Clear,
}

/// How strongly an attempt is isolated from its host, in ascending order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Isolation {
    /// A host: a warm process that runs many attempts and keeps state between them.
    #[default]
    Shared,
    /// A process of its own, new at the beginning and gone at the end.
    Process,
    /// Namespaces and seccomp filters.
    Sandbox,
    /// A container.
    Docker,
}

impl TaskSpec {
    /// Creates a spec with every field but the target at its default.
    pub fn new(target: Target) -> Self {
        Self {
            name: None,
            target,
            args: Vec::new(),
            kwargs: serde_json::Map::new(),
            stdin: None,
            requires: CapSet::new(),
            kind: None,
            batch: None,
            queue: default_queue(),
            priority: DEFAULT_PRIORITY,
            delay: None,
            run_at: None,
            lifetime: None,
            run_before: None,
            timeout: None,
            limits: Limits::default(),
            retry: RetryPolicy::default(),
            on_stop: ReservedPolicy::Clear,
            on_error: ReservedPolicy::Keep,
            isolation: None,
            isolation_fallback: false,
            network: NetworkPolicy::None,
            mounts: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            unique_key: None,
            result_ttl: None,
            traceparent: None,
            tracestate: None,
            metadata: serde_json::Map::new(),
        }
    }

    /// Creates a spec that runs a program.
    pub fn command<I, S>(argv: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<String>,
    {
        Self::new(Target::Command(argv.into_iter().map(Into::into).collect()))
    }

    /// Returns the name to show: the given one, or one derived from the target.
    pub fn display_name(&self) -> &str {
        let target_name = || match &self.target {
            Target::Command(argv) => argv
                .first()
                .map_or("", |program| program.rsplit('/').next().unwrap_or(program)),
            Target::Routine(name) | Target::Handler(name) | Target::Service(name) => name,
            Target::Request(_) => "request",
        };
        self.name.as_deref().unwrap_or_else(target_name)
    }

    /// Returns the capabilities that a worker must offer to claim the task: the required ones, and
    /// those that the target and the isolation imply.
    ///
    /// Implied capabilities begin with `@`. They keep a worker from claiming a target or isolation
    /// that it cannot run.
    pub fn needs(&self) -> CapSet {
        let mut needs = self.requires.clone();
        let mut imply = |tag: &str| {
            // `validate` refuses names that are not valid tags. Without it, no worker could offer
            // such a tag either.
            let _ = needs.insert(tag);
        };
        match &self.target {
            Target::Command(_) => {}
            Target::Routine(name) => imply(&routine_tag(name)),
            Target::Handler(name) => imply(&handler_tag(name)),
            Target::Service(_) => imply("@service"),
            Target::Request(_) => imply(crate::manager::REQUEST),
        }
        match self.isolation() {
            Isolation::Shared | Isolation::Process => {}
            Isolation::Sandbox => imply(SANDBOX),
            Isolation::Docker => imply(DOCKER),
        }
        needs
    }

    /// Returns the weakest isolation that the task accepts: the one it names, or `shared` for a
    /// routine or handler that needs nothing only a process can have, and `process` for anything
    /// else. A worker without hosts gives a `shared` task a process of its own.
    pub fn isolation(&self) -> Isolation {
        self.isolation
            .unwrap_or_else(|| match self.process_only_key() {
                None => Isolation::Shared,
                Some(_) => Isolation::Process,
            })
    }

    /// Returns the first key of the spec that a shared attempt cannot honour, and why.
    pub fn process_only_key(&self) -> Option<(&'static str, &'static str)> {
        const LIMIT: &str = "is a limit of a process, and a host runs many attempts in one: use the isolation 'process', or limit the host";
        let Limits {
            memory_mb,
            cpu_percent,
            max_fds,
            max_procs,
        } = &self.limits;
        let target = !matches!(self.target, Target::Routine(_) | Target::Handler(_));
        [
            (target, "isolation", "'shared' is for routines and handlers: a command always has a process of its own"),
            (memory_mb.is_some(), "limits.memory_mb", LIMIT),
            (cpu_percent.is_some(), "limits.cpu_percent", LIMIT),
            (max_fds.is_some(), "limits.max_fds", LIMIT),
            (max_procs.is_some(), "limits.max_procs", LIMIT),
            (self.cwd.is_some(), "cwd", "is the directory of a process, and a host has one for all its attempts: use the isolation 'process'"),
            (!self.env.is_empty(), "env", "is the environment of a process, and a host has one for all its attempts: use the isolation 'process'"),
        ]
        .into_iter()
        .find_map(|(holds, key, why)| holds.then_some((key, why)))
    }

    /// Returns when the first attempt may start, or `None` for immediately. A delay takes
    /// precedence over a time.
    pub fn start(&self) -> Option<StartTime> {
        let after = self.delay.map(|delay| StartTime::After(delay.0));
        after.or(self.run_at.map(StartTime::At))
    }

    /// Returns whether the task expires if no worker claims it.
    pub fn expires(&self) -> bool {
        self.lifetime.is_some() || self.run_before.is_some()
    }

    /// Returns when a task of this id expires, in nanoseconds since the epoch. A lifetime takes
    /// precedence over a time.
    pub fn expires_at(&self, tid: Tid) -> Option<i64> {
        // An id is the time of submission.
        let after = self
            .lifetime
            .map(|lifetime| nanos_after(tid.as_i64(), lifetime.0));
        after.or(self.run_before.map(unix_nanos))
    }

    /// Returns whether a waiting task with this history has expired by `now`, in nanoseconds since
    /// the epoch. A task that has run does not expire: it started in time, and may be retried
    /// later.
    pub fn has_expired(&self, tid: Tid, counters: AttemptCounters, now: i64) -> bool {
        counters.is_unrun() && self.expires_at(tid).is_some_and(|at| at <= now)
    }

    /// Returns the spec for running the same task again. The start and expiry times of the original
    /// do not apply.
    pub fn once_more(self, first: Tid) -> Self {
        let mut repeated = Self {
            delay: None,
            run_at: None,
            run_before: None,
            ..self
        };
        if repeated.queue.starts_with(RUN_QUEUE_PREFIX) {
            // The run has ended, or does not wait for this task: an ordinary worker takes it.
            repeated.queue = default_queue();
        }
        repeated
            .metadata
            .insert(RETRY_OF.into(), Value::String(first.to_string()));
        repeated
    }

    /// Returns whether this is a long-lived process of Raddle itself.
    pub fn is_service(&self) -> bool {
        matches!(self.target, Target::Service(_))
    }

    /// Returns how long the record is kept after the task has finished.
    pub fn result_ttl(&self) -> HumanDuration {
        self.result_ttl.unwrap_or(DEFAULT_RESULT_TTL)
    }
}

/// Returns the capability of workers that have this routine.
pub fn routine_tag(name: &str) -> String {
    format!("@routine:{name}")
}

/// Returns the capability of workers that may run this handler. Every worker with a handler also
/// offers [`ANY_HANDLER`].
pub fn handler_tag(name: &str) -> String {
    format!("@handler:{name}")
}

impl ReservedPolicy {
    fn clear() -> Self {
        Self::Clear
    }

    fn keep() -> Self {
        Self::Keep
    }

    fn is_clear(&self) -> bool {
        *self == Self::Clear
    }

    fn is_keep(&self) -> bool {
        *self == Self::Keep
    }
}

names! {
    Isolation {
        Shared => "shared",
        Process => "process",
        Sandbox => "sandbox",
        Docker => "docker",
    }
}

fn default_queue() -> String {
    DEFAULT_QUEUE.into()
}

fn is_default_queue(queue: &str) -> bool {
    queue == DEFAULT_QUEUE
}

fn default_priority() -> u8 {
    DEFAULT_PRIORITY
}

fn is_default_priority(priority: &u8) -> bool {
    *priority == DEFAULT_PRIORITY
}

#[cfg(test)]
mod tests;
