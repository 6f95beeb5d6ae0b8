//! The broker traits.
//!
//! There is one trait per concern, and engines have a file for each. Methods that block take `wait`
//! and return empty when it is over, so a caller needs no other wake-up to stop. It is safe to drop
//! a future that waits: tasks that it had claimed are released.
//!
//! The remote broker, its server and wrappers such as metering are generated from this declaration
//! (see `declare.rs`).

use std::{fmt::Display, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use raddle_model::{
    ControlMessage, QueueName, TaskEvent, TaskView, Tid, WorkerEntry,
    tid::ShortTid,
    worker::{Heartbeat, WorkerInfo},
};
use serde::{Deserialize, Serialize};

use crate::{
    AttemptId, AttemptStarted, AttemptUpdate, AttemptUpdateKind, ChainRequest, ClaimRequest,
    Completion, CompletionOutcome, ControlDelivery, DeliveryOutcome, EngineHealth, Error,
    LeaseStatus, LeasedTask, Message, MessageTransaction, NewTask, OutputStream, PeekRequest,
    Reclaimed, Release, Result, SubmitAndClaim, SubmitAndClaimOutcome, Submitted, TaskCursor,
    TaskFilter, TaskPage, TaskUpdate, WaitingRequest, WorkerTask,
    declare::declare,
    operations::{NewOperation, OperationView},
    rollups::OutcomeRollup,
    schedules::{DueItems, ScheduleChange, ScheduleChangeOutcome, ScheduleView},
    summary::{Summary, SummaryDetail},
};

/// A store of tasks, queues, results, workers and events.
pub trait Broker:
    Tasks + Registry + Leases + Messages + Log + Output + Schedules + Rollups + Operations + Queries
{
}

impl<T> Broker for T where
    T: Tasks + Registry + Leases + Messages + Log + Output + Schedules + Rollups + Operations
{
}

/// Opens a broker. `Display` names the broker, without a password.
#[async_trait]
pub trait BrokerOpener: Display + Send + Sync + 'static {
    /// Opens the broker.
    async fn open(&self) -> Result<Arc<dyn Broker>>;
}

