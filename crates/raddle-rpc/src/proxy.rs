//! The bridge between calls and workers: follows a discovery, and has a balancer choose.

mod endpoint_set;
mod follow;
mod resource;
mod route;

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

/// Hands calls to workers. Cheap to clone; what it keeps ends with its last clone.
#[derive(Clone)]
pub struct WorkerProxy(Arc<ProxyInner>);

struct ProxyInner {
    context: BalancerContext,
    balancer: Arc<dyn Balancer>,
    /// How those who are called find the same workers, if it does not depend on which are known.
    route: Option<Bytes>,
    limit: usize,
    /// Those of them that are workers of the pool that this process belongs to.
    members: Option<PoolMembers>,
    /// As whom workers are spoken to.
    credentials: Option<WorkerCredentials>,
    /// Who has workers started, where there is somebody.
    source: Option<Arc<dyn WorkerSource>>,
    /// Follows the discovery.
    follower: OnceLock<AbortHandle>,
}

/// Somebody who has workers started.
pub(crate) trait WorkerSource: Send + Sync + 'static {
    /// How often a worker has come so far.
    fn arrivals(&self) -> u64;

    /// Wants a worker that has come after `seen` others. For one that is held back because others have ended too soon, it waits for no longer than `brief`.
    fn wanted(&self, seen: u64, brief: Duration) -> BoxFuture<'_, DemandOutcome>;
}

/// What becomes of a worker that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DemandOutcome {
    /// One has come.
    Came,
    /// None will: none is missing, or the pool stops.
    Never,
    /// One comes later: workers end too soon, and the next is started after a pause.
    HeldBack,
}

/// Workers of the pool that has started this process, which is a worker of it as well.
pub(crate) struct PoolMembers {
    pub(crate) key: PoolKey,
    /// Which they are. All that are found, if nothing is said.
    pub(crate) which: Option<BTreeSet<WorkerUid>>,
}

/// How a proxy is made.
pub struct ProxyBuilder {
    from: DiscoverySource,
    tags: BTreeSet<String>,
    balancer: Option<MakeBalancer>,
    limit: usize,
    credentials: Option<WorkerCredentials>,
    source: Option<Arc<dyn WorkerSource>>,
    route: Option<RouteBy>,
    members: Option<PoolMembers>,
    context: BalancerContext,
}

/// What is said of how those who are called find the same workers.
enum RouteBy {
    /// By the id of the pool that has started them.
    Members(String),
    /// As the caller of this process has said.
    Given(Bytes),
}

enum DiscoverySource {
    Members(String),
    Pool(String),
    Discovery(Arc<dyn Discovery>),
    Workers(Vec<WorkerMetadata>),
}

/// How long a call waits for a worker that is being started.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it waits while workers end as soon as they are started. A call under a storm of kills has its answer, or its error, within 2 s.
const BRIEF: Duration = Duration::from_millis(1500);

impl WorkerProxy {
    /// One for the workers of a pool of this user on this machine, by its name.
    pub fn of_pool(name: impl Into<String>) -> ProxyBuilder {
        ProxyBuilder::new(DiscoverySource::Pool(name.into()))
    }

    /// One for the workers that a pool of this user on this machine has started, by the id of the pool.
    pub(crate) fn of_members(id: impl Into<String>) -> ProxyBuilder {
        ProxyBuilder::new(DiscoverySource::Members(id.into()))
    }

    /// One for the workers that a discovery tells of.
    pub fn of_discovery(discovery: impl Discovery) -> ProxyBuilder {
        ProxyBuilder::new(DiscoverySource::Discovery(Arc::new(discovery)))
    }

    /// One for these workers.
    pub fn of_workers(workers: impl IntoIterator<Item = WorkerMetadata>) -> ProxyBuilder {
        ProxyBuilder::new(DiscoverySource::Workers(workers.into_iter().collect()))
    }

