//! A worker's life: registered, at work, gone.

use std::{future::Future, sync::Arc, time::Duration};

use raddle_broker::{
    Broker, Error, LeasedTask, NewTask, Result, SubmitAndClaim, SubmitAndClaimOutcome, Submitted,
};
use raddle_model::Tid;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    orphan_processes,
    registration::{Registration, WorkerLease},
    schedule,
};

use super::{
    Options, Shutdown, SuspendGuard,
    event::LoopEnd,
    service::{LoopClosed, WorkerService},
    shutdown::KILLED_AFTER,
    shutdown_deadline::LAST_TRY,
    suspend_guard::CurrentRegistration,
};

/// A registered worker, not running yet.
pub struct Worker {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) options: Options,
    pub(super) line: Registration,
    /// What it has claimed already.
    pub(super) claim: Option<LeasedTask>,
    /// The children that this process had before.
    pub(super) strangers: Arc<[u32]>,
    /// Whether it leaves the registry with its task.
    pub(super) own: bool,
    /// How many attempts it has begun, under whatever id.
    pub(super) begun: watch::Sender<u64>,
    pub(super) born: Instant,
    pub(super) standstill: SuspendGuard,
}

/// How a worker's life went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerEnd {
    /// How many attempts it began.
    pub tasks: u64,
    /// Why it left.
    pub reason: WorkerEndReason,
    /// How many attempts did not end when it was stopped, and were killed.
    pub killed: u64,
}

/// Why a worker left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkerEndReason {
    /// It had nothing to do for long enough.
    Idle,
    /// It was asked to.
    Stopped,
    /// All that it was for is over: its one task, or as many as it was to take.
    Done,
    /// It was as old as it was to become.
    Aged,
    /// It lost its lease, and with that the last attempt that it was to make: others have the task.
    LeaseLost,
}

/// How long leaving the registry may take where the broker is away: the lease runs out sooner than that.
const LEAVE_WITHIN: Duration = Duration::from_secs(30);
/// One in this many workers for one task removes expired records.
const PURGE_ONE_IN: u64 = 64;
/// The part of an id below the clock's: a counter that hardly ever moves.
const TID_STEP: u64 = 4096;

impl Worker {
    /// Enters a worker into the broker's registry.
    pub async fn register(broker: Arc<dyn Broker>, options: Options) -> Result<Self> {
        let line = Registration::register(&broker, options.info(), options.lease).await?;
        Ok(Self::new(broker, options, line, None, false))
    }

    fn new(
        broker: Arc<dyn Broker>,
        options: Options,
        line: Registration,
        claim: Option<LeasedTask>,
        own: bool,
    ) -> Self {
        broker.acquire_liveness_lock(line.tid);
        let worker = Self {
            broker,
            options,
            line,
            claim,
            strangers: raddle_runner::children().into(),
            own,
            begun: watch::Sender::new(0),
            born: Instant::now(),
            standstill: SuspendGuard::default(),
        };
        worker.announce();
        worker
    }

    /// Submits a task together with a worker that will run it, in one step. There is no worker when another task has the same key.
    ///
    /// Nothing is submitted, and `None` returned, when `give_up` comes first. Dropping this may leave a task behind that nobody waits for.
    pub async fn submit(
        broker: Arc<dyn Broker>,
        task: NewTask,
        options: Options,
        give_up: impl Future<Output = ()>,
    ) -> Result<Option<(Submitted, Option<Self>)>> {
        let lease = WorkerLease::ask(options.lease)?;
        let request = SubmitAndClaim {
            task,
            worker: options.info(),
            lease: options.lease,
        };
        let SubmitAndClaimOutcome {
            submitted,
            worker,
            claim,
        } = tokio::select! {
            biased;
            own = broker.submit_and_claim(request) => own?,
            () = give_up => return Ok(None),
        };
        let Some(tid) = worker else {
            return Ok(Some((submitted, None)));
        };
        let line = Registration::open(&broker, tid, lease).await?;
        let options = Options {
            only: Some(submitted.tid()),
            ..options
        };
        Ok(Some((
            submitted,
            Some(Self::new(broker, options, line, claim, true)),
        )))
    }

    /// The worker's own id.
    pub fn tid(&self) -> Tid {
        self.line.tid
    }

    /// Whether it should remove expired records first. Where only workers for one task come, one in many does what a resident worker does every minute.
    pub(crate) fn should_purge(&self) -> bool {
        self.options.only.is_some()
            && (self.line.tid.as_u64() / TID_STEP).is_multiple_of(PURGE_ONE_IN)
    }

    /// How many attempts it has begun, as it begins them.
    pub fn begun(&self) -> watch::Receiver<u64> {
        self.begun.subscribe()
    }

    /// What lets this process be stopped for a while.
    pub fn standstill(&self) -> SuspendGuard {
        self.standstill.clone()
    }

