//! The workers of a pool, as whoever has them sees them: those that serve are known to callers, and counted. Who keeps them there is in `keeping.rs`.

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

use super::{PoolError, pool_membership::PoolMembership};
use crate::{
    balancer::BalancerContext,
    connection::{ConnectWait, ConnectionFactory},
    membership::PoolKey,
    proxy::{DemandOutcome, WorkerSource},
    worker::{CallCounts, StopMode, Worker},
};

/// How long the end of a worker may take to be noticed, after a call has met it.
const NOTICED: Duration = Duration::from_millis(20);

/// How long a program waits for the first worker before the log says why.
const EXPLAIN_AFTER: Duration = Duration::from_secs(2);

/// Makes the worker of a place, with these tags. Places are counted from 0; one that ends is followed by another in its place.
pub(super) type WorkerMaker =
    Arc<dyn Fn(usize, &BTreeSet<String>) -> Arc<dyn Worker> + Send + Sync>;

/// What workers are to be kept.
pub(super) struct PoolPlan {
    pub(super) size: usize,
    pub(super) quorum: usize,
    pub(super) tags: BTreeSet<String>,
    pub(super) make: WorkerMaker,
    pub(super) publishers: Vec<Arc<dyn Publisher>>,
    pub(super) start_timeout: Option<Duration>,
    /// Calls in flight to one worker at a time.
    pub(super) limit: usize,
    /// What proves to workers that calls come from here.
    pub(super) key: PoolKey,
    /// As whom workers are spoken to that serve over TLS.
    pub(super) credentials: Option<WorkerCredentials>,
    /// This process calls them, so that TLS has to work between both.
    pub(super) is_called_here: bool,
}

/// Keeps workers.
pub(super) struct PoolSupervisor {
    pub(super) plan: PoolPlan,
    /// Where calls find them.
    pub(super) context: BalancerContext,
    state: watch::Sender<SupervisorState>,
    stop: watch::Sender<Option<StopMode>>,
    /// The one task that keeps them. None before it has begun, and after it was stopped.
    keeping: Mutex<Option<JoinSet<()>>>,
    counted: Mutex<CountedWorker>,
    /// How many workers had come when the log last said why one is waited for.
    explained: Mutex<Option<u64>>,
}

/// Whose deeds are counted.
#[derive(Default)]
struct CountedWorker {
    /// Those that are there can be asked.
    there: BTreeMap<WorkerUid, Arc<dyn Worker>>,
    /// What those have done that are not.
    gone: CallCounts,
}

#[derive(Debug, Default)]
struct SupervisorState {
    /// How often a worker has come.
    arrivals: u64,
    /// Those that serve.
    serving: Vec<WorkerMetadata>,
    /// How many have served when they were first started.
    first: usize,
    /// Why those could not that could not.
    causes: Vec<String>,
    /// How often one has ended without having been told to, or could not be started.
    losses: u64,
    /// How the last of these ended.
    last_loss: Option<String>,
    /// Whether others are held back because of that.
    is_braking: bool,
    /// None is being started before a pause is over.
    is_held_back: bool,
}

impl PoolSupervisor {
    pub(super) fn new(plan: PoolPlan, context: BalancerContext) -> Arc<Self> {
        Arc::new(Self {
            plan,
            context,
            state: watch::Sender::default(),
            stop: watch::Sender::new(None),
            keeping: Mutex::default(),
            counted: Mutex::default(),
            explained: Mutex::default(),
        })
    }

    /// Begins to start workers, all at once.
    pub(super) fn begin(self: &Arc<Self>) {
        let mut keeping = self.keeping();
        if keeping.is_some() || self.stop.borrow().is_some() {
            return;
        }
        let mut task = JoinSet::new();
        task.spawn(PoolMembership::new(Arc::clone(self), self.plan.size).run());
        *keeping = Some(task);
    }

    /// Waits until enough of them serve, or cannot any more.
    pub(super) async fn started(&self) -> Result<(), PoolError> {
        let PoolPlan { size, quorum, .. } = self.plan;
        let mut state = self.state.subscribe();
        let decided =
            |state: &SupervisorState| state.first >= quorum || state.causes.len() > size - quorum;
        let waiting = self.explain_while(state.wait_for(|state| decided(state)));
        let causes = match waiting.await {
            Ok(state) if state.first >= quorum => return Ok(()),
            Ok(state) => state.causes.clone(),
            Err(_) => Vec::new(),
        };
        // Others may be about to find out the same.
        let all = |state: &SupervisorState| state.first + state.causes.len() >= size;
        let causes = match timeout(Duration::from_secs(1), state.wait_for(|state| all(state))).await
        {
            Ok(Ok(state)) => state.causes.clone(),
            _ => causes,
        };
        self.stop(StopMode::None).await;
        Err(PoolError::Start {
            wanted: size,
            causes,
        })
    }