declare! {
/// The lifecycle of tasks.
trait Tasks {
    /// Stores tasks, all or none. Returns when they are durable.
    ///
    /// A task is not stored if an unfinished task has the same `unique_key`; that task's id is
    /// returned instead.
    async fn submit(&self, batch: Vec<NewTask>) -> Result<Vec<Submitted>>
        as Submit, doubles Some("has stored a task");

    /// Stores a task, registers an ephemeral worker for it and claims it, in one durable
    /// transaction. For a process that runs what it submits: one transaction instead of four, and
    /// no other worker can claim the task in between.
    ///
    /// Registers no worker if the task's `unique_key` is taken, and claims nothing if the task is
    /// delayed.
    async fn submit_and_claim(&self, request: SubmitAndClaim) -> Result<SubmitAndClaimOutcome>
        as SubmitAndClaim, doubles Some("has stored a task");

    /// Claims up to `max` tasks that the owner may run, by priority and then by age.
    ///
    /// Waits for the first one as long as the request says. Each claim begins an attempt; its
    /// number is the fencing token.
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<LeasedTask>>
        as Claim, waits request.wait;

    /// Stores progress of running attempts. Updates of stale attempts are ignored.
    async fn update_attempts(&self, batch: Vec<AttemptUpdate>) -> Result<()> as UpdateAttempts;

    /// Chains tasks to a running attempt, and returns how many it has chained so far. They are
    /// invisible until the attempt ends. If it succeeds, they are submitted in the same
    /// transaction, in order, with its task as parent; otherwise they are removed.
    ///
    /// Durable only as far as needed: chained tasks that a [`complete`](Self::complete) has
    /// submitted are never lost after it. Chaining to a stale attempt is refused, counted and
    /// logged.
    async fn chain(&self, chain: ChainRequest) -> Result<u64>
        as Chain,
        // A request with an offset is idempotent.
        doubles chain.offset.is_none().then_some("has chained tasks");

    /// Ends attempts. Stores result, state and event, submits chained tasks and removes the claim,
    /// in one transaction per attempt. Returns when all of it is durable.
    ///
    /// [`raddle_model::decide_next`] decides whether the task is finished or is retried.
    async fn complete(&self, batch: Vec<Completion>) -> Result<Vec<CompletionOutcome>> as Complete;

    /// Gives claimed tasks back to their queues. The attempt number is used up; nothing else of the
    /// task changes.
    async fn release(&self, batch: Vec<Release>) -> Result<Vec<CompletionOutcome>> as Release;

    /// Takes tasks back from workers whose lease has expired. [`LeaseRenewer::renew`] does this
    /// too.
    async fn reclaim(&self) -> Result<Vec<Reclaimed>> as Reclaim;

    /// Sends a control command to a task. The broker itself applies it to a task that no worker
    /// runs.
    async fn control(&self, tid: Tid, message: ControlMessage) -> Result<DeliveryOutcome> as Control;

    /// Takes the control messages for `owner` and for the tasks that it runs; waits for the first.
    async fn recv_commands(&self, owner: Tid, wait: Duration) -> Result<Vec<ControlDelivery>>
        as RecvCommands, waits *wait;

    /// Submits the spec of a finished task as a new task, and removes the old one from the
    /// dead-letter queue and from its batch. With `dead`, fails unless the task is a dead letter,
    /// so concurrent callers submit it once.
    async fn resubmit(&self, tid: Tid, dead: bool) -> Result<Tid>
        as Resubmit, doubles Some("has stored a task");

    /// The tasks that match `filter`, newest first: as many as it asks for, or as are found among
    /// `max_examined` records. Records are not read in one snapshot.
    async fn find_tasks(&self, filter: TaskFilter) -> Result<TaskPage> as FindTasks;

    /// Counts the tasks that such a worker could claim now, including delayed tasks that are due;
    /// waits for the first.
    async fn count_waiting(&self, request: WaitingRequest) -> Result<u64>
        as CountWaiting, waits request.wait;

    /// Pauses a queue, or resumes it. A paused queue takes tasks, and none can be claimed from it.
    /// Returns whether that changed anything.
    async fn set_queue_paused(&self, queue: String, paused: bool) -> Result<bool>
        as SetQueuePaused;

    /// Counts tasks and messages, in the requested detail. Records are not read in one snapshot:
    /// tasks that change meanwhile may or may not be counted.
    async fn summarize(&self, detail: SummaryDetail) -> Result<Summary> as Summarize;

    /// Deletes the records of those of these tasks that are finished. Returns how many.
    async fn delete(&self, tids: Vec<Tid>) -> Result<u64> as Delete;

    /// Deletes records of finished tasks that are past their retention, a limited number per call.
    /// Returns how many.
    async fn purge(&self) -> Result<u64> as Purge;

    /// Engine, location, durability and checks, for `raddle doctor`.
    async fn health(&self) -> Result<EngineHealth> as Health;
}

/// The registry of workers.
trait Registry {
    /// Registers a worker with a lease of `ttl`, and returns its id. With
    /// [`WorkerTask::Attempt`], fails with [`Error::Superseded`] unless the attempt is the task's
    /// current one, and first reclaims the tasks that a worker of an earlier attempt has left.
    async fn register_worker(&self, info: WorkerInfo, ttl: Duration, task: WorkerTask) -> Result<Tid> as RegisterWorker;

    /// Removes a worker and returns its tasks to their queues. `failure` is the reason if the
    /// worker failed.
    async fn deregister(&self, worker: Tid, failure: Option<String>) -> Result<()> as Deregister;

    /// The live workers.
    async fn workers(&self) -> Result<Vec<WorkerEntry>> as Workers;
}

/// Stored messages. A queue exists while it holds something. [`crate::queues`] adds the queues that
/// show the broker's own records.
trait Messages {
    /// Appends messages and returns their ids.
    async fn put(&self, queue: QueueName, bodies: Vec<String>) -> Result<Vec<Tid>>
        as Put, doubles Some("has stored a message");

    /// Takes up to `max` messages, oldest first; waits for the first.
    async fn take(&self, queue: QueueName, max: u32, wait: Duration) -> Result<Vec<Message>>
        as Take, waits *wait, doubles Some("has taken messages");

    /// Reads messages without taking them; waits for the first.
    async fn peek(&self, peek: PeekRequest) -> Result<Vec<Message>>
        as Peek, waits peek.wait;

    /// Moves up to `max` messages to the end of another queue, in one transaction. They get new
    /// ids. Returns how many.
    async fn move_messages(&self, from: QueueName, to: QueueName, max: u32) -> Result<u64>
        as MoveMessages, doubles Some("has taken messages");

    /// Replaces messages by tasks and other messages, in one durable transaction. Does nothing and
    /// returns `None` if one of the messages is gone, so concurrent callers replace each message
    /// once.
    async fn apply_transaction(&self, transaction: MessageTransaction) -> Result<Option<Vec<Submitted>>> as ApplyTransaction;
}

/// The event log.
trait Log {
    /// Events after the id `after`, oldest first; waits for the first. With `tid`, those of one
    /// task. Without `after`, only the last event, without waiting.
    async fn events(&self, after: Option<u64>, tid: Option<Tid>, max: u32, wait: Duration) -> Result<Vec<TaskEvent>>
        as Events, waits *wait;
}

/// The standard output and error of attempts.
trait Output {
    /// Up to `max` bytes of one stream of an attempt, from `offset` on. Empty at the current end.
    async fn read_output(&self, tid: Tid, attempt: u32, stream: OutputStream, offset: u64, max: u32) -> Result<Vec<u8>> as ReadOutput;

    /// Events and output of a task from `cursor` on; waits for the first of either.
    async fn follow(&self, tid: Tid, cursor: TaskCursor, wait: Duration) -> Result<TaskUpdate>
        as Follow, waits *wait;
}

/// Recurring tasks, and tasks that expire.
trait Schedules {
    /// All schedules by name, or the one called `name`. Schedules that a newer version wrote are
    /// left out.
    async fn schedules(&self, name: Option<String>) -> Result<Vec<ScheduleView>> as Schedules;

    /// Changes a schedule if its version is the expected one, and submits tasks with that, in one
    /// durable transaction.
    async fn change_schedule(&self, change: ScheduleChange) -> Result<ScheduleChangeOutcome> as ChangeSchedule;

    /// Waits until a schedule is due or a task has expired. Ends expired tasks, a limited number
    /// per call. [`Tasks::claim`] never returns an expired task, whether this was called or not.
    async fn due_items(&self, wait: Duration) -> Result<DueItems>
        as DueItems, waits *wait;
}

/// Statistics of finished tasks.
trait Rollups {
    /// Outcomes by minute and name, of the minutes from `since` until before `until`, in time
    /// order. With `name`, only those of this name. A call returns about
    /// [`MAX_ROLLUPS`](crate::rollups::MAX_ROLLUPS) and whole minutes: to go on, call again from
    /// the minute after the last one.
    ///
    /// They are kept for 72 hours. Statistics of the last seconds may not be stored yet, and are
    /// lost if their process is killed.
    async fn outcome_rollups(&self, since: Timestamp, until: Timestamp, name: Option<String>) -> Result<Vec<OutcomeRollup>>
        as OutcomeRollups;
}

/// Actions on many tasks.
trait Operations {
    /// Stores an operation and returns its id. It changes nothing until it is advanced.
    async fn start_operation(&self, operation: NewOperation) -> Result<Tid>
        as StartOperation, doubles Some("has started an operation");

    /// The operation `id`, or the newest `max`, newest first.
    async fn operations(&self, id: Option<Tid>, max: u32) -> Result<Vec<OperationView>>
        as Operations;

    /// Looks at the next tasks of an operation, at most `max`, and applies its action to those that
    /// it selects. Any process may call this, at any time: each task is looked at once.
    async fn advance_operation(&self, id: Tid, max: u32) -> Result<OperationView>
        as AdvanceOperation;

    /// Cancels an operation. Its changes stay.
    async fn cancel_operation(&self, id: Tid) -> Result<OperationView> as CancelOperation;
}
}

