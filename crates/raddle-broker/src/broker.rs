//! The contract between Raddle and the place where it keeps its tasks.
//!
//! The traits are cut by concern, so that an engine's files mirror them. Every method that can wait takes `wait` and returns
//! empty-handed when that is over: a caller that is told to stop needs no second way to be woken. Dropping a future that
//! waits is safe; what it had taken by then goes back.
//!
//! This declaration is all there is of a method outside of the engines: the remote broker, its server and what stands in front of a broker are made of
//! it (see `declare.rs`).

use std::{fmt::Display, sync::Arc, time::Duration};

use async_trait::async_trait;
use raddle_model::{
    ControlMessage, QueueName, TaskEvent, TaskView, Tid, WorkerEntry,
    tid::ShortTid,
    worker::{Heartbeat, WorkerInfo},
};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    declare::declare,
    request::{
        AttemptId, AttemptStarted, AttemptUpdate, AttemptUpdateKind, ChainRequest, ClaimRequest,
        Completion, CompletionOutcome, ControlDelivery, DeliveryOutcome, EngineHealth, LeaseStatus,
        LeasedTask, Message, MessageTransaction, NewTask, OutputStream, PeekRequest, Reclaimed,
        Release, SubmitAndClaim, SubmitAndClaimOutcome, Submitted, TaskCursor, TaskFilter,
        TaskUpdate, WaitingRequest,
    },
    schedules::{DueItems, ScheduleChange, ScheduleChangeOutcome, ScheduleView},
    summary::{Summary, SummaryDetail},
};

/// A place where tasks are kept.
pub trait Broker:
    Tasks + Registry + Leases + Messages + Log + Output + Schedules + Queries
{
}

impl<T: Tasks + Registry + Leases + Messages + Log + Output + Schedules> Broker for T {}

/// Opens a broker. Its text names the broker without a password.
#[async_trait]
pub trait BrokerOpener: Display + Send + Sync + 'static {
    /// Opens the broker.
    async fn open(&self) -> Result<Arc<dyn Broker>>;
}

