//! The state of a pool's own workers: which are ready, which are published, and their call counts.
//! The loop that keeps them running is in `supervisor_loop.rs`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::{BoxFuture, join_all};
use raddle_discovery::{Address, DiscoveryEvent, Publisher, WorkerMetadata, WorkerUid};
use raddle_tls::WorkerCredentials;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::warn;

use super::{PoolError, supervisor_loop::SupervisorLoop};
use crate::{
    balancer::BalancerContext,
    connection::{ConnectWait, ConnectionFactory},
    membership::PoolKey,
    proxy::{DemandOutcome, WorkerSource},
    worker::{CallCounts, StopMode, Worker},
};

/// How long after a failed call the pool may take to notice that its worker has ended.
const EXIT_DELAY: Duration = Duration::from_millis(20);

/// How long callers wait for the first worker before the log says why.
const EXPLAIN_AFTER: Duration = Duration::from_secs(2);

/// Makes the worker of a slot, with these tags. Slots are numbered from 0; a worker that ends is
/// replaced in its slot.
pub(super) type WorkerMaker =
    Arc<dyn Fn(usize, &BTreeSet<String>) -> Arc<dyn Worker> + Send + Sync>;

/// The workers that a pool keeps.
pub(super) struct PoolPlan {
    pub(super) size: usize,
    pub(super) quorum: usize,
    pub(super) tags: BTreeSet<String>,
    pub(super) make: WorkerMaker,
    pub(super) publishers: Vec<Arc<dyn Publisher>>,
    pub(super) start_timeout: Option<Duration>,
    /// Limit on calls in flight per worker.
    pub(super) limit: usize,
    /// Proves to workers that calls come from their pool.
    pub(super) key: PoolKey,
    /// For workers that serve over TLS.
    pub(super) credentials: Option<WorkerCredentials>,
    /// This process calls the workers, so TLS must work between both.
    pub(super) is_local_caller: bool,
}

/// Keeps the workers of a pool.
pub(super) struct PoolSupervisor {
    pub(super) plan: PoolPlan,
    /// Where calls find the workers.
    pub(super) context: BalancerContext,
    state: watch::Sender<SupervisorState>,
    stop: watch::Sender<Option<StopMode>>,
    /// The `SupervisorLoop`. `None` before the start and after the stop.
    task: Mutex<Option<JoinSet<()>>>,
    counts: Mutex<PoolCounts>,
    /// The number of arrivals when the log last explained a wait.
    explained: Mutex<Option<u64>>,
}

/// Call counts of the pool's workers.
#[derive(Default)]
struct PoolCounts {
    /// Running workers, which can be queried.
    running: BTreeMap<WorkerUid, Arc<dyn Worker>>,
    /// The sum of those that have ended.
    ended: CallCounts,
}

#[derive(Debug, Default)]
struct SupervisorState {
    /// Number of workers that have become ready.
    arrivals: u64,
    /// Ready workers.
    serving: Vec<WorkerMetadata>,
    /// Number of slots whose first worker became ready.
    first_ready: usize,
    /// Why the others did not.
    causes: Vec<String>,
    /// Number of workers that ended unasked, or could not be started.
    losses: u64,
    /// How the last of these ended.
    last_loss: Option<String>,
    /// A crash-loop backoff delays some starts.
    is_backing_off: bool,
    /// A crash-loop backoff delays all starts.
    all_delayed: bool,
}

impl PoolSupervisor {
    pub(super) fn new(plan: PoolPlan, context: BalancerContext) -> Arc<Self> {
        Arc::new(Self {
            plan,
            context,
            state: watch::Sender::default(),
            stop: watch::Sender::new(None),
            task: Mutex::default(),
            counts: Mutex::default(),
            explained: Mutex::default(),
        })
    }

