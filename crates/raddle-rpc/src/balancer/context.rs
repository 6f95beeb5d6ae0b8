//! The workers of one pool, as balancers see them.

use std::{
    fmt,
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use raddle_discovery::{Address, WorkerMetadata, WorkerUid};
use tokio::{sync::watch, time::Instant};

use super::endpoint_health::{EndpointHealth, InFlightCall};
use crate::{
    RpcError,
    connection::{CallRequest, ConnectWait, ConnectionFactory, LossListener, ReplyStream},
};

/// The workers of one pool, with their connections and health. The proxy keeps it up to date from
/// discovery; balancers remove unusable workers.
#[derive(Clone, Default)]
pub struct BalancerContext(Arc<Inner>);

#[derive(Default)]
struct Inner {
    table: RwLock<EndpointTable>,
    /// Counter for round robin. It is here and not in the balancer, which may serve many pools.
    turn: AtomicUsize,
    /// Notified on each change.
    changes: watch::Sender<()>,
    /// Asks discovery whether an unreachable worker still exists.
    rechecks: OnceLock<RecheckFn>,
}

/// The known workers.
#[derive(Default)]
struct EndpointTable {
    workers: Arc<[Endpoint]>,
    /// Cached description of the workers for nested calls.
    route: OnceLock<Bytes>,
}

/// Asks discovery to check a worker that could not be reached.
type RecheckFn = Box<dyn Fn(&WorkerMetadata) + Send + Sync>;

/// A worker, with its connection and health.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The worker's published metadata.
    pub metadata: Arc<WorkerMetadata>,
    /// Makes connections to the worker.
    pub factory: ConnectionFactory,
    pub(super) health: Arc<EndpointHealth>,
    /// Started by the pool itself, whose supervisor knows best whether the worker exists.
    is_pool_worker: bool,
    /// The address that others use for a worker of the pool, if it is published.
    public_address: Option<Arc<str>>,
}

impl BalancerContext {
    /// A snapshot of all workers, oldest first.
    pub fn workers(&self) -> Arc<[Endpoint]> {
        Arc::clone(
            &self
                .0
                .table
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .workers,
        )
    }

    /// A worker has accepted its first call, which changes the route: drop the cached one.
    pub(super) fn invalidate_route(&self) {
        self.0
            .table
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .route
            .take();
    }

    /// The description of the workers for nested calls. `make` runs once per change.
    pub(crate) fn route(&self, make: impl FnOnce(&[Endpoint]) -> Bytes) -> Bytes {
        let table = self.0.table.read().unwrap_or_else(PoisonError::into_inner);
        table.route.get_or_init(|| make(&table.workers)).clone()
    }

    /// Adds or updates a worker. A worker that the pool has started keeps its metadata.
    pub fn put_worker(&self, metadata: WorkerMetadata, factory: ConnectionFactory) {
        self.put_endpoint(metadata, factory, false);
    }

    /// Adds or updates a worker that the pool has started.
    pub(crate) fn put_pool_worker(&self, metadata: WorkerMetadata, factory: ConnectionFactory) {
        self.put_endpoint(metadata, factory, true);
    }

    fn put_endpoint(
        &self,
        metadata: WorkerMetadata,
        factory: ConnectionFactory,
        is_pool_worker: bool,
    ) {
        let metadata = Arc::new(metadata);
        let (context, worker) = (Arc::downgrade(&self.0), Arc::clone(&metadata));
        let request_recheck = move || {
            context
                .upgrade()
                .iter()
                .for_each(|context| context.request_recheck(&worker))
        };
        let health = Arc::new(EndpointHealth::new(metadata.uid, Box::new(request_recheck)));
        let mut endpoint = Endpoint {
            metadata,
            factory,
            health,
            is_pool_worker,
            public_address: None,
        };
        self.change(|workers| {
            match workers
                .iter_mut()
                .find(|known| known.metadata.uid == endpoint.metadata.uid)
            {
                Some(known) if known.is_pool_worker && !is_pool_worker => {
                    known.public_address = Some(endpoint.metadata.address.as_str().into())
                }
                Some(known) => {
                    // A restarted process starts with fresh health.
                    if known.metadata.pid == endpoint.metadata.pid
                        && known.metadata.address == endpoint.metadata.address
                    {
                        endpoint.health = Arc::clone(&known.health);
                        endpoint.factory.share_channel(&known.factory);
                    }
                    endpoint.public_address = known.public_address.take();
                    *known = endpoint;
                }
                None => workers.push(endpoint),
            }
        });
    }

