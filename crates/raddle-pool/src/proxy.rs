//! The bridge between calls and workers: follows a discovery, and has a balancer choose.

use std::{
    collections::BTreeSet,
    fmt,
    future::Future,
    sync::{Arc, LazyLock, OnceLock},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use raddle_wire::v1;
use tokio::{sync::OnceCell, task::AbortHandle, time::Instant};

use crate::{
    CallError, NoWorkersAvailable, On, WorkerMetadata,
    balancer::{Balancer, Context, Entry, RoundRobin},
    connection::{self, ConnectionFactory, Outgoing, Replies, resource::ResourcePool},
    credentials::WorkerCredentials,
    discovery::{Discovery, DiscoveryError, Event, Filter, LocalDiscovery, StaticDiscovery, Subscription},
    scope::{Scope, To},
};

/// Hands calls to workers. Cheap to clone; what it keeps ends with its last clone.
#[derive(Clone)]
pub struct WorkerProxy(Arc<Inner>);

struct Inner {
    context: Context,
    balancer: Arc<dyn Balancer>,
    /// How those who are called find the same workers.
    route: v1::Route,
    limit: usize,
    /// As whom workers are spoken to.
    credentials: Option<WorkerCredentials>,
    /// Who has workers started, where there is somebody.
    source: Option<Arc<dyn Source>>,
    /// Follows the discovery.
    follower: OnceLock<AbortHandle>,
}

/// Somebody who has workers started.
pub(crate) trait Source: Send + Sync + 'static {
    /// How often a worker has come so far.
    fn arrivals(&self) -> u64;

    /// Wants a worker that has come after `seen` others. Returns whether one has: not if none is missing.
    fn wanted(&self, seen: u64) -> BoxFuture<'_, bool>;
}

/// How a proxy is made.
pub struct ProxyBuilder {
    from: From,
    tags: BTreeSet<String>,
    balancer: Option<Arc<dyn Balancer>>,
    limit: usize,
    credentials: Option<WorkerCredentials>,
    source: Option<Arc<dyn Source>>,
    pool: Option<String>,
    context: Context,
}

enum From {
    Pool(String),
    Discovery(Arc<dyn Discovery>),
    Workers(Vec<WorkerMetadata>),
}

/// How long a call waits for a worker where one is being started.
const PATIENCE: Duration = Duration::from_secs(30);

impl WorkerProxy {
    /// One for the workers of a pool of this user on this machine, by its name.
    pub fn of_pool(name: impl Into<String>) -> ProxyBuilder {
        ProxyBuilder::new(From::Pool(name.into()))
    }

    /// One for the workers that a discovery tells of.
    pub fn of_discovery(discovery: impl Discovery) -> ProxyBuilder {
        ProxyBuilder::new(From::Discovery(Arc::new(discovery)))
    }

    /// One for these workers.
    pub fn of_workers(workers: impl IntoIterator<Item = WorkerMetadata>) -> ProxyBuilder {
        ProxyBuilder::new(From::Workers(workers.into_iter().collect()))
    }

    /// Runs a future in which routines are called by this.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        let to = To::Proxy(self.clone());
        // What else surrounds it is what does when it is awaited.
        async move { Scope { to, ..Scope::current() }.around(future).await }
    }

    /// The workers that it knows.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// How those who are called find the same workers: by the name of the pool, or else those that are known now.
    pub(crate) fn route(&self) -> v1::Route {
        let mut route = self.0.route.clone();
        if route.pool.is_empty() && route.workers.is_empty() {
            let workers = self.0.context.workers();
            route.workers = workers.iter().filter_map(Entry::for_others).map(Into::into).collect();
        }
        route
    }

    pub(crate) async fn dispatch(&self, call: Outgoing, timeout: Option<Duration>) -> Result<Replies, CallError> {
        let Inner { context, balancer, source, .. } = &*self.0;
        let Some(source) = source else { return balancer.dispatch(call, context, timeout).await };
        let began = Instant::now();
        loop {
            let seen = source.arrivals();
            let left = timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
            let none = match balancer.dispatch(call.clone(), context, left).await {
                Err(CallError::NoWorkers(none)) => none,
                outcome => return outcome,
            };
            // One that was killed is replaced in no time: whoever calls just then need not hear of it.
            let patience = PATIENCE.saturating_sub(began.elapsed());
            if !tokio::time::timeout(patience, source.wanted(seen)).await.unwrap_or(false) {
                return Err(none.into());
            }
        }
    }
}

