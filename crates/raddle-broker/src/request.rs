//! Arguments and results of broker methods: plain values that can be serialised.

use std::{fmt, time::Duration};

use jiff::Timestamp;
use raddle_model::{
    AttemptReport, CapSet, QueueName, TaskEvent, TaskSpec, TaskState, TaskView, Tid,
    spec::{InvalidSpec, MAX_SPEC_BYTES, is_label},
    worker::WorkerInfo,
};
use serde::{Deserialize, Serialize};

use crate::Error;

/// A task to store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewTask {
    /// The task to run.
    pub spec: TaskSpec,
    /// The task that submits it, if any.
    pub parent: Option<Tid>,
}

/// Tasks to submit if a running attempt succeeds, in the transaction that completes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChainRequest {
    /// The attempt.
    pub attempt_id: AttemptId,
    /// The tasks.
    pub tasks: Vec<TaskSpec>,
    /// Set by the attempt's worker, which forwards the attempt's requests: how many tasks it
    /// forwarded before these. It makes the request idempotent: when a reply is lost the worker
    /// sends again, and tasks that are already chained are skipped.
    pub offset: Option<u64>,
}

/// The outcome of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Submitted {
    /// The task is stored under this id.
    New(Tid),
    /// An unfinished task has the same unique key; nothing was stored.
    Existing(Tid),
}

/// A task to run by the process that submits it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubmitAndClaim {
    /// The task.
    pub task: NewTask,
    /// The ephemeral worker that runs it.
    pub worker: WorkerInfo,
    /// The worker's lease, from now.
    pub lease: Duration,
}

/// The outcome of [`SubmitAndClaim`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubmitAndClaimOutcome {
    /// The outcome of the submission.
    pub submitted: Submitted,
    /// The ephemeral worker that was registered. `None` if none was, or if the task had already
    /// expired.
    pub worker: Option<Tid>,
    /// The task, leased to that worker.
    pub claim: Option<LeasedTask>,
}

/// Which tasks to claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRequest {
    /// The registered worker that claims.
    pub owner: Tid,
    /// The worker's capabilities.
    pub caps: CapSet,
    /// The queues that the worker serves.
    pub queues: Vec<String>,
    /// Claim only this task, whatever its queue and needs.
    pub only: Option<Tid>,
    /// The maximum.
    pub max: u32,
    /// How long to wait for the first.
    pub wait: Duration,
}

/// Which waiting tasks to count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingRequest {
    /// The capabilities of the worker that would claim them.
    pub caps: CapSet,
    /// The queues that it would serve.
    pub queues: Vec<String>,
    /// Only tasks that are claimed before the task with this priority and id.
    pub before: Option<(u8, Tid)>,
    /// Stop counting here: callers only need to know that there are many.
    pub max: u32,
    /// How long to wait for the first.
    pub wait: Duration,
}

/// A task leased to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeasedTask {
    /// The attempt that the claim began.
    pub attempt_id: AttemptId,
    /// The task to run.
    pub spec: TaskSpec,
    /// Increases with every claim of the task and never repeats, even if a Redis server lost a
    /// claim: the id of the claim's event.
    pub fencing_token: u64,
}

/// One attempt of one task. Every write of the attempt carries it and is refused unless it is the
/// task's current attempt. The number alone is not enough: a Redis server that loses a claim in a
/// crash hands the same number out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AttemptId {
    /// The task.
    pub tid: Tid,
    /// The attempt number.
    pub attempt: u32,
    /// The worker that runs it.
    pub owner: Tid,
}

/// The task that a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerTask {
    /// A new task, which ends when the worker leaves the registry.
    New,
    /// None. The worker leaves the registry when the first task that it claims ends. For processes
    /// that register many such workers and renew a lease of their own; does not reclaim from lost
    /// workers.
    Ephemeral,
    /// The task of this attempt: the worker is the process that another worker started for it. Its
    /// id is the task's id, and commands to the task reach it.
    Attempt(AttemptId),
}

