//! The messages of the host protocol.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    TaskSpec, Tid,
    reply::{LogLevel, Progress},
    trace::{TraceParent, TraceState},
};

/// Version of the protocol. A host that names another one is refused.
pub const PROTOCOL: u32 = 1;

/// A message from the worker to a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[expect(
    clippy::large_enum_variant,
    reason = "a message is encoded where it is made and never stored"
)]
pub enum ToHost<'a> {
    /// Run a routine or handler. The payload holds the arguments.
    Start(StartAttempt<'a>),
    /// End an attempt.
    Cancel(CancelAttempt),
    /// Let the attempts finish, shut down and exit. The worker kills the host after `timeout_ms`.
    Stop(StopHost),
    /// Answer with `pong` from the event loop.
    Ping(Ping),
    /// The worker accepts more items of a stream.
    Credit(StreamCredit),
}

/// A message from a host to the worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FromHost {
    /// The first message: the host's protocol version, language and routines.
    Hello(HostHello),
    /// The start-up is over: attempts may begin.
    Ready {},
    /// The start-up failed. The host exits.
    Failed(StartupFailed),
    /// The attempt is about to run. It must be sent before user code runs.
    Ack(AttemptRef),
    /// The attempt succeeded. The payload holds the value.
    Result(AttemptRef),
    /// One item of a stream, in the payload. Each uses one credit.
    Item(AttemptRef),
    /// The attempt failed.
    Error(HostError),
    /// A progress report.
    Progress(HostProgress),
    /// A line for the log of the attempt, or of the worker.
    Log(HostLog),
    /// A task to submit if the attempt succeeds.
    Chain(ChainedTask),
    /// The answer to `ping`.
    Pong(Ping),
}

/// The first message of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostHello {
    /// The version of the protocol that it speaks.
    pub protocol: u32,
    /// Language and version, for messages.
    #[serde(default)]
    pub language: String,
    /// Its routines by name.
    #[serde(default)]
    pub routines: BTreeMap<String, HostRoutine>,
    /// How many async attempts it takes at once, if it has a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// How many blocking attempts it takes at once, if it has a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// The encodings of arguments and results that it reads, best first. Empty means `json`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub encodings: Vec<String>,
}

/// A routine of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRoutine {
    /// How it runs.
    #[serde(default)]
    pub kind: RoutineKind,
}

/// How a routine runs in a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoutineKind {
    /// On the event loop, up to `concurrency` at once.
    #[default]
    Async,
    /// On a thread of its own, up to `threads` at once.
    Plain,
    /// On the event loop, with items.
    Stream,
}

/// Why a host cannot take attempts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartupFailed {
    /// The reason, for people.
    pub message: String,
}

/// An attempt to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartAttempt<'a> {
    /// Number of this run within the host. All other messages about it carry it.
    pub id: u64,
    /// The routine.
    pub routine: Cow<'a, str>,
    /// Whether `routine` names a handler. The payload is then the whole task, as a handler process
    /// reads it; otherwise it is the array of positional arguments.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub handler: bool,
    /// Named arguments.
    #[serde(default, skip_serializing_if = "no_values")]
    pub kwargs: Cow<'a, serde_json::Map<String, Value>>,
    /// The encoding of the payload, and of the result. Absent means `json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Cow<'a, str>>,
    /// The task of the attempt. A call has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tid: Option<Tid>,
    /// The number of the attempt.
    #[serde(default)]
    pub attempt: u32,
    /// The fencing token of the attempt.
    #[serde(default)]
    pub fencing_token: u64,
    /// The worker that has the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Tid>,
    /// How long the attempt may run, in milliseconds. The worker enforces this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The trace context, with this attempt as the span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<TraceParent>,
    /// The vendor-specific part of the trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<TraceState>,
}

/// A message about one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRef {
    /// Number of the run.
    pub id: u64,
}

/// A request to end an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelAttempt {
    /// Number of the run.
    pub id: u64,
    /// Why.
    pub reason: CancelReason,
    /// Whether the attempt must end now: its grace is over, and the worker kills the host next.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// Why an attempt must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// A `STOP` or `KILL`, or the stop of the worker.
    Stop,
    /// It ran past its timeout.
    Timeout,
}

/// A request to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopHost {
    /// How long the host has, in milliseconds.
    pub timeout_ms: u64,
}

/// A ping or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ping {
    /// The number to answer with.
    pub n: u64,
}

/// Room for more items of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamCredit {
    /// Number of the run.
    pub id: u64,
    /// How many more items.
    pub items: u32,
}

/// The failure of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostError {
    /// Number of the run.
    pub id: u64,
    /// The type of the error in its language.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Text for people.
    pub message: String,
    /// The causes, outermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// Whether another attempt would fail as well.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub permanent: bool,
    /// How long to wait before the next attempt, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Where it panicked, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub panicked_at: Option<String>,
    /// Whether it ended because it was cancelled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cancelled: bool,
    /// The serialized error, from which the caller can rebuild its type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

/// A progress report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostProgress {
    /// Number of the run.
    pub id: u64,
    /// From 0 to 100, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// Text for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostLog {
    /// Number of the run. Without it the line is for the worker's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Severity.
    #[serde(default)]
    pub level: LogLevel,
    /// Text for people.
    pub message: String,
    /// More about it.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub fields: serde_json::Map<String, Value>,
}

/// A task that follows an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChainedTask {
    /// Number of the run.
    pub id: u64,
    /// The spec of the task.
    pub spec: Value,
}

impl<'a> StartAttempt<'a> {
    /// Creates a message that starts a routine without arguments.
    pub fn new(id: u64, routine: impl Into<Cow<'a, str>>) -> Self {
        Self {
            id,
            routine: routine.into(),
            handler: false,
            kwargs: Cow::Owned(serde_json::Map::new()),
            encoding: None,
            tid: None,
            attempt: 0,
            fencing_token: 0,
            worker: None,
            timeout_ms: None,
            traceparent: None,
            tracestate: None,
        }
    }

    /// Takes the named arguments and the trace from the spec of a task.
    pub fn with_spec(mut self, spec: &'a TaskSpec, tid: Tid, attempt: u32) -> Self {
        let trace = spec.trace(tid, attempt);
        self.kwargs = Cow::Borrowed(&spec.kwargs);
        (self.tid, self.attempt) = (Some(tid), attempt);
        (self.traceparent, self.tracestate) = (Some(trace.parent), trace.state);
        self
    }
}

impl From<HostProgress> for Progress {
    fn from(progress: HostProgress) -> Self {
        Self {
            percent: progress.percent,
            message: progress.message,
        }
    }
}

fn no_values(map: &serde_json::Map<String, Value>) -> bool {
    map.is_empty()
}
