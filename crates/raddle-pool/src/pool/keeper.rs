//! Keeps the workers of a pool: starts them, and others in the place of those that have ended.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use raddle_core::brake::Brake;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tracing::{info, warn};

use super::PoolError;
use crate::{
    Uid, WorkerMetadata,
    balancer::Context,
    connection::ConnectionFactory,
    credentials::WorkerCredentials,
    discovery::{Event, Publisher},
    proxy::Source,
    serve::words,
    worker::{Patience, Tally, Worker},
};

/// A worker that has lived for so long was well.
const WELL: Duration = Duration::from_secs(5);
/// How long the end of a worker may take to be noticed, after a call has met it.
const NOTICED: Duration = Duration::from_millis(20);

/// Makes the worker of a place, with these tags. Places are counted from 0; one that ends is followed by another in its place.
pub(super) type Make = Arc<dyn Fn(usize, &BTreeSet<String>) -> Arc<dyn Worker> + Send + Sync>;

/// What workers are to be kept.
pub(super) struct Plan {
    pub(super) size: usize,
    pub(super) quorum: usize,
    pub(super) tags: BTreeSet<String>,
    pub(super) make: Make,
    pub(super) publishers: Vec<Arc<dyn Publisher>>,
    pub(super) start_timeout: Option<Duration>,
    /// Calls in flight to one worker at a time.
    pub(super) limit: usize,
    /// As whom workers are spoken to that serve over TLS.
    pub(super) credentials: Option<WorkerCredentials>,
}

/// Keeps workers.
pub(super) struct Keeper {
    plan: Plan,
    /// Where calls find them.
    context: Context,
    began: Instant,
    state: watch::Sender<State>,
    stop: watch::Sender<Option<Patience>>,
    brake: Mutex<Brake>,
    /// One task for each worker. None before it has begun, and after it was stopped.
    places: Mutex<Option<JoinSet<()>>>,
    counted: Mutex<Counted>,
}

/// Whose deeds are counted.
#[derive(Default)]
struct Counted {
    /// Those that are there can be asked.
    there: BTreeMap<Uid, Arc<dyn Worker>>,
    /// What those have done that are not.
    gone: Tally,
}

#[derive(Debug, Default)]
struct State {
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
}

/// How a worker has come to its end.
enum Ended {
    ByItself(String),
    /// A balancer has found it to be broken.
    NoUse,
}

impl Keeper {
    pub(super) fn new(plan: Plan, context: Context) -> Arc<Self> {
        Arc::new(Self {
            plan,
            context,
            began: Instant::now(),
            state: watch::Sender::default(),
            stop: watch::Sender::new(None),
            brake: Mutex::default(),
            places: Mutex::default(),
            counted: Mutex::default(),
        })
    }

    /// Begins to start workers, all at once.
    pub(super) fn begin(self: &Arc<Self>) {
        let mut places = self.places();
        if places.is_some() || self.stop.borrow().is_some() {
            return;
        }
        let mut tasks = JoinSet::new();
        for place in 0..self.plan.size {
            tasks.spawn(Arc::clone(self).keep(place));
        }
        *places = Some(tasks);
    }

    /// Waits until enough of them serve, or cannot any more.
    pub(super) async fn started(&self) -> Result<(), PoolError> {
        let Plan { size, quorum, .. } = self.plan;
        let mut state = self.state.subscribe();
        let decided = |state: &State| state.first >= quorum || state.causes.len() > size - quorum;
        let causes = match state.wait_for(|state| decided(state)).await {
            Ok(state) if state.first >= quorum => return Ok(()),
            Ok(state) => state.causes.clone(),
            Err(_) => Vec::new(),
        };
        // Others may be about to find out the same.
        let all = |state: &State| state.first + state.causes.len() >= size;
        let causes = match timeout(Duration::from_secs(1), state.wait_for(|state| all(state))).await {
            Ok(Ok(state)) => state.causes.clone(),
            _ => causes,
        };
        self.stop(Patience::None).await;
        Err(PoolError::Start { wanted: size, causes })
    }

    /// Stops all workers. Returns when they are gone. Whoever is being stopped may be hurried by [`hurry`](Self::hurry).
    pub(super) async fn stop(&self, patience: Patience) {
        self.stop.send_replace(Some(patience));
        let places = self.places().take();
        if let Some(mut places) = places {
            while places.join_next().await.is_some() {}
        }
    }