    /// Starts all workers concurrently. Does nothing if they were started or stopped.
    pub(super) fn start(self: &Arc<Self>) {
        let mut current = self.task();
        if current.is_some() || self.stop.borrow().is_some() {
            return;
        }
        let mut task = JoinSet::new();
        task.spawn(SupervisorLoop::new(Arc::clone(self), self.plan.size).run());
        *current = Some(task);
    }

    /// Waits until the quorum is ready, or cannot be reached.
    pub(super) async fn wait_until_started(&self) -> Result<(), PoolError> {
        let PoolPlan { size, quorum, .. } = self.plan;
        let mut state = self.state.subscribe();
        let decided = |state: &SupervisorState| {
            state.first_ready >= quorum || state.causes.len() > size - quorum
        };
        let waiting = self.explain_while(state.wait_for(|state| decided(state)));
        let causes = match waiting.await {
            Ok(state) if state.first_ready >= quorum => return Ok(()),
            Ok(state) => state.causes.clone(),
            Err(_) => Vec::new(),
        };
        // Collect the causes of workers that are about to fail too.
        let all = |state: &SupervisorState| state.first_ready + state.causes.len() >= size;
        let causes = match timeout(Duration::from_secs(1), state.wait_for(|state| all(state))).await
        {
            Ok(Ok(state)) => state.causes.clone(),
            _ => causes,
        };
        self.stop(StopMode::Cancel).await;
        Err(PoolError::Start {
            wanted: size,
            causes,
        })
    }

    /// Stops all workers. Returns when they are gone. [`escalate_stop`](Self::escalate_stop) makes
    /// a stop faster.
    pub(super) async fn stop(&self, mode: StopMode) {
        self.stop.send_replace(Some(mode));
        let task = self.task().take();
        if let Some(mut task) = task {
            task.join_next().await;
        }
    }

    /// Cancels the calls that a running stop waits for.
    pub(super) fn escalate_stop(&self) {
        self.stop.send_replace(Some(StopMode::Cancel));
    }

    /// The ready workers.
    pub(super) fn serving(&self) -> Vec<WorkerMetadata> {
        self.state.borrow().serving.clone()
    }

    /// Number of ready workers, number of losses, and whether a crash-loop backoff delays starts.
    pub(super) fn status(&self) -> (usize, u64, bool) {
        let state = self.state.borrow();
        (state.serving.len(), state.losses, state.is_backing_off)
    }

    /// The call counts of all workers, including those that have ended. Each is queried, and has a
    /// second to answer.
    pub(super) async fn call_counts(&self) -> CallCounts {
        let (running, mut sum) = {
            let counts = self.counts();
            (
                counts.running.values().cloned().collect::<Vec<_>>(),
                counts.ended.clone(),
            )
        };
        // Concurrently, so that a slow worker does not delay the others.
        let counts = join_all(running.iter().map(|worker| worker.call_counts())).await;
        counts.iter().flatten().for_each(|counts| sum.add(counts));
        sum
    }

    /// Drops all workers, which kills them.
    pub(super) fn drop_workers(&self) {
        self.stop.send_replace(Some(StopMode::Cancel));
        drop(self.task().take());
        // `LocalWorker` kills its process when its last reference is dropped.
        self.counts().running.clear();
        // Only the pool's own workers: the context may hold discovered ones too.
        let mut own = Vec::new();
        self.state
            .send_modify(|state| own = std::mem::take(&mut state.serving));
        own.iter().for_each(|worker| self.withdraw(worker));
    }

    /// Registers a worker that is ready.
    pub(super) async fn register_worker(
        &self,
        worker: &Arc<dyn Worker>,
        metadata: &WorkerMetadata,
        is_first: bool,
    ) {
        self.counts()
            .running
            .insert(worker.uid(), Arc::clone(worker));
        let factory = self.put_in_context(metadata);
        // Before the next await, so that `drop_worker` finds the worker if this is cancelled.
        self.state
            .send_modify(|state| state.serving.push(metadata.clone()));
        let fault = match self.check_tls(metadata, &factory).await {
            Ok(()) => self
                .publish(&DiscoveryEvent::Added(metadata.clone()))
                .await
                .err(),
            Err(fault) => {
                warn!(worker = %metadata.uid, fault, "a worker cannot be called");
                Some(fault)
            }
        };
        // After the start, a worker with a fault is better than none.
        self.state.send_modify(|state| {
            state.arrivals += 1;
            match fault.filter(|_| is_first) {
                Some(fault) => state.causes.push(fault),
                None => state.first_ready += usize::from(is_first),
            }
        });
    }