declare! {
/// The way of a task: in, out, and what is known of it in between.
trait Tasks {
    /// Stores tasks, all or none. Returns when they are durable.
    ///
    /// A task whose `unique_key` belongs to one that is not finished is not stored; the other's id is returned.
    async fn submit(&self, batch: Vec<NewTask>) -> Result<Vec<Submitted>>
        as Submit, doubles Some("has stored a task");

    /// Stores a task and gives it to a worker that is there for it alone, for a process that runs what it submits: one step instead of
    /// four, and nobody else can claim the task in between. Returns when it is durable.
    ///
    /// No worker is registered when the task's `unique_key` is taken; nothing is claimed when its time has not come.
    async fn submit_and_claim(&self, request: SubmitAndClaim) -> Result<SubmitAndClaimOutcome>
        as SubmitOwn, doubles Some("has stored a task");

    /// Takes up to `max` tasks that the owner may run, the most urgent and then the oldest first.
    ///
    /// Waits for the first one as long as the request says. Each claim begins an attempt, whose number is its fence.
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<LeasedTask>>
        as Claim, waits request.wait;

    /// Notes what is new of running attempts. One that is not the latest is passed over.
    async fn note(&self, batch: Vec<AttemptUpdate>) -> Result<()> as Note;

    /// Lets tasks follow a running attempt, and returns how many do by now. Nobody sees them before its end. If that is a success, they are
    /// submitted in the same step, in the order in which they were chained, with its task as their parent; after any other they are gone.
    ///
    /// As durable as it has to be for that: nothing that a [`finish`](Self::finish) finds is lost after it. An attempt that is not the latest is
    /// refused, counted and logged.
    async fn chain(&self, chain: ChainRequest) -> Result<u64>
        as Chain,
        // What a worker passes on is counted, and so is there once.
        doubles chain.told.is_none().then_some("has chained tasks");

    /// Ends attempts: result, state, event and removal in one step each, and what they have chained with it. Returns when they are durable.
    ///
    /// Whether the task is over or waits for another attempt is decided by [`raddle_model::settle()`].
    async fn finish(&self, batch: Vec<Completion>) -> Result<Vec<CompletionOutcome>> as Finish;

    /// Gives tasks back to their queue as if they had not been claimed; only the attempt's number is spent.
    async fn release(&self, batch: Vec<Release>) -> Result<Vec<CompletionOutcome>> as Release;

    /// Takes back what belongs to workers whose lease has run out. Workers do this with every [`LeaseRenewer::heartbeat`].
    async fn reclaim(&self) -> Result<Vec<Reclaimed>> as Reclaim;

    /// Sends a control word to a task. A waiting task needs nobody to obey: the broker does it.
    async fn control(&self, tid: Tid, message: ControlMessage) -> Result<DeliveryOutcome> as Control;

    /// Takes the control messages to the tasks that `owner` has, and to itself; waits for the first.
    async fn recv_commands(&self, owner: Tid, wait: Duration) -> Result<Vec<ControlDelivery>>
        as Controls, waits *wait;

    /// Submits the spec of a finished task again as a new task, and takes the old one out of the dead-letter queue and out of its batch. With `dead`, only while it stands there:
    /// so however many see to a dead letter, it is submitted once.
    async fn resubmit(&self, tid: Tid, dead: bool) -> Result<Tid>
        as Resubmit, doubles Some("has stored a task");

    /// The tasks that fit, the newest first.
    async fn tasks(&self, filter: TaskFilter) -> Result<Vec<TaskView>> as Tasks;

    /// How many tasks a worker like this could claim now, those included whose time has come; waits for the first.
    async fn waiting(&self, request: WaitingRequest) -> Result<u64>
        as Waiting, waits request.wait;

    /// How many tasks there are, and in what detail that was asked for. Tasks and records that are looked at one after the other may change meanwhile: then
    /// they are counted or not.
    async fn summarize(&self, detail: SummaryDetail) -> Result<Summary> as Summarize;

    /// Removes the records of these tasks, as far as they are finished. Returns how many.
    async fn delete(&self, tids: Vec<Tid>) -> Result<u64> as Delete;

    /// Removes the records of tasks that finished longer ago than they asked to be kept, some of them if they are many. Returns how many.
    async fn purge(&self) -> Result<u64> as Purge;

    /// What the engine says of itself, for `raddle doctor`.
    async fn health(&self) -> Result<EngineHealth> as Health;
}

/// The workers that live on a broker.
trait Registry {
    /// Enters a worker, and gives it its id; it counts as alive for `ttl` from now. It is a task too, but for one of its `own`: see
    /// [`Queries::register_ephemeral`].
    async fn enter(&self, info: WorkerInfo, ttl: Duration, own: bool) -> Result<Tid> as Enter;

    /// Takes a worker out; what it still has goes back. `failure` says why it ended, if it ended badly.
    async fn deregister(&self, worker: Tid, failure: Option<String>) -> Result<()> as Deregister;

    /// The workers that are alive.
    async fn workers(&self) -> Result<Vec<WorkerEntry>> as Workers;
}

/// Stored messages. Queues exist while they hold something. Queues that show the broker's own records are built on top of
/// this in [`crate::queues`].
trait Messages {
    /// Appends messages and returns their ids.
    async fn put(&self, queue: QueueName, bodies: Vec<String>) -> Result<Vec<Tid>>
        as Put, doubles Some("has stored a message");

    /// Takes up to `max` messages, the oldest first; waits for the first.
    async fn take(&self, queue: QueueName, max: u32, wait: Duration) -> Result<Vec<Message>>
        as Take, waits *wait, doubles Some("has taken messages");

    /// Looks at messages without taking them; waits for the first.
    async fn look(&self, peek: PeekRequest) -> Result<Vec<Message>>
        as Look, waits peek.wait;

    /// Moves up to `max` messages in one step, behind those that are there: they get new ids. Returns how many.
    async fn shift(&self, from: QueueName, to: QueueName, max: u32) -> Result<u64>
        as Shift, doubles Some("has taken messages");

    /// Takes messages that were seen, and submits tasks and puts other messages instead, in one step. Returns `None`, and nothing is done, if one of the
    /// messages is gone: so each is converted once, however many see it. Returns when all of it is durable.
    async fn convert(&self, conversion: MessageTransaction) -> Result<Option<Vec<Submitted>>> as Convert;
}

/// The event log.
trait Log {
    /// Events after the id `after`, the oldest first; waits for the first. With `tid`, those of one task. Without `after`, the last event of all alone, and
    /// no wait.
    async fn events(&self, after: Option<u64>, tid: Option<Tid>, max: u32, wait: Duration) -> Result<Vec<TaskEvent>>
        as Events, waits *wait;
}

/// What attempts wrote to their standard output and error.
trait Output {
    /// Up to `max` bytes of one attempt's output from `offset` on. Empty at the end of what there is.
    async fn read_output(&self, tid: Tid, attempt: u32, stream: OutputStream, offset: u64, max: u32) -> Result<Vec<u8>> as ReadOutput;

    /// The events and output of a task from `cursor` on; waits for the first of either.
    async fn follow(&self, tid: Tid, cursor: TaskCursor, wait: Duration) -> Result<TaskUpdate>
        as Follow, waits *wait;
}

/// Tasks that come again and again, and those that have waited for too long.
trait Schedules {
    /// All schedules, by their names, or the one that is called `name`. One that a later version has made is left out.
    async fn schedules(&self, name: Option<String>) -> Result<Vec<ScheduleView>> as Schedules;

    /// Changes a schedule if it is still as it was seen, and submits tasks with that, in one step. Returns when all of it is durable.
    async fn change_schedule(&self, change: ScheduleChange) -> Result<ScheduleChangeOutcome> as ChangeSchedule;

    /// What is to be done now: waits until a schedule is due, or a task has expired. Ends tasks that have waited for longer than their lifetime, some of
    /// them if they are many. A claim gives none of them out, whether this was called or not.
    async fn due_items(&self, wait: Duration) -> Result<DueItems>
        as Agenda, waits *wait;
}
}