    /// Has those that are being stopped cancel what is in flight.
    pub(super) fn hurry(&self) {
        self.stop.send_replace(Some(Patience::None));
    }

    /// Those that serve.
    pub(super) fn serving(&self) -> Vec<WorkerMetadata> {
        self.state.borrow().serving.clone()
    }

    /// How many serve, how many ends were not asked for, and whether others are held back because of them.
    pub(super) fn standing(&self) -> (usize, u64, bool) {
        let (serving, losses) = {
            let state = self.state.borrow();
            (state.serving.len(), state.losses)
        };
        (serving, losses, self.brake().is_on())
    }

    /// What all workers have done, those included that have ended. Each is asked, and has a second to answer.
    pub(super) async fn tally(&self) -> Tally {
        let (there, mut sum) = {
            let counted = self.counted();
            (counted.there.values().cloned().collect::<Vec<_>>(), counted.gone.clone())
        };
        // At once: one that does not answer holds up no other.
        let tallies = join_all(there.iter().map(|worker| worker.tally())).await;
        tallies.iter().flatten().for_each(|tally| sum.add(tally));
        sum
    }

    /// Lets go of all workers, which ends them.
    pub(super) fn abandon(&self) {
        self.stop.send_replace(Some(Patience::None));
        drop(self.places().take());
        // A worker is gone with the last who has it.
        self.counted().there.clear();
        // Its own: others may have been found besides.
        let mut own = Vec::new();
        self.state.send_modify(|state| own = std::mem::take(&mut state.serving));
        for worker in own {
            self.context.remove_worker(worker.uid);
            self.plan.publishers.iter().for_each(|publisher| publisher.withdraw(&worker));
        }
    }

    /// Keeps one worker after the other.
    async fn keep(self: Arc<Self>, place: usize) {
        let mut stop = self.stop.subscribe();
        let mut is_first = true;
        loop {
            let pause = self.brake().holds_until(self.now());
            if let Some(until) = pause {
                tokio::select! {
                    () = sleep_until(self.began + until) => {}
                    _ = stop.wait_for(Option::is_some) => return,
                }
            }
            // It may be a user's code, which must not take the place along when it panics.
            let made = catch_unwind(AssertUnwindSafe(|| (self.plan.make)(place, &self.plan.tags)));
            let worker = match made {
                Ok(worker) => worker,
                Err(thrown) => {
                    let how = format!("whoever makes the workers panicked: {}", words(&*thrown));
                    self.fail(&how, std::mem::take(&mut is_first), Duration::ZERO);
                    continue;
                }
            };
            let start = AssertUnwindSafe(worker.start(self.plan.start_timeout)).catch_unwind();
            let starting = tokio::select! {
                started = start => started,
                _ = stop.wait_for(Option::is_some) => return,
            };
            let began = Instant::now();
            let how = match (starting, worker.metadata()) {
                (Ok(Ok(())), Some(metadata)) => {
                    self.counted().there.insert(worker.uid(), Arc::clone(&worker));
                    self.welcome(&metadata, std::mem::take(&mut is_first)).await;
                    let ended = self.look_after(&*worker, metadata, &mut stop).await;
                    let is_stopped = stop.borrow().is_some();
                    if is_stopped || matches!(ended, Ended::NoUse) {
                        self.dismiss(&*worker, &mut stop).await;
                    }
                    self.count(&*worker).await;
                    match ended {
                        _ if is_stopped => return,
                        Ended::ByItself(how) => how,
                        Ended::NoUse => "it was no use to its callers".to_owned(),
                    }
                }
                (Ok(Ok(())), None) => "it serves nowhere".to_owned(),
                (Ok(Err(error)), _) => error.to_string(),
                (Err(thrown), _) => format!("its start panicked: {}", words(&*thrown)),
            };
            self.fail(&how, std::mem::take(&mut is_first), began.elapsed());
        }
    }

    /// Waits until a worker has ended, is to be stopped, or has been found to be no use.
    async fn look_after(
        &self,
        worker: &dyn Worker,
        mut metadata: WorkerMetadata,
        stop: &mut watch::Receiver<Option<Patience>>,
    ) -> Ended {
        let ended = loop {
            tokio::select! {
                how = worker.ended() => break Ended::ByItself(how),
                () = self.context.removed(metadata.uid) => break Ended::NoUse,
                () = async { drop(stop.wait_for(Option::is_some).await) } => break Ended::ByItself("it is stopped".into()),
                changed = worker.changed() => {
                    metadata = changed;
                    self.put(&metadata);
                    self.publish(&Event::Updated(metadata.clone())).await;
                }
            }
        };
        self.miss(metadata).await;
        ended
    }

