//! The lifecycle of a worker: register, run, deregister.

use std::{future::Future, sync::Arc, time::Duration};

use raddle_broker::{
    Broker, Error, LeasedTask, NewTask, Result, SubmitAndClaim, SubmitAndClaimOutcome, Submitted,
    WorkerTask,
};
use raddle_model::Tid;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use raddle_client::orphan_processes;

use crate::{
    registration::{Registration, WorkerLease},
    scheduler,
};

use super::{
    Options, Shutdown, SuspendGuard,
    event::LoopEnd,
    service::{LoopClosed, WorkerService},
    shutdown::KILL_REQUESTS,
    shutdown_deadline::LAST_TRY_TIMEOUT,
    suspend_guard::CurrentRegistration,
};

/// A registered worker that does not run yet.
pub struct Worker {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) options: Options,
    pub(super) registration: Registration,
    /// A task that it has already claimed.
    pub(super) claim: Option<LeasedTask>,
    /// Child processes that this process had before.
    pub(super) preexisting_children: Arc<[u32]>,
    /// Whether the broker deregisters it when its task finishes.
    pub(super) deregisters_with_task: bool,
    /// Attempts started so far, under all its ids.
    pub(super) attempts_started: watch::Sender<u64>,
    pub(super) created_at: Instant,
    pub(super) suspend_guard: SuspendGuard,
}

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerEnd {
    /// Attempts that it started.
    pub tasks: u64,
    /// Why it ended.
    pub reason: WorkerEndReason,
    /// Attempts that did not end when the worker was stopped, and were killed.
    pub killed: u64,
}

/// Why a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkerEndReason {
    /// It was idle for `idle_exit`.
    Idle,
    /// It was asked to stop.
    Stopped,
    /// Its single task is finished, or it has started `max_tasks` attempts.
    Done,
    /// It has reached `max_uptime`.
    Aged,
    /// It lost its lease with the last attempt that it was allowed: another worker has the task.
    LeaseLost,
}

/// How long deregistering may take. The lease expires sooner.
const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(30);
/// One in this many workers for one task removes expired records.
const PURGE_ONE_IN: u64 = 64;
/// Distance of TIDs of consecutive clock values: the low 12 bits are a counter that is usually
/// zero.
const TID_STEP: u64 = 4096;

impl Worker {
    /// Registers a worker with the broker.
    pub async fn register(broker: Arc<dyn Broker>, options: Options) -> Result<Self> {
        let registration = Registration::register(
            &broker,
            options.worker_info(),
            options.lease,
            WorkerTask::New,
        )
        .await?;
        Ok(Self::new(broker, options, registration, None, false))
    }

    fn new(
        broker: Arc<dyn Broker>,
        options: Options,
        registration: Registration,
        claim: Option<LeasedTask>,
        deregisters_with_task: bool,
    ) -> Self {
        broker.acquire_liveness_lock(registration.tid);
        let worker = Self {
            broker,
            options,
            registration,
            claim,
            preexisting_children: raddle_runner::children().into(),
            deregisters_with_task,
            attempts_started: watch::Sender::new(0),
            created_at: Instant::now(),
            suspend_guard: SuspendGuard::default(),
        };
        worker.publish_registration();
        worker
    }

    /// Submits a task and registers a worker that has claimed it, in one transaction. The worker is
    /// `None` if an unfinished task has the same unique key.
    ///
    /// Returns `None` and submits nothing if `give_up` finishes first. Dropping the future may
    /// leave a submitted task behind.
    pub async fn submit(
        broker: Arc<dyn Broker>,
        task: NewTask,
        options: Options,
        give_up: impl Future<Output = ()>,
    ) -> Result<Option<(Submitted, Option<Self>)>> {
        let lease = WorkerLease::prepare(options.lease)?;
        let request = SubmitAndClaim {
            task,
            worker: options.worker_info(),
            lease: options.lease,
        };
        let SubmitAndClaimOutcome {
            submitted,
            worker,
            claim,
        } = tokio::select! {
            biased;
            claimed = broker.submit_and_claim(request) => claimed?,
            () = give_up => return Ok(None),
        };
        let Some(tid) = worker else {
            return Ok(Some((submitted, None)));
        };
        let registration = Registration::keep_lease(&broker, tid, lease).await?;
        let options = Options {
            only: Some(submitted.tid()),
            ..options
        };
        Ok(Some((
            submitted,
            Some(Self::new(broker, options, registration, claim, true)),
        )))
    }

    /// The worker's id.
    pub fn tid(&self) -> Tid {
        self.registration.tid
    }

    /// Whether it should remove expired records before it runs. Where only workers for one task
    /// run, one in [`PURGE_ONE_IN`] does what a resident worker does every minute.
    pub(crate) fn should_purge(&self) -> bool {
        self.options.only.is_some()
            && (self.registration.tid.as_u64() / TID_STEP).is_multiple_of(PURGE_ONE_IN)
    }

    /// The number of attempts started, as it changes.
    pub fn attempts_started(&self) -> watch::Receiver<u64> {
        self.attempts_started.subscribe()
    }

    /// A guard for suspending this process without losing the lease.
    pub fn suspend_guard(&self) -> SuspendGuard {
        self.suspend_guard.clone()
    }