/// Handles any call in one place: a remote client, or a wrapper around another broker. A
/// `CallHandler` that implements [`Leases`] is a [`Broker`].
#[async_trait]
pub trait CallHandler: Send + Sync + 'static {
    /// Performs a call and returns the reply of the same variant.
    async fn call(&self, call: Call) -> Result<Reply>;
}

impl Reply {
    fn unexpected(&self) -> Error {
        Error::AgentRefused {
            path: "the other side".into(),
            reason: "it replied to another call than it was sent".into(),
        }
    }
}

/// Leases of workers. Nothing here is async: renewal must work when the runtime is blocked.
pub trait Leases: Send + Sync + 'static {
    /// A renewer for the worker's lease, to be run on a thread of its own. It also reclaims tasks
    /// of other workers, as long as the broker is open.
    fn lease_renewer(&self, worker: Tid, ttl: Duration) -> Box<dyn LeaseRenewer>;

    /// Takes a lock that proves that this process, or a process that it starts from now on, is
    /// alive. When they are all gone, other workers see it at once instead of waiting for the lease
    /// to expire. To be called by the worker's own process before it starts others. Returns whether
    /// the lock was taken now; `false` if the engine has none.
    fn acquire_liveness_lock(&self, worker: Tid) -> bool {
        let _ = worker;
        false
    }

    /// Runs `suspend`, which stops this process until it is continued, while the process holds no
    /// lock that others wait for.
    fn suspend_unlocked(&self, suspend: &mut dyn FnMut()) {
        suspend();
    }
}