    /// Stops all workers. Returns when they are gone. Whoever is being stopped may be hurried by [`hurry`](Self::hurry).
    pub(super) async fn stop(&self, patience: StopMode) {
        self.stop.send_replace(Some(patience));
        let keeping = self.keeping().take();
        if let Some(mut task) = keeping {
            task.join_next().await;
        }
    }

    /// Has those that are being stopped cancel what is in flight.
    pub(super) fn hurry(&self) {
        self.stop.send_replace(Some(StopMode::None));
    }

    /// Those that serve.
    pub(super) fn serving(&self) -> Vec<WorkerMetadata> {
        self.state.borrow().serving.clone()
    }

    /// How many serve, how many ends were not asked for, and whether others are held back because of them.
    pub(super) fn standing(&self) -> (usize, u64, bool) {
        let state = self.state.borrow();
        (state.serving.len(), state.losses, state.is_braking)
    }

    /// What all workers have done, those included that have ended. Each is asked, and has a second to answer.
    pub(super) async fn tally(&self) -> CallCounts {
        let (there, mut sum) = {
            let counted = self.counted();
            (
                counted.there.values().cloned().collect::<Vec<_>>(),
                counted.gone.clone(),
            )
        };
        // At once: one that does not answer holds up no other.
        let tallies = join_all(there.iter().map(|worker| worker.tally())).await;
        tallies.iter().flatten().for_each(|tally| sum.add(tally));
        sum
    }

    /// Lets go of all workers, which ends them.
    pub(super) fn abandon(&self) {
        self.stop.send_replace(Some(StopMode::None));
        drop(self.keeping().take());
        // A worker is gone with the last who has it.
        self.counted().there.clear();
        // Its own: others may have been found besides.
        let mut own = Vec::new();
        self.state
            .send_modify(|state| own = std::mem::take(&mut state.serving));
        own.iter().for_each(|worker| self.withdraw(worker));
    }

    /// A worker serves.
    pub(super) async fn welcome(
        &self,
        worker: &Arc<dyn Worker>,
        metadata: &WorkerMetadata,
        is_first: bool,
    ) {
        self.counted()
            .there
            .insert(worker.uid(), Arc::clone(worker));
        let factory = self.put(metadata);
        // Before anybody is waited for: whoever has to forget it meanwhile finds it.
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
        // Later on, it is better to have a worker with a fault than none.
        self.state.send_modify(|state| {
            state.arrivals += 1;
            match fault.filter(|_| is_first) {
                Some(fault) => state.causes.push(fault),
                None => state.first += usize::from(is_first),
            }
        });
    }

    /// Says why TLS cannot work between this process and a worker of its own.
    async fn check_tls(
        &self,
        worker: &WorkerMetadata,
        factory: &ConnectionFactory,
    ) -> Result<(), String> {
        let PoolPlan {
            credentials,
            is_called_here,
            ..
        } = &self.plan;
        let is_tcp = matches!(worker.address.parse(), Ok(Address::Tcp(_)));
        match (credentials, worker.secure) {
            _ if !is_called_here => Ok(()),
            (None, true) => {
                Err("the worker serves over TLS, and the pool has no credentials: give the pool the worker's \
                                 with `.credentials(…)`"
                    .into())
            }
            (Some(_), false) if is_tcp => {
                Err("the pool has credentials, and the worker serves without TLS: give \
                                                     the worker the pool's with `LocalWorker::credentials`"
                    .into())
            }
            (Some(_), true) => factory.ensure_connected(ConnectWait::UntilDone).await.map_err(|error| {
                format!(
                    "TLS does not work between the pool and its worker at {}: {error}. Look at the certificate with \
                     `raddle cert show`",
                    worker.address
                )
            }),
            (_, false) => Ok(()),
        }
    }