    /// Runs until it is asked to stop, is idle for `idle_exit`, or its single task is finished.
    ///
    /// A worker that loses its lease, because it was suspended or cut off for longer than that,
    /// kills its attempts and registers under a new id.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<WorkerEnd> {
        if let Err(error) = raddle_runner::become_subreaper() {
            tracing::warn!(%error, "grandchildren of a killed runner will not be found: this process cannot be a subreaper");
        }
        // Finding a writable cgroup takes as long as starting a process, and a single task without
        // limits needs none.
        let needs_cgroup = !self.options.in_cgroup
            && self
                .claim
                .as_ref()
                .is_none_or(|claim| !claim.spec.limits.is_empty());
        if let Some(Err(error)) = needs_cgroup.then(raddle_runner::cgroup::prepare) {
            tracing::debug!(%error, "limits are enforced without cgroups");
        }
        // Stops when this worker ends.
        let _scheduling = self
            .options
            .schedules
            .then(|| scheduler::RunningScheduler::start(Arc::clone(&self.broker)));
        // So does this. A worker for one task skips it.
        let mut background = JoinSet::new();
        if self.claim.is_none() && !self.options.is_single_task() {
            let broker = Arc::clone(&self.broker);
            background.spawn(async move {
                if let Err(error) = orphan_processes::kill_orphans_of_broker(&*broker).await {
                    tracing::warn!(%error, "processes of earlier attempts could not be searched for");
                }
            });
        }
        let mut killed = 0;
        loop {
            let tid = self.registration.tid;
            let closed = WorkerService::start(&mut self, &shutdown).run().await;
            let LoopClosed {
                end,
                deadline_passed,
                has_finished_task,
                ..
            } = closed;
            killed += closed.killed;
            let tasks = *self.attempts_started.borrow();
            let ended = |reason| WorkerEnd {
                tasks,
                reason,
                killed,
            };
            let is_at_task_limit = self.options.max_attempts().is_some_and(|max| max <= tasks);
            match end {
                Ok(LoopEnd::Exit(reason)) => {
                    if !(self.deregisters_with_task && has_finished_task) {
                        self.deregister(None, deadline_passed, &shutdown).await?;
                    }
                    return Ok(ended(reason));
                }
                Ok(LoopEnd::LeaseLost) if is_at_task_limit => {
                    return Ok(ended(WorkerEndReason::LeaseLost));
                }
                Ok(LoopEnd::LeaseLost) => {
                    tracing::warn!(worker = %tid, "the lease was lost: its tasks go to other workers, or run again");
                    let Self {
                        broker, options, ..
                    } = &self;
                    let again = Registration::register_again(
                        broker,
                        &options.worker_info(),
                        options.lease,
                        WorkerTask::New,
                        options.give_up_after,
                        &shutdown,
                    )
                    .await?;
                    // It holds nothing that would have to be released.
                    let Some(registration) = again else {
                        return Ok(ended(WorkerEndReason::Stopped));
                    };
                    (self.registration, self.deregisters_with_task) = (registration, false);
                    self.broker.acquire_liveness_lock(self.registration.tid);
                    self.publish_registration();
                    // If no other worker took over, this releases what it had claimed and not
                    // started.
                    let _ = self
                        .broker
                        .deregister(tid, Some("its lease expired".into()))
                        .await;
                    tracing::warn!(was = %tid, now = %self.registration.tid, "registered again");
                }
                // The broker cannot be reached, so there is nowhere to deregister.
                Err(error @ (Error::Unreachable { .. } | Error::AgentGone { .. })) => {
                    return Err(error);
                }
                Err(error) => {
                    let _ = self
                        .deregister(Some(error.to_string()), deadline_passed, &shutdown)
                        .await;
                    return Err(error);
                }
            }
        }
    }

    /// Deregisters. A worker that was killed does not wait long: its tasks are reclaimed when its
    /// lease expires.
    async fn deregister(
        &self,
        failure: Option<String>,
        deadline_passed: bool,
        shutdown: &Shutdown,
    ) -> Result<()> {
        let out_of_time = async {
            if !deadline_passed {
                let _ = timeout(DEREGISTER_TIMEOUT, shutdown.requested(KILL_REQUESTS)).await;
            }
            sleep(LAST_TRY_TIMEOUT).await;
        };
        let left = tokio::select! {
            left = self.broker.deregister(self.registration.tid, failure) => Some(left),
            () = out_of_time => None,
        };
        match left {
            Some(Err(error)) if deadline_passed || error.is_out_of_space() => {
                tracing::warn!(%error, "could not deregister: the lease will expire")
            }
            Some(left) => return left,
            None => tracing::warn!(
                "could not deregister, the broker does not answer: the lease will expire"
            ),
        }
        Ok(())
    }

    /// Tells the `SuspendGuard` about the current registration.
    fn publish_registration(&self) {
        let Self {
            broker,
            registration,
            ..
        } = self;
        self.suspend_guard.set_registration(CurrentRegistration {
            broker: Arc::clone(broker),
            tid: registration.tid,
            lease: registration.lease.clone(),
            stats: Arc::clone(&registration.stats),
        });
    }
}