/// Renews one worker's lease, on a thread of its own that no task can block.
pub trait LeaseRenewer: Send {
    /// Extends the lease to `ttl` from now, and reclaims tasks of workers whose lease has expired.
    /// The first call also shortens a longer lease.
    fn renew(&mut self, heartbeat: Heartbeat) -> Result<LeaseStatus>;
}

/// Convenience methods on top of the engines' methods.
#[async_trait]
pub trait Queries: Tasks + Registry + Log + Schedules {
    /// Registers a worker with a lease of `ttl`. The worker is a task too; this returns its id.
    async fn register(&self, info: WorkerInfo, ttl: Duration) -> Result<Tid> {
        self.register_worker(info, ttl, WorkerTask::New).await
    }

    /// Registers a worker without a task: see [`WorkerTask::Ephemeral`].
    ///
    /// Workers that take calls are registered in this way too: they claim nothing and leave by
    /// [`Registry::deregister`].
    async fn register_ephemeral(&self, info: WorkerInfo, ttl: Duration) -> Result<Tid> {
        self.register_worker(info, ttl, WorkerTask::Ephemeral).await
    }

    /// Records that the targets of these attempts have started.
    async fn mark_started(&self, batch: Vec<AttemptStarted>) -> Result<()> {
        self.update_attempts(
            batch
                .into_iter()
                .map(|AttemptStarted { attempt_id, pid }| AttemptUpdate {
                    attempt_id,
                    kind: AttemptUpdateKind::Started(pid),
                })
                .collect(),
        )
        .await
    }

    /// Records that a running attempt is paused, or continues.
    async fn mark_paused(&self, attempt_id: AttemptId, paused: bool) -> Result<()> {
        self.update_attempts(vec![AttemptUpdate {
            attempt_id,
            kind: AttemptUpdateKind::Paused(paused),
        }])
        .await
    }

    /// Stores the progress of a running attempt. It is removed with the attempt.
    async fn report_progress(
        &self,
        attempt_id: AttemptId,
        progress: raddle_model::Progress,
    ) -> Result<()> {
        self.update_attempts(vec![AttemptUpdate {
            attempt_id,
            kind: AttemptUpdateKind::Progress(progress),
        }])
        .await
    }

    /// Appends to the output of a running attempt, so that it can be read before the attempt ends.
    async fn append_output(
        &self,
        attempt_id: AttemptId,
        stream: OutputStream,
        bytes: Vec<u8>,
    ) -> Result<()> {
        self.update_attempts(vec![AttemptUpdate {
            attempt_id,
            kind: AttemptUpdateKind::Output(stream, bytes),
        }])
        .await
    }

    /// The tasks that match `filter`, newest first.
    async fn tasks(&self, mut filter: TaskFilter) -> Result<Vec<TaskView>> {
        let mut tasks = Vec::new();
        loop {
            let page = self.find_tasks(filter.clone()).await?;
            filter.limit = filter.limit.saturating_sub(page.tasks.len() as u32);
            tasks.extend(page.tasks);
            if page.next.is_none() || filter.limit == 0 {
                return Ok(tasks);
            }
            filter.before = page.next;
        }
    }

    /// One task.
    async fn task(&self, tid: Tid) -> Result<Option<TaskView>> {
        Ok(self.tasks(TaskFilter::one(tid)).await?.pop())
    }

    /// How many tasks are in each state.
    async fn summary(&self) -> Result<Summary> {
        self.summarize(SummaryDetail {
            finished: true,
            ..SummaryDetail::default()
        })
        .await
    }

    /// The ids that end in these ten digits.
    async fn resolve_short_id(&self, short: ShortTid) -> Result<Vec<Tid>> {
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

    /// The id of the last event, or 0. To miss no change: get this id, read the state, then wait
    /// for events after the id.
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
