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

/// The workers of one pool, and the ways to them. Kept by its proxy from what a discovery tells; balancers remove workers that are no use.
#[derive(Clone, Default)]
pub struct BalancerContext(Arc<Inner>);

#[derive(Default)]
struct Inner {
    known: RwLock<EndpointTable>,
    /// Whose turn it is, for balancers that go round: one balancer may go round in many pools.
    turn: AtomicUsize,
    /// Tells of changes.
    changes: watch::Sender<()>,
    /// Finds out whether a worker is there.
    doubts: OnceLock<ProbeQueue>,
}

/// The workers that are known.
#[derive(Default)]
struct EndpointTable {
    workers: Arc<[Endpoint]>,
    /// How others find them, once somebody has asked.
    route: OnceLock<Bytes>,
}

/// Finds out whether a worker is there that could not be reached.
type ProbeQueue = Box<dyn Fn(&WorkerMetadata) + Send + Sync>;

/// A worker, and the way to it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// What is known of it.
    pub metadata: Arc<WorkerMetadata>,
    /// Makes connections to it.
    pub factory: ConnectionFactory,
    pub(super) standing: Arc<EndpointHealth>,
    /// The pool itself has started it: nobody else knows better what becomes of it.
    is_own: bool,
    /// Where others find one that the pool has started, if they do.
    public: Option<Arc<str>>,
}

impl BalancerContext {
    /// All workers, in the order in which they came. It is a snapshot: it stays as it is.
    pub fn workers(&self) -> Arc<[Endpoint]> {
        Arc::clone(
            &self
                .0
                .known
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .workers,
        )
    }

    /// One of them has taken a call for the first time: there is more to say of it to others.
    pub(super) fn met(&self) {
        self.0
            .known
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .route
            .take();
    }

    /// How others find them: made once for each change.
    pub(crate) fn route(&self, make: impl FnOnce(&[Endpoint]) -> Bytes) -> Bytes {
        let known = self.0.known.read().unwrap_or_else(PoisonError::into_inner);
        known.route.get_or_init(|| make(&known.workers)).clone()
    }

    /// Adds a worker, or says something else of one that is there. One that the pool has started stays what it is.
    pub fn put_worker(&self, metadata: WorkerMetadata, factory: ConnectionFactory) {
        self.put(metadata, factory, false);
    }

    /// The same with one that the pool has started.
    pub(crate) fn put_own_worker(&self, metadata: WorkerMetadata, factory: ConnectionFactory) {
        self.put(metadata, factory, true);
    }

    fn put(&self, metadata: WorkerMetadata, factory: ConnectionFactory, is_own: bool) {
        let metadata = Arc::new(metadata);
        let (context, worker) = (Arc::downgrade(&self.0), Arc::clone(&metadata));
        let doubt = move || {
            context
                .upgrade()
                .iter()
                .for_each(|context| context.doubt(&worker))
        };
        let standing = Arc::new(EndpointHealth::new(metadata.uid, Box::new(doubt)));
        let mut entry = Endpoint {
            metadata,
            factory,
            standing,
            is_own,
            public: None,
        };
        self.change(|workers| {
            match workers
                .iter_mut()
                .find(|known| known.metadata.uid == entry.metadata.uid)
            {
                Some(known) if known.is_own && !is_own => {
                    known.public = Some(entry.metadata.address.as_str().into())
                }
                Some(known) => {
                    // What was thought of it is worth nothing if it was started anew.
                    if known.metadata.pid == entry.metadata.pid
                        && known.metadata.address == entry.metadata.address
                    {
                        entry.standing = Arc::clone(&known.standing);
                        entry.factory.share_channel(&known.factory);
                    }
                    entry.public = known.public.take();
                    *known = entry;
                }
                None => workers.push(entry),
            }
        });
    }

    /// Removes a worker. Returns whether it was there.
    pub fn remove_worker(&self, uid: WorkerUid) -> bool {
        let mut was_there = false;
        self.change(|workers| {
            let before = workers.len();
            workers.retain(|known| known.metadata.uid != uid);
            was_there = workers.len() < before;
        });
        was_there
    }