/// An attempt whose target has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptStarted {
    /// The attempt.
    pub attempt_id: AttemptId,
    /// The process id.
    pub pid: Option<u32>,
}

/// An update of a running attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptUpdate {
    /// The attempt.
    pub attempt_id: AttemptId,
    /// The update.
    pub kind: AttemptUpdateKind,
}

/// The kinds of [`AttemptUpdate`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AttemptUpdateKind {
    /// The target has started, in this process if it has one.
    Started(Option<u32>),
    /// The attempt was paused, or continues.
    Paused(bool),
    /// Progress that the task reported.
    Progress(raddle_model::Progress),
    /// Bytes to append to one of its streams.
    Output(OutputStream, #[serde(with = "crate::bytes")] Vec<u8>),
}

/// The end of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// The attempt.
    pub attempt_id: AttemptId,
    /// How it ended.
    pub report: AttemptReport,
    /// The rest of its standard output, to append.
    #[serde(with = "crate::bytes")]
    pub stdout: Vec<u8>,
    /// The rest of its standard error, to append.
    #[serde(with = "crate::bytes")]
    pub stderr: Vec<u8>,
}

/// An attempt to give back unfinished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// The attempt.
    pub attempt_id: AttemptId,
    /// The reason, for the event log.
    pub reason: String,
}

/// The outcome of an attempt's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompletionOutcome {
    /// The task is finished.
    Finished(TaskState),
    /// The task waits for another attempt, not before this time.
    Retry(Timestamp),
    /// The attempt was not the current one; nothing was changed.
    Stale,
}

/// A task reclaimed from a lost worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    /// The lost attempt.
    pub attempt_id: AttemptId,
    /// The outcome of its loss.
    pub outcome: CompletionOutcome,
}

/// The outcome of a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeliveryOutcome {
    /// No worker runs the task, so the broker applied the command; this is the state now.
    Applied(TaskState),
    /// The worker that runs the task receives it.
    Sent,
}

/// A control message for a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlDelivery {
    /// The addressee: a task that the worker runs, or the worker itself.
    pub tid: Tid,
    /// The text.
    pub body: String,
}

/// The result of renewing a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseStatus {
    /// The lease holds for another `ttl`; these tasks of other workers were reclaimed.
    Alive(Vec<Reclaimed>),
    /// The lease had expired and the worker's tasks were reclaimed. The worker must stop what it
    /// runs and register again.
    Expired,
    /// The server is down for all clients. No worker takes over meanwhile, and leases do not
    /// expire.
    Down,
}

/// The self-description of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineHealth {
    /// `sqlite`, `memory`, …
    pub engine: String,
    /// Where it stores data.
    pub location: String,
    /// Which failures the data survives.
    pub durability: String,
    /// The checks.
    pub checks: Vec<HealthCheck>,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthCheck {
    /// The check.
    pub name: String,
    /// Whether it passed.
    pub ok: bool,
    /// The finding.
    pub detail: String,
    /// How to fix it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// A stored message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The id, from the same sequence as task ids.
    pub id: Tid,
    /// The text.
    pub body: String,
}

/// Messages to replace by tasks, other messages, or nothing, in one transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessageTransaction {
    /// The queue that holds them.
    pub queue: QueueName,
    /// The messages to take. If one is gone, nothing is done.
    pub messages: Vec<Message>,
    /// The tasks to submit.
    pub tasks: Vec<NewTask>,
    /// The messages to put, in this order.
    pub new_messages: Vec<NewMessage>,
}

/// A message to put into a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewMessage {
    /// The queue.
    pub queue: QueueName,
    /// The text.
    pub body: String,
}

/// Which messages to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeekRequest {
    /// The queue.
    pub queue: QueueName,
    /// Only those after this id; 0 for all.
    pub after: u64,
    /// The maximum.
    pub max: u32,
    /// How long to wait for the first.
    pub wait: Duration,
}

/// How many messages a queue holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSize {
    /// The queue.
    pub queue: QueueName,
    /// The number of messages.
    pub messages: u64,
}