    /// Checks TLS between this process and a worker of the pool.
    async fn check_tls(
        &self,
        worker: &WorkerMetadata,
        factory: &ConnectionFactory,
    ) -> Result<(), String> {
        let PoolPlan {
            credentials,
            is_local_caller,
            ..
        } = &self.plan;
        let is_tcp = matches!(worker.address.parse(), Ok(Address::Tcp(_)));
        match (credentials, worker.secure) {
            _ if !is_local_caller => Ok(()),
            (None, true) => {
                Err("the worker serves over TLS, and the pool has no credentials: set the pool's with \
                                 `.credentials(…)`"
                    .into())
            }
            (Some(_), false) if is_tcp => {
                Err("the pool has credentials, and the worker serves without TLS: set the worker's with \
                                                     `LocalWorker::credentials`"
                    .into())
            }
            (Some(_), true) => factory.ensure_connected(ConnectWait::UntilDone).await.map_err(|error| {
                format!(
                    "TLS between the pool and its worker at {} failed: {error}. Check the certificate with \
                     `raddle cert show`",
                    worker.address
                )
            }),
            (_, false) => Ok(()),
        }
    }

    pub(super) fn put_in_context(&self, metadata: &WorkerMetadata) -> ConnectionFactory {
        let credentials = self.plan.credentials.clone().filter(|_| metadata.secure);
        let factory =
            ConnectionFactory::new(&metadata.address, self.plan.limit).credentials(credentials);
        let factory = factory
            .encodings(&metadata.encodings)
            .with_membership(self.plan.key.proof_for(metadata.uid));
        self.context
            .put_pool_worker(metadata.clone(), factory.clone());
        factory
    }

    /// Unregisters a worker that has ended or is about to stop.
    pub(super) async fn unregister_worker(&self, metadata: WorkerMetadata) {
        self.context.remove_worker(metadata.uid);
        self.state
            .send_modify(|state| state.serving.retain(|worker| worker.uid != metadata.uid));
        let _ = self.publish(&DiscoveryEvent::Dropped(metadata)).await;
    }

    /// Keeps the final counts of a worker.
    pub(super) async fn keep_final_counts(&self, worker: &dyn Worker) {
        let done = worker.call_counts().await.map(CallCounts::ended);
        let mut counts = self.counts();
        counts.running.remove(&worker.uid());
        done.iter().for_each(|done| counts.ended.add(done));
    }

    /// Records that a worker ended unasked, or could not be started. `is_cause`: it was the first
    /// in its slot and never became ready.
    pub(super) fn record_loss(&self, how: &str, is_cause: bool) {
        self.state.send_modify(|state| {
            state.losses += 1;
            state.last_loss = Some(how.to_owned());
            state.causes.extend(is_cause.then(|| how.to_owned()));
        });
    }

    /// Waits for workers. If that takes long, logs why, once for all waiting calls.
    async fn explain_while<T>(&self, waiting: impl Future<Output = T>) -> T {
        let mut waiting = pin!(waiting);
        if let Ok(done) = timeout(EXPLAIN_AFTER, &mut waiting).await {
            return done;
        }
        let (arrivals, line) = {
            let state = self.state.borrow();
            let why = match &state.last_loss {
                Some(how) => {
                    format!(
                        "the last one failed ({how}); see what its program writes to standard error"
                    )
                }
                None => "they are starting; check what the program does before `#[raddle::main]`"
                    .to_owned(),
            };
            (
                state.arrivals,
                format!(
                    "waiting for workers: {} of {} are ready; {why}",
                    state.serving.len(),
                    self.plan.size
                ),
            )
        };
        let before = self
            .explained
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(arrivals);
        if before != Some(arrivals) {
            warn!("{line}");
        }
        waiting.await
    }