impl Inner {
    fn put_worker(&self, metadata: WorkerMetadata) {
        let factory = ConnectionFactory::new(&metadata.address, self.limit).credentials(self.credentials.clone());
        let factory = factory.encodings(&metadata.encodings);
        self.context.put_worker(metadata, factory);
    }

    fn hear(&self, event: Event) {
        match event {
            // What is protected is not for those who cannot prove who they are, and the other way round.
            Event::Added(worker) | Event::Updated(worker) if worker.secure == self.credentials.is_some() => {
                self.put_worker(worker);
            }
            Event::Added(worker) | Event::Updated(worker) | Event::Dropped(worker) => {
                self.context.forget_worker(worker.uid);
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(follower) = self.follower.get() {
            follower.abort();
        }
    }
}

impl On for WorkerProxy {
    fn proxy(&self) -> &WorkerProxy {
        self
    }
}

impl ProxyBuilder {
    fn new(from: From) -> Self {
        Self {
            from,
            tags: BTreeSet::new(),
            balancer: None,
            limit: connection::LIMIT,
            credentials: None,
            source: None,
            pool: None,
            context: Context::default(),
        }
    }

    /// Only workers that have all of these tags.
    pub fn tags(mut self, tags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.tags = tags.into_iter().map(Into::into).collect();
        self
    }

    /// Who chooses. [`RoundRobin`], if nothing is said.
    pub fn balancer(mut self, balancer: impl Balancer) -> Self {
        self.balancer = Some(Arc::new(balancer));
        self
    }

    pub(crate) fn shared_balancer(mut self, balancer: Option<Arc<dyn Balancer>>) -> Self {
        self.balancer = balancer;
        self
    }

    /// How many calls are in flight to one worker at a time. Others wait their turn.
    pub fn limit(mut self, calls: usize) -> Self {
        self.limit = calls.max(1);
        self
    }

    /// Who we are, and whom we trust. Then only workers are called that serve over TLS; without, only those that do not.
    pub fn credentials(self, credentials: WorkerCredentials) -> Self {
        self.known_by(Some(credentials))
    }

    pub(crate) fn known_by(mut self, credentials: Option<WorkerCredentials>) -> Self {
        self.credentials = credentials;
        self
    }

    /// Where workers are that nobody has to find.
    pub(crate) fn context(mut self, context: Context) -> Self {
        self.context = context;
        self
    }

    /// Who has workers started.
    pub(crate) fn source(mut self, source: Arc<dyn Source>) -> Self {
        self.source = Some(source);
        self
    }

    /// The name by which those who are called find the same workers.
    pub(crate) fn route_by(mut self, pool: &str) -> Self {
        self.pool = Some(pool.to_owned());
        self
    }

    /// Begins to listen. What is there already is known when this returns.
    pub async fn start(self) -> Result<WorkerProxy, DiscoveryError> {
        let Self { from, tags, balancer, limit, credentials, source, pool, context } = self;
        let balancer = balancer.unwrap_or_else(|| Arc::new(RoundRobin));
        let wire_tags = tags.iter().cloned().collect();
        let (discovery, route): (Arc<dyn Discovery>, _) = match from {
            From::Pool(pool) => {
                let discovery = LocalDiscovery::new(&pool)?;
                (Arc::new(discovery), v1::Route { pool, tags: wire_tags, ..v1::Route::default() })
            }
            From::Discovery(discovery) => (discovery, v1::Route { tags: wire_tags, ..v1::Route::default() }),
            From::Workers(workers) => {
                let known = workers.iter().cloned().map(Into::into).collect();
                (Arc::new(StaticDiscovery::new(workers)), v1::Route { workers: known, ..v1::Route::default() })
            }
        };
        let route = v1::Route { pool: pool.unwrap_or(route.pool), ..route };
        let filter: Option<Filter> =
            (!tags.is_empty()).then(|| Arc::new(move |worker: &WorkerMetadata| tags.is_subset(&worker.tags)) as Filter);
        let mut subscription = discovery.subscribe(filter).await?;
        context.doubt_by(move |worker| discovery.doubt(worker));
        let inner = Arc::new(Inner { context, balancer, route, limit, credentials, source, follower: OnceLock::new() });
        while let Some(Some(event)) = subscription.next().now_or_never() {
            inner.hear(event);
        }
        // Ends with the proxy, which it does not keep alive.
        let follower = tokio::spawn(follow(subscription, Arc::downgrade(&inner)));
        let _ = inner.follower.set(follower.abort_handle());
        Ok(WorkerProxy(inner))
    }
}

async fn follow(mut subscription: Box<dyn Subscription>, proxy: std::sync::Weak<Inner>) {
    while let Some(event) = subscription.next().await {
        let Some(proxy) = proxy.upgrade() else { return };
        proxy.hear(event);
    }
}

/// The proxies by which routines of this process call others. Made when they are first needed, and kept while they are.
static PROXIES: LazyLock<ResourcePool<Key, OnceCell<WorkerProxy>>> =
    LazyLock::new(|| ResourcePool::new(TTL.get().copied().unwrap_or(Duration::from_secs(60))));
static TTL: OnceLock<Duration> = OnceLock::new();

/// Where calls go, as it is sent. Tasks of a runtime cannot serve another, so that is part of it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    pool: String,
    tags: Vec<String>,
    workers: Vec<(String, String)>,
    runtime: tokio::runtime::Id,
}

/// How long they are kept when nobody needs them. To be said before the first is made.
pub(crate) fn keep_for(ttl: Duration) {
    let _ = TTL.set(ttl);
}

/// As whom routines of this process call others.
static OWN: OnceLock<WorkerCredentials> = OnceLock::new();

/// Has routines of this process call others as this. To be said before the first does.
pub(crate) fn call_as(credentials: WorkerCredentials) {
    let _ = OWN.set(credentials);
}

/// The proxy by which a routine calls others in the pool that it was called in.
pub(crate) async fn of_route(route: &Arc<v1::Route>) -> Result<WorkerProxy, CallError> {
    let v1::Route { pool, tags, workers } = &**route;
    let key = Key {
        pool: pool.clone(),
        tags: tags.clone(),
        workers: workers.iter().map(|worker| (worker.uid.clone(), worker.address.clone())).collect(),
        runtime: tokio::runtime::Handle::current().id(),
    };
    if pool.is_empty() && workers.is_empty() {
        return Err(CallError::NoPool);
    }
    let cell = PROXIES.get(&key, || Ok::<_, CallError>(OnceCell::new()))?;
    let made = cell.get_or_try_init(|| async {
        let proxy = if pool.is_empty() {
            WorkerProxy::of_workers(workers.iter().cloned().filter_map(|worker| worker.try_into().ok()))
        } else {
            WorkerProxy::of_pool(pool.clone()).tags(tags.clone())
        };
        // A routine that waits for those it calls holds their places: with a bound, enough of them would wait for each other for ever.
        proxy.limit(usize::MAX).known_by(OWN.get().cloned()).start().await
    });
    made.await.cloned().map_err(|error| NoWorkersAvailable(Some(error.to_string())).into())
}

impl fmt::Debug for WorkerProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerProxy").field("workers", &self.0.context).finish_non_exhaustive()
    }
}

impl fmt::Debug for ProxyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyBuilder").field("tags", &self.tags).finish_non_exhaustive()
    }
}