    /// Removes a worker. Returns whether it was known.
    pub fn remove_worker(&self, uid: WorkerUid) -> bool {
        let mut was_there = false;
        self.change(|workers| {
            let before = workers.len();
            workers.retain(|known| known.metadata.uid != uid);
            was_there = workers.len() < before;
        });
        was_there
    }

    /// Removes a worker that discovery no longer lists. Workers of the pool stay: discovery may be
    /// forged.
    pub(crate) fn forget_worker(&self, uid: WorkerUid) {
        self.change(|workers| {
            workers.retain(|known| known.metadata.uid != uid || known.is_pool_worker)
        });
    }

    /// Asks discovery to check a worker that could not be reached. Failed calls through
    /// [`Endpoint::dispatch`] do this themselves.
    pub fn request_recheck(&self, worker: &WorkerMetadata) {
        self.0.request_recheck(worker);
    }

    /// Notified on each change from now on.
    pub(crate) fn subscribe_changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    /// Sets how workers are checked. Only the first call has an effect.
    pub(crate) fn on_unreachable(
        &self,
        rechecks: impl Fn(&WorkerMetadata) + Send + Sync + 'static,
    ) {
        let _ = self.0.rechecks.set(Box::new(rechecks));
    }

    /// Waits until the worker is removed.
    pub(crate) async fn wait_until_removed(&self, uid: WorkerUid) {
        let mut changes = self.0.changes.subscribe();
        while self
            .workers()
            .iter()
            .any(|worker| worker.metadata.uid == uid)
        {
            // The sender is part of `self`, so the channel cannot close.
            let _ = changes.changed().await;
        }
    }

    /// Returns a counter that grows by one with each call: for round robin.
    pub fn take_turn(&self) -> usize {
        self.0.turn.fetch_add(1, Ordering::Relaxed)
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Endpoint>)) {
        let mut table = self.0.table.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = table.workers.to_vec();
        change(&mut changed);
        *table = EndpointTable {
            workers: changed.into(),
            route: OnceLock::new(),
        };
        drop(table);
        self.0.changes.send_replace(());
    }
}

impl Inner {
    fn request_recheck(&self, worker: &WorkerMetadata) {
        if let Some(rechecks) = self.rechecks.get() {
            rechecks(worker);
        }
    }
}

impl Endpoint {
    /// Sends a call to this worker, and records it: calls in flight, latency and health.
    pub async fn dispatch(
        &self,
        call: CallRequest,
        timeout: Option<Duration>,
    ) -> Result<ReplyStream, RpcError> {
        self.dispatch_counted(
            self.health.begin_call(Instant::now(), timeout),
            call,
            timeout,
            ConnectWait::UntilDone,
        )
        .await
    }

    pub(super) async fn dispatch_counted(
        &self,
        mut in_flight_call: InFlightCall,
        call: CallRequest,
        timeout: Option<Duration>,
        wait: ConnectWait,
    ) -> Result<ReplyStream, RpcError> {
        let outcome = self
            .factory
            .connect()
            .dispatch_with(call, timeout, wait, || in_flight_call.mark_sent())
            .await;
        in_flight_call.record_outcome(outcome.as_ref().err());
        let mut replies = outcome?;
        replies.notify_loss(Arc::clone(&self.health) as Arc<dyn LossListener>);
        replies.hold(in_flight_call);
        Ok(replies)
    }

    /// Whether the pool itself has started the worker.
    pub(crate) fn is_pool_worker(&self) -> bool {
        self.is_pool_worker
    }

    /// Whether the worker has ever accepted a call.
    pub(crate) fn has_accepted_calls(&self) -> bool {
        self.health.has_accepted()
    }

    /// The address that others can use. `None` if there is none: the worker is bound to a wildcard
    /// address, which means another machine elsewhere.
    pub(crate) fn shared_address(&self) -> Option<&str> {
        let own = self.metadata.address.as_str();
        let is_shareable = own
            .parse()
            .is_ok_and(|address| !Address::is_wildcard(&address));
        if is_shareable {
            Some(own)
        } else {
            self.public_address.as_deref()
        }
    }

    /// Calls in flight that were sent by [`dispatch`](Self::dispatch).
    pub fn in_flight(&self) -> usize {
        self.health.in_flight()
    }
}

impl fmt::Debug for BalancerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.workers().iter().map(|endpoint| &endpoint.metadata))
            .finish()
    }
}