    /// Works until it is asked to stop, has been idle for long enough, or its one task is over.
    ///
    /// A worker that loses its lease, because it was stopped or cut off for longer than that, kills what it runs and goes on under a new
    /// id.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<WorkerEnd> {
        if let Err(error) = raddle_runner::become_subreaper() {
            tracing::warn!(%error, "the grandchildren of a killed runner will not be found");
        }
        // To find a group to work in takes as long as to start a process, and a single task without limits has no use for one.
        let needs_group = !self.options.grouped
            && self
                .claim
                .as_ref()
                .is_none_or(|claim| !claim.spec.limits.is_empty());
        if let Some(Err(error)) = needs_group.then(raddle_runner::cgroup::prepare) {
            tracing::debug!(%error, "limits are kept without control groups");
        }
        // It ends with this worker, whichever way that ends.
        let _scheduling = self
            .options
            .schedules
            .then(|| schedule::RunningScheduler::start(Arc::clone(&self.broker)));
        // So does this. Who comes for one task has no time for the others'.
        let mut beside = JoinSet::new();
        if self.claim.is_none() && !self.options.is_for_one() {
            let broker = Arc::clone(&self.broker);
            beside.spawn(async move {
                if let Err(error) = orphan_processes::of_anybody(&*broker).await {
                    tracing::warn!(%error, "what is left of earlier attempts could not be looked for");
                }
            });
        }
        let mut killed = 0;
        loop {
            let tid = self.line.tid;
            let closed = WorkerService::start(&mut self, &shutdown).run().await;
            let LoopClosed {
                end,
                is_hasty,
                has_ended_task,
                ..
            } = closed;
            killed += closed.killed;
            let tasks = *self.begun.borrow();
            let ended = |reason| WorkerEnd {
                tasks,
                reason,
                killed,
            };
            let is_spent = self.options.most_tasks().is_some_and(|max| max <= tasks);
            match end {
                Ok(LoopEnd::Left(reason)) => {
                    if !(self.own && has_ended_task) {
                        self.leave(None, is_hasty, &shutdown).await?;
                    }
                    return Ok(ended(reason));
                }
                Ok(LoopEnd::LeaseLost) if is_spent => return Ok(ended(WorkerEndReason::LeaseLost)),
                Ok(LoopEnd::LeaseLost) => {
                    tracing::warn!(worker = %tid, "the lease was lost: its tasks go to others, or begin again");
                    let Self {
                        broker, options, ..
                    } = &self;
                    let anew = Registration::anew(
                        broker,
                        &options.info(),
                        options.lease,
                        options.give_up_after,
                        &shutdown,
                    )
                    .await?;
                    // It has nothing that would have to be given back.
                    let Some(line) = anew else {
                        return Ok(ended(WorkerEndReason::Stopped));
                    };
                    (self.line, self.own) = (line, false);
                    self.broker.acquire_liveness_lock(self.line.tid);
                    self.announce();
                    // Where nobody took over, what it had claimed and not begun waits for this.
                    let _ = self
                        .broker
                        .deregister(tid, Some("its lease ran out".into()))
                        .await;
                    tracing::warn!(was = %tid, now = %self.line.tid, "registered anew");
                }
                // Nobody is there to be told.
                Err(error @ (Error::Unreachable { .. } | Error::AgentGone { .. })) => {
                    return Err(error);
                }
                Err(error) => {
                    let _ = self
                        .leave(Some(error.to_string()), is_hasty, &shutdown)
                        .await;
                    return Err(error);
                }
            }
        }
    }

    /// Leaves the registry. Who is killed, or was and still is here, does not wait for long: what it has is taken back from it when its lease has
    /// run out.
    async fn leave(
        &self,
        failure: Option<String>,
        is_hasty: bool,
        shutdown: &Shutdown,
    ) -> Result<()> {
        let out_of_time = async {
            if !is_hasty {
                let _ = timeout(LEAVE_WITHIN, shutdown.asked(KILLED_AFTER)).await;
            }
            sleep(LAST_TRY).await;
        };
        let left = tokio::select! {
            left = self.broker.deregister(self.line.tid, failure) => Some(left),
            () = out_of_time => None,
        };
        match left {
            Some(Err(error)) if is_hasty || error.is_out_of_space() => {
                tracing::warn!(%error, "left without a word: the lease will run out")
            }
            Some(left) => return left,
            None => tracing::warn!(
                "left without a word, for the broker does not answer: the lease will run out"
            ),
        }
        Ok(())
    }

    /// Lets its process be stopped for a while under its present lease.
    fn announce(&self) {
        let Self { broker, line, .. } = self;
        self.standstill.enter(CurrentRegistration {
            broker: Arc::clone(broker),
            tid: line.tid,
            lease: line.lease.clone(),
            vitals: Arc::clone(&line.vitals),
        });
    }
}
