//! `WorkerProxy`: sends calls to workers that a discovery lists, through a balancer.

mod follow;
mod readmission;
mod route;
mod ttl_cache;

use std::{
    collections::BTreeSet,
    fmt,
    future::Future,
    sync::{Arc, Once, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use raddle_discovery::{
    Address, Discovery, DiscoveryError, LocalDiscovery, StaticDiscovery, WorkerFilter,
    WorkerMetadata, WorkerUid,
};
use raddle_tls::WorkerCredentials;
use tokio::{
    task::{AbortHandle, JoinHandle},
    time::Instant,
};

use self::follow::DiscoveryFollower;
pub(crate) use self::route::{CallerRoute, NestedIdentity, NestedProxies, Routing};
use crate::{
    CallError, CallTarget, NoWorkersAvailable,
    balancer::{Balancer, BalancerContext, IntoBalancer, MakeBalancer, RoundRobin},
    connection::{self, CallRequest, ConnectionFactory, ReplyStream},
    membership::PoolKey,
    scope::{CallDestination, Scope},
};

/// Sends calls to workers. Cheap to clone; connections and subscription end with the last clone.
#[derive(Clone)]
pub struct WorkerProxy(Arc<ProxyInner>);

struct ProxyInner {
    context: BalancerContext,
    balancer: Arc<dyn Balancer>,
    /// How nested calls find the same workers, if that does not depend on the workers known.
    route: Option<Bytes>,
    limit: usize,
    /// Workers of the pool that has started this process.
    pool_members: Option<PoolMembers>,
    /// Presented to workers.
    credentials: Option<WorkerCredentials>,
    /// Starts workers on demand, if the proxy belongs to a pool.
    source: Option<Arc<dyn WorkerSource>>,
    /// The task that follows discovery.
    follower: OnceLock<AbortHandle>,
}

/// Starts workers on demand.
pub(crate) trait WorkerSource: Send + Sync + 'static {
    /// Number of workers that have become ready so far.
    fn arrivals(&self) -> u64;

    /// Requests a worker, and waits until more than `seen` have become ready. While a crash-loop
    /// backoff holds workers back, waits no longer than `brief`.
    fn request_worker(&self, seen: u64, brief: Duration) -> BoxFuture<'_, DemandOutcome>;
}

/// The outcome of requesting a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DemandOutcome {
    /// A worker has become ready.
    Arrived,
    /// No worker will become ready: the pool is complete, or stopping.
    Unavailable,
    /// A worker follows later: workers crash, and the next one starts after a backoff.
    BackedOff,
}

/// Workers of the pool that has started this process.
pub(crate) struct PoolMembers {
    pub(crate) key: PoolKey,
    /// Their ids. `None`: all workers found are members.
    pub(crate) uids: Option<BTreeSet<WorkerUid>>,
}

/// Builds a `WorkerProxy`.
pub struct ProxyBuilder {
    from: DiscoverySource,
    tags: BTreeSet<String>,
    balancer: Option<MakeBalancer>,
    limit: usize,
    credentials: Option<WorkerCredentials>,
    source: Option<Arc<dyn WorkerSource>>,
    route: Option<RouteSource>,
    pool_members: Option<PoolMembers>,
    context: BalancerContext,
}

/// How nested calls find the same workers.
enum RouteSource {
    /// By the id of the pool that has started them.
    PoolId(String),
    /// By the route that this process has received.
    Received(Bytes),
}

enum DiscoverySource {
    PoolId(String),
    PoolName(String),
    Discovery(Arc<dyn Discovery>),
    Workers(Vec<WorkerMetadata>),
}

/// How long a call waits for a worker that is starting.
const START_WAIT: Duration = Duration::from_secs(30);
/// How long a call waits while workers crash at start. During a storm of kills, a call has its
/// result or its error within 2 s.
const CRASH_LOOP_WAIT: Duration = Duration::from_millis(1500);

impl WorkerProxy {
    /// For the workers of a pool of this user on this machine, by the pool's name.
    pub fn of_pool(name: impl Into<String>) -> ProxyBuilder {
        ProxyBuilder::new(DiscoverySource::PoolName(name.into()))
    }

    /// For the workers that a pool of this user on this machine has started, by the pool's id.
    pub(crate) fn of_pool_id(id: impl Into<String>) -> ProxyBuilder {
        ProxyBuilder::new(DiscoverySource::PoolId(id.into()))
    }

    /// For the workers that a discovery lists.
    pub fn of_discovery(discovery: impl Discovery) -> ProxyBuilder {
        ProxyBuilder::new(DiscoverySource::Discovery(Arc::new(discovery)))
    }