/// One of an attempt's two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl fmt::Display for OutputStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stdout => "standard output",
            Self::Stderr => "standard error",
        })
    }
}

/// The position of a reader of a task's events and output. Starts at its default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskCursor {
    /// The last event that was read.
    pub event: u64,
    /// The attempt whose output is read next.
    pub attempt: u32,
    /// Bytes of its standard output that were read.
    pub stdout: u64,
    /// Bytes of its standard error that were read.
    pub stderr: u64,
}

/// New events and output of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskUpdate {
    /// New output, in display order.
    pub output: Vec<OutputChunk>,
    /// New events.
    pub events: Vec<TaskEvent>,
    /// Where the next read starts.
    pub cursor: TaskCursor,
    /// The final state, once it is reached and all output has been returned.
    pub done: Option<TaskState>,
}

/// A piece of output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputChunk {
    /// The attempt.
    pub attempt: u32,
    /// The stream.
    pub stream: OutputStream,
    /// The bytes.
    #[serde(with = "crate::bytes")]
    pub bytes: Vec<u8>,
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attempt {} of task {}", self.attempt, self.tid)
    }
}

impl NewTask {
    /// A task without a parent.
    pub fn new(spec: TaskSpec) -> Self {
        Self { spec, parent: None }
    }

    /// A new task with the spec of a finished one. With `only_dead`, fails unless the old one is a
    /// dead letter.
    pub fn resubmit(old: TaskView, only_dead: bool) -> Result<Self, Error> {
        let TaskView {
            tid,
            state,
            dead,
            spec,
            parent,
            ..
        } = old;
        if !state.is_terminal() {
            return Err(Error::Unfinished(tid, state));
        }
        if only_dead && !dead {
            return Err(Error::NotDead(tid));
        }
        Ok(Self {
            spec: spec.once_more(tid),
            parent,
        })
    }

    /// Checks what all engines check.
    pub fn validate(&self) -> Result<(), InvalidSpec> {
        serialize_spec(&self.spec).map(drop)
    }
}

/// Checks the name of a queue of tasks.
pub fn check_queue(queue: String) -> Result<String, InvalidSpec> {
    if is_label(&queue) {
        return Ok(queue);
    }
    Err(InvalidSpec {
        path: "queue".into(),
        reason: "must be 1 to 128 letters, digits, or . _ - : @ /".into(),
    })
}

/// Validates a spec before a transaction is begun for it, and serialises it as engines store it.
pub fn serialize_spec(spec: &TaskSpec) -> Result<String, InvalidSpec> {
    spec.validate()?;
    let text = serde_json::to_string(spec).expect("a spec has only string keys");
    if text.len() > MAX_SPEC_BYTES {
        let reason =
            "the whole spec is larger than 16 MiB: let the task read a file instead".into();
        return Err(InvalidSpec {
            path: ".".into(),
            reason,
        });
    }
    Ok(text)
}

impl Submitted {
    /// The id of the stored or the existing task.
    pub fn tid(self) -> Tid {
        match self {
            Self::New(tid) | Self::Existing(tid) => tid,
        }
    }

    /// The new id of the resubmitted task `old`; an error if an unfinished task has its unique key.
    pub fn into_resubmitted(self, old: Tid) -> Result<Tid, Error> {
        match self {
            Self::New(tid) => Ok(tid),
            Self::Existing(holder) => Err(Error::KeyTaken { tid: old, holder }),
        }
    }
}

impl WaitingRequest {
    /// The tasks that a worker claims before `task`, for a worker that may claim `task`.
    pub fn ahead_of(task: &TaskView) -> Self {
        let TaskView { tid, spec, .. } = task;
        let (queues, before) = (vec![spec.queue.clone()], Some((spec.priority, *tid)));
        Self {
            caps: spec.needs(),
            queues,
            before,
            max: u32::MAX,
            wait: Duration::ZERO,
        }
    }
}

impl OutputStream {
    /// Both, in display order.
    pub const BOTH: [Self; 2] = [Self::Stdout, Self::Stderr];
}