    /// Records whether a crash-loop backoff delays some starts, and whether it delays all.
    pub(super) fn record_backoff(&self, is_backing_off: bool, all_delayed: bool) {
        self.state.send_if_modified(|state| {
            let before = (state.is_backing_off, state.all_delayed);
            (state.is_backing_off, state.all_delayed) = (is_backing_off, all_delayed);
            before != (is_backing_off, all_delayed)
        });
    }

    /// Unregisters a worker whose task was cancelled or panicked, without waiting.
    pub(super) fn drop_worker(&self, uid: WorkerUid) {
        self.counts().running.remove(&uid);
        let mut left = None;
        self.state.send_if_modified(|state| {
            left = state
                .serving
                .iter()
                .position(|worker| worker.uid == uid)
                .map(|at| state.serving.remove(at));
            left.is_some()
        });
        left.into_iter().for_each(|worker| self.withdraw(&worker));
    }

    fn withdraw(&self, worker: &WorkerMetadata) {
        self.context.remove_worker(worker.uid);
        self.plan
            .publishers
            .iter()
            .for_each(|publisher| publisher.withdraw(worker));
    }

    /// Publishes with all publishers. Returns the last error; a worker that is not published can
    /// still be called by the pool.
    pub(super) async fn publish(&self, event: &DiscoveryEvent) -> Result<(), String> {
        let mut outcome = Ok(());
        for publisher in &self.plan.publishers {
            if let Err(error) = publisher.publish(event.clone()).await {
                warn!(%error, "cannot publish a change of a worker");
                outcome = Err(error.to_string());
            }
        }
        outcome
    }

    /// The requested stop, if any.
    pub(super) fn subscribe_stop(&self) -> watch::Receiver<Option<StopMode>> {
        self.stop.subscribe()
    }

    /// The mode of the requested stop.
    pub(super) fn stop_mode(&self) -> StopMode {
        self.stop.borrow().unwrap_or_default()
    }

    fn counts(&self) -> MutexGuard<'_, PoolCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn task(&self) -> MutexGuard<'_, Option<JoinSet<()>>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts workers on demand of a proxy.
pub(super) struct WorkerDemand(pub(super) Arc<PoolSupervisor>);

impl WorkerSource for WorkerDemand {
    fn arrivals(&self) -> u64 {
        self.0.state.borrow().arrivals
    }

    fn request_worker(&self, seen: u64, brief: Duration) -> BoxFuture<'_, DemandOutcome> {
        Box::pin(async move {
            let supervisor = &self.0;
            supervisor.start();
            let mut state = supervisor.state.subscribe();
            let size = supervisor.plan.size;
            // A call may fail before the end of its worker is noticed.
            let is_short =
                |state: &SupervisorState| state.arrivals > seen || state.serving.len() < size;
            if timeout(EXIT_DELAY, state.wait_for(is_short)).await.is_err() {
                return DemandOutcome::Unavailable;
            }
            let (mut stop, mut pauses) =
                (supervisor.stop.subscribe(), supervisor.state.subscribe());
            let held_back = async {
                sleep(brief).await;
                pauses.wait_for(|state| state.all_delayed).await.is_ok()
            };
            tokio::select! {
                biased;
                Ok(_) = supervisor.explain_while(state.wait_for(|state| state.arrivals > seen)) => DemandOutcome::Arrived,
                _ = stop.wait_for(Option::is_some) => DemandOutcome::Unavailable,
                true = held_back => DemandOutcome::BackedOff,
                else => DemandOutcome::Unavailable,
            }
        })
    }
}

impl fmt::Debug for PoolSupervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolSupervisor")
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}