    /// For these workers.
    pub fn of_workers(workers: impl IntoIterator<Item = WorkerMetadata>) -> ProxyBuilder {
        ProxyBuilder::new(DiscoverySource::Workers(workers.into_iter().collect()))
    }

    /// Runs a future whose calls go through this proxy.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        let destination = CallDestination::Proxy(self.clone());
        // The rest of the scope is that of the place where the future is awaited.
        async move {
            Scope {
                destination,
                ..Scope::current()
            }
            .run(future)
            .await
        }
    }

    /// Spawns a task whose calls go through this proxy. A task of [`tokio::spawn`] is outside every
    /// scope.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        tokio::spawn(self.scope(future))
    }

    /// The known workers.
    pub fn context(&self) -> &BalancerContext {
        &self.0.context
    }

    /// The route for nested calls: the name of the pool, or else the workers known now.
    pub(crate) fn route(&self) -> Bytes {
        match &self.0.route {
            Some(by_name) => by_name.clone(),
            None => self.0.context.route(|workers| {
                route::route_to_workers(workers, self.0.balancer.name(), self.0.limit)
            }),
        }
    }

    pub(crate) async fn dispatch(
        &self,
        call: CallRequest,
        timeout: Option<Duration>,
    ) -> Result<ReplyStream, CallError> {
        let ProxyInner {
            context,
            balancer,
            source,
            ..
        } = &*self.0;
        let Some(source) = source else {
            return balancer.dispatch(call, context, timeout).await;
        };
        let (started, mut has_waited) = (Instant::now(), false);
        loop {
            let seen = source.arrivals();
            let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
            let none = match balancer.dispatch(call.clone(), context, left).await {
                Err(CallError::NoWorkers(none)) => none,
                outcome => return outcome,
            };
            // A killed worker is replaced within moments, so wait instead of failing the call.
            let (start_wait, crash_loop_wait) = (
                START_WAIT.saturating_sub(started.elapsed()),
                CRASH_LOOP_WAIT.saturating_sub(started.elapsed()),
            );
            let outcome = match has_waited && crash_loop_wait.is_zero() {
                true => DemandOutcome::BackedOff,
                false => {
                    tokio::time::timeout(start_wait, source.request_worker(seen, crash_loop_wait))
                        .await
                        .unwrap_or(DemandOutcome::Unavailable)
                }
            };
            match outcome {
                DemandOutcome::Arrived => has_waited = true,
                DemandOutcome::Unavailable => return Err(none.into()),
                DemandOutcome::BackedOff => {
                    let why =
                        "workers end soon after they are started; see their log for the reason";
                    let why = none
                        .0
                        .map_or_else(|| why.to_owned(), |last| format!("{why} ({last})"));
                    return Err(NoWorkersAvailable(Some(why)).into());
                }
            }
        }
    }
}

impl ProxyInner {
    /// Whether the worker's security matches ours: TLS if we have credentials, plain otherwise. A
    /// Unix socket never has TLS, whatever the metadata says.
    fn accepts(&self, worker: &WorkerMetadata) -> bool {
        let is_tcp = matches!(worker.address.parse(), Ok(Address::Tcp(_)));
        worker.secure == self.credentials.is_some() && (is_tcp || !worker.secure)
    }

    fn put_worker(&self, metadata: WorkerMetadata) {
        let factory = ConnectionFactory::new(&metadata.address, self.limit)
            .credentials(self.credentials.clone());
        let factory = factory.encodings(&metadata.encodings);
        let is_member = |members: &&PoolMembers| {
            members
                .uids
                .as_ref()
                .is_none_or(|uids| uids.contains(&metadata.uid))
        };
        let factory = match self.pool_members.as_ref().filter(is_member) {
            Some(members) => factory.with_membership(members.key.proof_for(metadata.uid)),
            None => factory,
        };
        self.context.put_worker(metadata, factory);
    }
}

impl Drop for ProxyInner {
    fn drop(&mut self) {
        if let Some(follower) = self.follower.get() {
            follower.abort();
        }
    }
}

impl CallTarget for WorkerProxy {
    fn proxy(&self) -> &WorkerProxy {
        self
    }
}

impl ProxyBuilder {
    fn new(from: DiscoverySource) -> Self {
        Self {
            from,
            tags: BTreeSet::new(),
            balancer: None,
            limit: connection::LIMIT,
            credentials: None,
            source: None,
            route: None,
            pool_members: None,
            context: BalancerContext::default(),
        }
    }