/// What is asked of a broker in one place, whatever it is: of one that is elsewhere, or of one that something stands in front of. What answers calls is a
/// broker, but for its [`Leases`].
#[async_trait]
pub trait CallHandler: Send + Sync + 'static {
    /// Makes a call, and returns what belongs to it.
    async fn call(&self, call: Call) -> Result<Reply>;
}

impl Reply {
    fn misplaced(&self) -> Error {
        Error::AgentRefused {
            path: "the other side".into(),
            reason: "it has answered what was not asked".into(),
        }
    }
}

/// How workers stay alive. Nothing here is async: it must work when nothing else does.
pub trait Leases: Send + Sync + 'static {
    /// The means to stay alive, for a thread of its own. It takes back the tasks of other workers for as long as the broker is kept as well.
    fn renewer(&self, worker: Tid, ttl: Duration) -> Box<dyn LeaseRenewer>;

    /// Lets the engine see at once when this process, and all that it starts from now on, are gone, where it can: then nobody has to wait
    /// for the lease to run out. For the process that is the worker, before it starts others; it must not be another's. Says whether the engine does, and did
    /// not before.
    fn acquire_liveness_lock(&self, worker: Tid) -> bool {
        let _ = worker;
        false
    }

    /// Calls `stop`, which stops this process until it is continued, at a moment when the process holds no lock that others wait for.
    fn stop_unlocked(&self, stop: &mut dyn FnMut()) {
        stop();
    }
}