    /// A worker serves.
    async fn welcome(&self, metadata: &WorkerMetadata, is_first: bool) {
        self.put(metadata);
        self.publish(&Event::Added(metadata.clone())).await;
        self.state.send_modify(|state| {
            state.arrivals += 1;
            state.serving.push(metadata.clone());
            state.first += usize::from(is_first);
        });
    }

    fn put(&self, metadata: &WorkerMetadata) {
        let credentials = self.plan.credentials.clone().filter(|_| metadata.secure);
        let factory = ConnectionFactory::new(&metadata.address, self.plan.limit).credentials(credentials);
        let factory = factory.encodings(&metadata.encodings);
        self.context.put_own_worker(metadata.clone(), factory);
    }

    /// A worker serves no more, or is about not to.
    async fn miss(&self, metadata: WorkerMetadata) {
        self.context.remove_worker(metadata.uid);
        self.state.send_modify(|state| state.serving.retain(|worker| worker.uid != metadata.uid));
        self.publish(&Event::Dropped(metadata)).await;
    }

    /// Stops a worker: with what patience there is, which may become less meanwhile.
    async fn dismiss(&self, worker: &dyn Worker, stop: &mut watch::Receiver<Option<Patience>>) {
        let mut patience = stop.borrow_and_update().unwrap_or_default();
        let stopped = loop {
            let hurried = async {
                let is_less = |now: &Option<Patience>| patience != Patience::None && *now == Some(Patience::None);
                // Who says so is part of this.
                drop(stop.wait_for(is_less).await);
            };
            tokio::select! {
                stopped = worker.stop(patience) => break stopped,
                () = hurried => patience = Patience::None,
            }
        };
        if let Err(error) = stopped {
            warn!(worker = %worker.uid(), %error, "a worker could not be stopped");
        }
    }

    /// Keeps what a worker has done that has ended.
    async fn count(&self, worker: &dyn Worker) {
        let done = worker.tally().await.map(Tally::ended);
        let mut counted = self.counted();
        counted.there.remove(&worker.uid());
        done.iter().for_each(|done| counted.gone.add(done));
    }

    /// Says what has become of a worker, and how soon there will be another.
    fn fail(&self, how: &str, is_first: bool, lived: Duration) {
        self.state.send_modify(|state| {
            state.losses += 1;
            state.causes.extend(is_first.then(|| how.to_owned()));
        });
        let mut brake = self.brake();
        if lived >= WELL {
            brake.ready();
            info!(how, "a worker has ended, and is replaced");
        } else if let Some(step) = brake.died(self.now()) {
            warn!(how, pause = ?step.pause, "a worker has ended too soon; others are started after a pause");
        }
    }

    /// What cannot be published can be called all the same.
    async fn publish(&self, event: &Event) {
        for publisher in &self.plan.publishers {
            if let Err(error) = publisher.publish(event.clone()).await {
                warn!(%error, "what becomes of a worker cannot be published");
            }
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn brake(&self) -> MutexGuard<'_, Brake> {
        self.brake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn places(&self) -> MutexGuard<'_, Option<JoinSet<()>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a proxy asks for workers.
pub(super) struct Wants(pub(super) Arc<Keeper>);

impl Source for Wants {
    fn arrivals(&self) -> u64 {
        self.0.state.borrow().arrivals
    }

    fn wanted(&self, seen: u64) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let keeper = &self.0;
            keeper.begin();
            let mut state = keeper.state.subscribe();
            let size = keeper.plan.size;
            // One that was met dead may not have been missed yet.
            let is_short = |state: &State| state.arrivals > seen || state.serving.len() < size;
            if timeout(NOTICED, state.wait_for(is_short)).await.is_err() {
                return false;
            }
            let mut stop = keeper.stop.subscribe();
            tokio::select! {
                arrived = state.wait_for(|state| state.arrivals > seen) => arrived.is_ok(),
                _ = stop.wait_for(Option::is_some) => false,
            }
        })
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("state", &*self.state.borrow()).finish_non_exhaustive()
    }
}