    /// Runs a future in which routines are called by this.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        let to = CallDestination::Proxy(self.clone());
        // What else surrounds it is what does when it is awaited.
        async move {
            Scope {
                to,
                ..Scope::current()
            }
            .around(future)
            .await
        }
    }

    /// Spawns a task in which routines are called by this. A task of [`tokio::spawn`] is outside of every scope.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        tokio::spawn(self.scope(future))
    }

    /// The workers that it knows.
    pub fn context(&self) -> &BalancerContext {
        &self.0.context
    }

    /// How those who are called find the same workers: by the name of the pool, or else those that are known now.
    pub(crate) fn route(&self) -> Bytes {
        match &self.0.route {
            Some(by_name) => by_name.clone(),
            None => self
                .0
                .context
                .route(|workers| route::to(workers, self.0.balancer.name(), self.0.limit)),
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
        let (began, mut has_waited) = (Instant::now(), false);
        loop {
            let seen = source.arrivals();
            let left = timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
            let none = match balancer.dispatch(call.clone(), context, left).await {
                Err(CallError::NoWorkers(none)) => none,
                outcome => return outcome,
            };
            // One that was killed is replaced in no time, which a call just then need not fail for.
            let (patience, brief) = (
                PATIENCE.saturating_sub(began.elapsed()),
                BRIEF.saturating_sub(began.elapsed()),
            );
            let wanted = match has_waited && brief.is_zero() {
                true => DemandOutcome::HeldBack,
                false => tokio::time::timeout(patience, source.wanted(seen, brief))
                    .await
                    .unwrap_or(DemandOutcome::Never),
            };
            match wanted {
                DemandOutcome::Came => has_waited = true,
                DemandOutcome::Never => return Err(none.into()),
                DemandOutcome::HeldBack => {
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
    /// Whether a worker is protected if we are, and not if we are not. One at a Unix socket never is, whatever is said of it.
    fn is_for_us(&self, worker: &WorkerMetadata) -> bool {
        let is_tcp = matches!(worker.address.parse(), Ok(Address::Tcp(_)));
        worker.secure == self.credentials.is_some() && (is_tcp || !worker.secure)
    }

    fn put_worker(&self, metadata: WorkerMetadata) {
        let factory = ConnectionFactory::new(&metadata.address, self.limit)
            .credentials(self.credentials.clone());
        let factory = factory.encodings(&metadata.encodings);
        let is_member = |members: &&PoolMembers| {
            members
                .which
                .as_ref()
                .is_none_or(|which| which.contains(&metadata.uid))
        };
        let factory = match self.members.as_ref().filter(is_member) {
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
            members: None,
            context: BalancerContext::default(),
        }
    }

    /// Only workers that have all of these tags.
    pub fn tags(mut self, tags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.tags = tags.into_iter().map(Into::into).collect();
        self
    }

    /// Chooses the worker of a call: a balancer, or a function, `async` or not, that makes one when the proxy starts. [`RoundRobin`] by default.
    pub fn balancer<Kind>(self, balancer: impl IntoBalancer<Kind>) -> Self {
        self.made_balancer(Some(balancer.into_balancer()))
    }

    pub(crate) fn made_balancer(mut self, balancer: Option<MakeBalancer>) -> Self {
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
    pub(crate) fn context(mut self, context: BalancerContext) -> Self {
        self.context = context;
        self
    }

    /// Who has workers started.
    pub(crate) fn source(mut self, source: Arc<dyn WorkerSource>) -> Self {
        self.source = Some(source);
        self
    }

    /// Those who are called find the same workers by the id of the pool that has started them.
    pub(crate) fn route_by_members(mut self, id: &str) -> Self {
        self.route = Some(RouteBy::Members(id.to_owned()));
        self
    }

    /// Those who are called find the same workers by this.
    pub(crate) fn route_as_given(mut self, route: Bytes) -> Self {
        self.route = Some(RouteBy::Given(route));
        self
    }

    /// Workers of the pool that this process belongs to.
    pub(crate) fn members(mut self, members: Option<PoolMembers>) -> Self {
        self.members = members;
        self
    }

    /// Begins to listen. What is there already is known when this returns.
    pub async fn start(self) -> Result<WorkerProxy, DiscoveryError> {
        let Self {
            from,
            tags,
            balancer,
            limit,
            credentials,
            source,
            route,
            members,
            context,
        } = self;
        let balancer = match balancer {
            Some(balancer) => balancer.await,
            None => Arc::new(RoundRobin),
        };
        let (discovery, name): (Arc<dyn Discovery>, _) = match from {
            DiscoverySource::Members(id) => (Arc::new(LocalDiscovery::of_members(&id)?), None),
            DiscoverySource::Pool(pool) => (Arc::new(LocalDiscovery::new(&pool)?), Some(pool)),
            DiscoverySource::Discovery(discovery) => (discovery, None),
            DiscoverySource::Workers(workers) => (Arc::new(StaticDiscovery::new(workers)), None),
        };
        let route = match (route, name) {
            (Some(RouteBy::Given(route)), _) => Some(route),
            (Some(RouteBy::Members(id)), _) => Some(route::to_members(&id, balancer.name(), limit)),
            (None, name) => name.map(|name| {
                route::by_name(
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
                .is_some_and(|own| !own.expects_somebody())
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
            members,
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

/// Once: it is the same for all pools of a program.
fn warn_unauthenticated() {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        tracing::warn!(
            "whoever has a certificate of the CA for its address can be found as a worker: say whom to expect, or give those who only call certificates of `raddle cert issue --caller`"
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