/// Renews one worker's lease, on a thread of its own: nothing a task does can hold it up.
pub trait LeaseRenewer: Send {
    /// Renews the lease for its `ttl` from now, and takes back what belongs to workers whose lease has run out. The first beat ends a lease that was
    /// longer.
    fn heartbeat(&mut self, heartbeat: Heartbeat) -> Result<LeaseStatus>;
}

/// What is asked and told often, in terms of what engines answer.
#[async_trait]
pub trait Queries: Tasks + Registry + Log + Schedules {
    /// Enters a worker. It is a task too, and this gives it its id; it counts as alive for `ttl` from now.
    async fn register(&self, info: WorkerInfo, ttl: Duration) -> Result<Tid> {
        self.enter(info, ttl, false).await
    }

    /// Enters a worker that is there for one task, whichever it claims first. It is no task itself, and leaves the registry with the end of
    /// that one. For a process that speaks for many such workers, and beats for itself: workers that are gone are not looked for.
    ///
    /// Workers that take calls are entered in the same way: they claim nothing, and leave when they are taken out.
    async fn register_ephemeral(&self, info: WorkerInfo, ttl: Duration) -> Result<Tid> {
        self.enter(info, ttl, true).await
    }

    /// Notes that the targets of these attempts have begun.
    async fn started(&self, batch: Vec<AttemptStarted>) -> Result<()> {
        self.note(
            batch
                .into_iter()
                .map(|AttemptStarted { attempt_id, pid }| AttemptUpdate {
                    attempt_id,
                    news: AttemptUpdateKind::Started(pid),
                })
                .collect(),
        )
        .await
    }

    /// Notes that a running attempt stands still on request, or goes on.
    async fn paused(&self, attempt_id: AttemptId, paused: bool) -> Result<()> {
        self.note(vec![AttemptUpdate {
            attempt_id,
            news: AttemptUpdateKind::Paused(paused),
        }])
        .await
    }

    /// Notes how far a running attempt has come. It is forgotten with the attempt.
    async fn progress(
        &self,
        attempt_id: AttemptId,
        progress: raddle_model::Progress,
    ) -> Result<()> {
        self.note(vec![AttemptUpdate {
            attempt_id,
            news: AttemptUpdateKind::Progress(progress),
        }])
        .await
    }

    /// Adds to the output of a running attempt, so that others can read it before the attempt ends.
    async fn append_output(
        &self,
        attempt_id: AttemptId,
        stream: OutputStream,
        bytes: Vec<u8>,
    ) -> Result<()> {
        self.note(vec![AttemptUpdate {
            attempt_id,
            news: AttemptUpdateKind::Output(stream, bytes),
        }])
        .await
    }

    /// One task.
    async fn task(&self, tid: Tid) -> Result<Option<TaskView>> {
        Ok(self.tasks(TaskFilter::one(tid)).await?.pop())
    }

    /// How many tasks there are in each state.
    async fn summary(&self) -> Result<Summary> {
        self.summarize(SummaryDetail {
            finished: true,
            ..SummaryDetail::default()
        })
        .await
    }

    /// The ids that end in these ten digits.
    async fn complete(&self, short: ShortTid) -> Result<Vec<Tid>> {
        let filter = TaskFilter {
            short: Some(short),
            services: true,
            ..TaskFilter::default()
        };
        Ok(self
            .tasks(filter)
            .await?
            .into_iter()
            .map(|task| task.tid)
            .collect())
    }

    /// The id of the last event, or 0. To see every change of something, ask for this first, then look, and then wait for events after it.
    async fn last_event(&self) -> Result<u64> {
        Ok(self
            .events(None, None, 1, Duration::ZERO)
            .await?
            .last()
            .map_or(0, |event| event.id.as_u64()))
    }

    /// One schedule.
    async fn schedule(&self, name: &str) -> Result<Option<ScheduleView>> {
        Ok(self.schedules(Some(name.into())).await?.pop())
    }
}

impl<T: Tasks + Registry + Log + Schedules + ?Sized> Queries for T {}