    /// Use only workers that have all of these tags.
    pub fn tags(mut self, tags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.tags = tags.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the balancer: a value, or a function, `async` or not, that makes one when the proxy
    /// starts. [`RoundRobin`] by default.
    pub fn balancer<Kind>(self, balancer: impl IntoBalancer<Kind>) -> Self {
        self.maybe_balancer(Some(balancer.into_balancer()))
    }

    pub(crate) fn maybe_balancer(mut self, balancer: Option<MakeBalancer>) -> Self {
        self.balancer = balancer;
        self
    }

    /// Sets how many calls one worker gets at a time; further calls wait for a permit.
    pub fn limit(mut self, calls: usize) -> Self {
        self.limit = calls.max(1);
        self
    }

    /// Sets the credentials. Then only workers that serve over TLS are called; without, only those
    /// that do not.
    pub fn credentials(self, credentials: WorkerCredentials) -> Self {
        self.maybe_credentials(Some(credentials))
    }

    pub(crate) fn maybe_credentials(mut self, credentials: Option<WorkerCredentials>) -> Self {
        self.credentials = credentials;
        self
    }

    /// Starts with these workers, which need no discovery.
    pub(crate) fn context(mut self, context: BalancerContext) -> Self {
        self.context = context;
        self
    }

    /// Starts workers on demand.
    pub(crate) fn source(mut self, source: Arc<dyn WorkerSource>) -> Self {
        self.source = Some(source);
        self
    }

    /// Nested calls find the same workers by the id of the pool that has started them.
    pub(crate) fn route_by_pool_id(mut self, id: &str) -> Self {
        self.route = Some(RouteSource::PoolId(id.to_owned()));
        self
    }

    /// Nested calls get this route, as it was received.
    pub(crate) fn forward_route(mut self, route: Bytes) -> Self {
        self.route = Some(RouteSource::Received(route));
        self
    }

    /// Sets the workers of the pool that has started this process.
    pub(crate) fn pool_members(mut self, members: Option<PoolMembers>) -> Self {
        self.pool_members = members;
        self
    }

    /// Subscribes. The workers that exist are known when this returns.
    pub async fn start(self) -> Result<WorkerProxy, DiscoveryError> {
        let Self {
            from,
            tags,
            balancer,
            limit,
            credentials,
            source,
            route,
            pool_members,
            context,
        } = self;
        let balancer = match balancer {
            Some(balancer) => balancer.await,
            None => Arc::new(RoundRobin),
        };
        let (discovery, name): (Arc<dyn Discovery>, _) = match from {
            DiscoverySource::PoolId(id) => (Arc::new(LocalDiscovery::of_pool_id(&id)?), None),
            DiscoverySource::PoolName(pool) => (Arc::new(LocalDiscovery::new(&pool)?), Some(pool)),
            DiscoverySource::Discovery(discovery) => (discovery, None),
            DiscoverySource::Workers(workers) => (Arc::new(StaticDiscovery::new(workers)), None),
        };
        let route = match (route, name) {
            (Some(RouteSource::Received(route)), _) => Some(route),
            (Some(RouteSource::PoolId(id)), _) => {
                Some(route::route_by_pool_id(&id, balancer.name(), limit))
            }
            (None, name) => name.map(|name| {
                route::route_by_name(
                    &name,
                    tags.iter().cloned().collect(),
                    balancer.name(),
                    limit,
                )
            }),
        };
        let filter: Option<WorkerFilter> = (!tags.is_empty()).then(|| {
            Arc::new(move |worker: &WorkerMetadata| tags.is_subset(&worker.tags)) as WorkerFilter
        });
        if discovery.is_unauthenticated()
            && credentials
                .as_ref()
                .is_some_and(|own| !own.expects_peer_names())
        {
            warn_unauthenticated();
        }
        let subscription = discovery.subscribe(filter).await?;
        context.on_unreachable(move |worker| discovery.request_recheck(worker));
        let mut follower = DiscoveryFollower::new(subscription, context.clone());
        let follower_handle = OnceLock::new();
        let inner = ProxyInner {
            context,
            balancer,
            route,
            limit,
            pool_members,
            credentials,
            source,
            follower: follower_handle,
        };
        let inner = Arc::new(inner);
        follower.catch_up(&inner);
        let follower = tokio::spawn(follower.run(Arc::downgrade(&inner)));
        let _ = inner.follower.set(follower.abort_handle());
        Ok(WorkerProxy(inner))
    }
}

/// Logs once per process.
fn warn_unauthenticated() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "any host with a certificate of the CA can pose as a worker: set the expected names, or issue certificates of callers with `raddle cert issue --caller`"
        );
    });
}

impl fmt::Debug for WorkerProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerProxy")
            .field("workers", &self.0.context)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ProxyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyBuilder")
            .field("tags", &self.tags)
            .finish_non_exhaustive()
    }
}
