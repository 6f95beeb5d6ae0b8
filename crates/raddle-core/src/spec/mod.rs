//! What a task is to do: one serde type for JSON and TOML, immutable once submitted.

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
    CapSet, Limits, Retry, Span, Tally, Tid,
    moment::{nanos_after, unix_nanos},
    text::{is_default, names},
    trace::{TraceParent, TraceState},
};

pub use mount::{Mount, ParseMountError};
pub use network::Network;
pub use parse::ParseSpecError;
pub use validate::{InvalidSpec, MAX_SPEC_BYTES, is_label};

/// The queue of tasks that name none.
pub const DEFAULT_QUEUE: &str = "default";
/// The handler of tasks that leave the choice to the worker: the first that provides what they require.
pub const ANY_HANDLER: &str = "any";
/// What a task needs that is to run in a sandbox.
pub const SANDBOX: &str = "@sandbox";
/// What a task needs that is to run in a container.
pub const DOCKER: &str = "@docker";
/// The priority of tasks that name none: in the middle, so that others can stand on either side.
pub const DEFAULT_PRIORITY: u8 = 5;
/// How long the record of a finished task is kept when it does not say.
pub const DEFAULT_RESULT_TTL: Span = Span::secs(7 * 86_400);

/// Where the metadata of a task that is a finished one once more names that.
const RETRY_OF: &str = "retry_of";

/// What a task is to do, where, how often and within which bounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// A label for people, shown in lists and process titles. The target gives one when this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What an attempt runs.
    pub target: Target,
    /// Positional arguments of a routine or handler.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Value>,
    /// Named arguments of a routine or handler.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub kwargs: serde_json::Map<String, Value>,
    /// Text given to a command on its standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Capabilities a worker must have to claim the task.
    #[serde(default, skip_serializing_if = "CapSet::is_empty")]
    pub requires: CapSet,
    /// A label for metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The batch that it belongs to: tasks that are counted, waited for and stopped together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
    /// The queue the task waits in.
    #[serde(default = "default_queue", skip_serializing_if = "is_default_queue")]
    pub queue: String,
    /// 0 to 9; higher runs first.
    #[serde(default = "default_priority", skip_serializing_if = "is_default_priority")]
    pub priority: u8,
    /// How long to wait before the first attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
    /// When to begin the first attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// How long it may wait before it is taken by a worker. After that it expires, and is never run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<Span>,
    /// The same as a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_before: Option<Timestamp>,
    /// How long one attempt may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// What one attempt may use.
    #[serde(default, skip_serializing_if = "Limits::is_empty", deserialize_with = "table::only")]
    pub limits: Limits,
    /// How often to try, and how long to wait in between.
    #[serde(default, skip_serializing_if = "is_default", deserialize_with = "table::only")]
    pub retry: Retry,
    /// What happens to the message in `reserved` when the task is stopped on request.
    #[serde(default = "Reserved::clear", skip_serializing_if = "Reserved::is_clear")]
    pub on_stop: Reserved,
    /// What happens to the message in `reserved` when the attempts are used up.
    #[serde(default = "Reserved::keep", skip_serializing_if = "Reserved::is_keep")]
    pub on_error: Reserved,
    /// How far the attempt is kept apart from its host.
    #[serde(default, skip_serializing_if = "is_default")]
    pub isolation: Isolation,
    /// Whether a sandbox may lack what its host's system refuses, instead of being none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub isolation_fallback: bool,
    /// What the attempt reaches of the network, if it is kept apart.
    #[serde(default, skip_serializing_if = "Network::is_none")]
    pub network: Network,
    /// What a sandbox shows of its host's files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Environment variables added to the worker's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The folder a command starts in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// While a task with this key is not finished, submitting another returns the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// How long the record is kept after the task has finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_ttl: Option<Span>,
    /// The trace it belongs to, as W3C trace context has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<TraceParent>,
    /// What vendors have added to that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<TraceState>,
    /// Anything the submitter wants to find again.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metadata: serde_json::Map<String, Value>,
}

/// What an attempt runs.
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
    /// One of Raddle's own long-lived processes. They are tasks too, but register themselves: nobody submits them.
    Service(String),
    /// What a manager is asked for, as it was written: what is run for it is in the manager's [`Charter`](crate::manager::Charter).
    Request(String),
}

/// When a first attempt may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// So long after it was submitted.
    After(Duration),
    /// At this time.
    At(Timestamp),
}