    /// Removes a worker that is not heard of any more. One that the pool has started stays: whoever has told of it may be anybody.
    pub(crate) fn forget_worker(&self, uid: WorkerUid) {
        self.change(|workers| workers.retain(|known| known.metadata.uid != uid || known.is_own));
    }

    /// Says that a worker could not be reached, to whoever can find out whether it is there. Calls that were handed over by [`Endpoint::dispatch`] and
    /// have failed say so themselves.
    pub fn doubt(&self, worker: &WorkerMetadata) {
        self.0.doubt(worker);
    }

    /// Waits until something has changed since this was asked for.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    /// Who finds out whether a worker is there. The first stays it.
    pub(crate) fn doubt_by(&self, doubts: impl Fn(&WorkerMetadata) + Send + Sync + 'static) {
        let _ = self.0.doubts.set(Box::new(doubts));
    }

    /// Waits until this worker is not among them.
    pub(crate) async fn removed(&self, uid: WorkerUid) {
        let mut changes = self.0.changes.subscribe();
        while self
            .workers()
            .iter()
            .any(|worker| worker.metadata.uid == uid)
        {
            // Who tells of changes is part of this.
            let _ = changes.changed().await;
        }
    }

    /// A number that is one more each time: for whoever goes round.
    pub fn take_turn(&self) -> usize {
        self.0.turn.fetch_add(1, Ordering::Relaxed)
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Endpoint>)) {
        let mut known = self.0.known.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = known.workers.to_vec();
        change(&mut changed);
        *known = EndpointTable {
            workers: changed.into(),
            route: OnceLock::new(),
        };
        drop(known);
        self.0.changes.send_replace(());
    }
}

impl Inner {
    fn doubt(&self, worker: &WorkerMetadata) {
        if let Some(doubts) = self.doubts.get() {
            doubts(worker);
        }
    }
}

impl Endpoint {
    /// Hands a call to this worker, and keeps account of it: of how many it has, how long they take, and whether it takes them.
    pub async fn dispatch(
        &self,
        call: CallRequest,
        timeout: Option<Duration>,
    ) -> Result<ReplyStream, RpcError> {
        self.hand_over(
            self.standing.ask(Instant::now(), timeout),
            call,
            timeout,
            ConnectWait::UntilDone,
        )
        .await
    }

    pub(super) async fn hand_over(
        &self,
        mut under_way: InFlightCall,
        call: CallRequest,
        timeout: Option<Duration>,
        wait: ConnectWait,
    ) -> Result<ReplyStream, RpcError> {
        let outcome = self
            .factory
            .connect()
            .dispatch_with(call, timeout, wait, || under_way.send())
            .await;
        under_way.hear(outcome.as_ref().err());
        let mut replies = outcome?;
        replies.notify_loss(Arc::clone(&self.standing) as Arc<dyn LossListener>);
        replies.hold(under_way);
        Ok(replies)
    }

    /// Whether the pool itself has started it.
    pub(crate) fn is_own(&self) -> bool {
        self.is_own
    }

    /// Whether it has ever taken a call.
    pub(crate) fn is_met(&self) -> bool {
        self.standing.is_met()
    }

    /// Where others find it. `None` if they do not: it serves at all addresses of this machine, and each machine has its own.
    pub(crate) fn place_for_others(&self) -> Option<&str> {
        let own = self.metadata.address.as_str();
        let is_place = own
            .parse()
            .is_ok_and(|address| !Address::is_everywhere(&address));
        if is_place {
            Some(own)
        } else {
            self.public.as_deref()
        }
    }

    /// The calls that were handed to this worker by [`dispatch`](Self::dispatch), and are not over.
    pub fn in_flight(&self) -> usize {
        self.standing.in_flight()
    }
}

impl fmt::Debug for BalancerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.workers().iter().map(|entry| &entry.metadata))
            .finish()
    }
}