    pub(super) fn put(&self, metadata: &WorkerMetadata) -> ConnectionFactory {
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

    /// A worker serves no more, or is about not to.
    pub(super) async fn miss(&self, metadata: WorkerMetadata) {
        self.context.remove_worker(metadata.uid);
        self.state
            .send_modify(|state| state.serving.retain(|worker| worker.uid != metadata.uid));
        let _ = self.publish(&DiscoveryEvent::Dropped(metadata)).await;
    }

    /// Keeps what a worker has done that has ended.
    pub(super) async fn count(&self, worker: &dyn Worker) {
        let done = worker.tally().await.map(CallCounts::ended);
        let mut counted = self.counted();
        counted.there.remove(&worker.uid());
        done.iter().for_each(|done| counted.gone.add(done));
    }

    /// One has ended without having been told to, or could not be started. The cause is why the first in a place could not serve.
    pub(super) fn lost(&self, how: &str, is_cause: bool) {
        self.state.send_modify(|state| {
            state.losses += 1;
            state.last_loss = Some(how.to_owned());
            state.causes.extend(is_cause.then(|| how.to_owned()));
        });
    }

    /// Waits for workers. The log says why that takes so long, once for all that wait for the same.
    async fn explain_while<T>(&self, waiting: impl Future<Output = T>) -> T {
        let mut waiting = pin!(waiting);
        if let Ok(done) = timeout(EXPLAIN_AFTER, &mut waiting).await {
            return done;
        }
        let (arrivals, line) = {
            let state = self.state.borrow();
            let why = match &state.last_loss {
                Some(how) => {
                    format!("the last one ended too soon ({how}); look at what its program writes to standard error")
                }
                None => {
                    "they are being started; what their program does before `#[raddle::main]` takes its time".to_owned()
                }
            };
            (
                state.arrivals,
                format!(
                    "a pool waits for workers: {} of {} serve; {why}",
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

    /// Others are held back, or not any more; and whether none is being started because of that.
    pub(super) fn is_braking(&self, is_braking: bool, is_held_back: bool) {
        self.state.send_if_modified(|state| {
            let before = (state.is_braking, state.is_held_back);
            (state.is_braking, state.is_held_back) = (is_braking, is_held_back);
            before != (is_braking, is_held_back)
        });
    }

    /// Forgets a worker whose life is over, if that has not been done in peace.
    pub(super) fn forget(&self, uid: WorkerUid) {
        self.counted().there.remove(&uid);
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

    /// Tells all publishers. Returns what the last that failed says; a worker that is not published can be called all the same.
    pub(super) async fn publish(&self, event: &DiscoveryEvent) -> Result<(), String> {
        let mut outcome = Ok(());
        for publisher in &self.plan.publishers {
            if let Err(error) = publisher.publish(event.clone()).await {
                warn!(%error, "what becomes of a worker cannot be published");
                outcome = Err(error.to_string());
            }
        }
        outcome
    }

    /// Whether they are to stop, and how patiently.
    pub(super) fn asked(&self) -> watch::Receiver<Option<StopMode>> {
        self.stop.subscribe()
    }

    /// What patience there is with those that are to stop.
    pub(super) fn patience(&self) -> StopMode {
        self.stop.borrow().unwrap_or_default()
    }

    fn counted(&self) -> MutexGuard<'_, CountedWorker> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keeping(&self) -> MutexGuard<'_, Option<JoinSet<()>>> {
        self.keeping.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a proxy asks for workers.
pub(super) struct WorkerDemand(pub(super) Arc<PoolSupervisor>);

impl WorkerSource for WorkerDemand {
    fn arrivals(&self) -> u64 {
        self.0.state.borrow().arrivals
    }

    fn wanted(&self, seen: u64, brief: Duration) -> BoxFuture<'_, DemandOutcome> {
        Box::pin(async move {
            let keeper = &self.0;
            keeper.begin();
            let mut state = keeper.state.subscribe();
            let size = keeper.plan.size;
            // One that was met dead may not have been missed yet.
            let is_short =
                |state: &SupervisorState| state.arrivals > seen || state.serving.len() < size;
            if timeout(NOTICED, state.wait_for(is_short)).await.is_err() {
                return DemandOutcome::Never;
            }
            let (mut stop, mut pauses) = (keeper.stop.subscribe(), keeper.state.subscribe());
            let held_back = async {
                sleep(brief).await;
                pauses.wait_for(|state| state.is_held_back).await.is_ok()
            };
            tokio::select! {
                biased;
                Ok(_) = keeper.explain_while(state.wait_for(|state| state.arrivals > seen)) => DemandOutcome::Came,
                _ = stop.wait_for(Option::is_some) => DemandOutcome::Never,
                true = held_back => DemandOutcome::HeldBack,
                else => DemandOutcome::Never,
            }
        })
    }
}

impl fmt::Debug for PoolSupervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper")
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}