/// What happens to a task's message in `reserved` once the attempt that took it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reserved {
    /// Back to the queue, to be run again.
    Requeue,
    /// Kept for inspection: an exhausted task stands in the dead-letter queue.
    Keep,
    /// Removed.
    Clear,
}

/// How far an attempt is kept apart from its host. A later one keeps it further.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Isolation {
    /// A process of its own.
    #[default]
    Process,
    /// Namespaces and filters around it.
    Sandbox,
    /// A container.
    Docker,
}

impl Spec {
    /// A spec with every field but the target at its default.
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
            retry: Retry::default(),
            on_stop: Reserved::Clear,
            on_error: Reserved::Keep,
            isolation: Isolation::Process,
            isolation_fallback: false,
            network: Network::None,
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

    /// A spec that runs a program.
    pub fn command<I, S>(argv: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<String>,
    {
        Self::new(Target::Command(argv.into_iter().map(Into::into).collect()))
    }

    /// The name to show: the given one, or the last part of what the target is called.
    pub fn display_name(&self) -> &str {
        let of_target = || match &self.target {
            Target::Command(argv) => argv.first().map_or("", |program| program.rsplit('/').next().unwrap_or(program)),
            Target::Routine(name) | Target::Handler(name) | Target::Service(name) => name,
            Target::Request(_) => "request",
        };
        self.name.as_deref().unwrap_or_else(of_target)
    }

    /// What a worker must offer to claim the task: the required capabilities, and those the target implies.
    ///
    /// Implied ones begin with `@`, which keeps a worker from claiming a kind of target or isolation it cannot run.
    pub fn needs(&self) -> CapSet {
        let mut needs = self.requires.clone();
        let mut imply = |tag: &str| {
            // A name too odd for a tag was refused by `validate`; were it not, no worker could offer it either.
            let _ = needs.insert(tag);
        };
        match &self.target {
            Target::Command(_) => {}
            Target::Routine(name) => imply(&routine_tag(name)),
            Target::Handler(name) => imply(&handler_tag(name)),
            Target::Service(_) => imply("@service"),
            Target::Request(_) => imply(crate::manager::REQUEST),
        }
        match self.isolation {
            Isolation::Process => {}
            Isolation::Sandbox => imply(SANDBOX),
            Isolation::Docker => imply(DOCKER),
        }
        needs
    }

    /// When the first attempt may begin, if that is not at once. A delay goes before a time.
    pub fn start(&self) -> Option<Start> {
        let after = self.delay.map(|delay| Start::After(delay.0));
        after.or(self.run_at.map(Start::At))
    }

    /// Whether a task expires that nobody takes.
    pub fn expires(&self) -> bool {
        self.lifetime.is_some() || self.run_before.is_some()
    }

    /// When a task of this id expires, in nanoseconds since the epoch, if it does. A lifetime goes before a time.
    pub fn expires_at(&self, tid: Tid) -> Option<i64> {
        // An id is the time of submission.
        let after = self.lifetime.map(|lifetime| nanos_after(tid.as_i64(), lifetime.0));
        after.or(self.run_before.map(unix_nanos))
    }

    /// Whether a task with this history, which waits, has expired by `now`, in nanoseconds since the epoch. One that has been run does not: what
    /// was begun in time may be tried again later.
    pub fn has_expired(&self, tid: Tid, tally: Tally, now: i64) -> bool {
        tally.is_unrun() && self.expires_at(tid).is_some_and(|at| at <= now)
    }

    /// The spec of the same task once more. What it said about its first time does not hold for the second.
    pub fn once_more(self, first: Tid) -> Self {
        let mut again = Self { delay: None, run_at: None, run_before: None, ..self };
        again.metadata.insert(RETRY_OF.into(), Value::String(first.to_string()));
        again
    }

    /// Whether it is one of Raddle's own long-lived processes.
    pub fn is_service(&self) -> bool {
        matches!(self.target, Target::Service(_))
    }

    /// How long the record is kept after the task has finished.
    pub fn result_ttl(&self) -> Span {
        self.result_ttl.unwrap_or(DEFAULT_RESULT_TTL)
    }
}

/// What a worker offers that has this routine.
pub fn routine_tag(name: &str) -> String {
    format!("@routine:{name}")
}

/// What a worker offers that may run this handler. Every worker that may run one offers [`ANY_HANDLER`].
pub fn handler_tag(name: &str) -> String {
    format!("@handler:{name}")
}

impl Reserved {
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
