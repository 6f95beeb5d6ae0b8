//! `PoolBuilder`: the options of a pool, and its start.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use raddle_discovery::{Discovery, LocalDiscovery, Publisher, WorkerMetadata, WorkerUid};
use raddle_tls::WorkerCredentials;

use super::{
    PoolError, WorkerPool,
    supervisor::{PoolPlan, PoolSupervisor, WorkerDemand},
};
use crate::{
    WorkerProxy,
    balancer::{BalancerContext, IntoBalancer, MakeBalancer},
    connection,
    membership::PoolKey,
    worker::{LocalWorker, WorkerFactory},
};

/// Builds a pool.
#[derive(Default)]
#[must_use = "a pool is started with `start`"]
pub struct PoolBuilder {
    name: Option<String>,
    tags: BTreeSet<String>,
    size: Option<usize>,
    discovery: Option<Arc<dyn Discovery>>,
    publisher: Option<Arc<dyn Publisher>>,
    balancer: Option<MakeBalancer>,
    factory: Option<Arc<dyn WorkerFactory>>,
    quorum: Option<usize>,
    lazy: bool,
    limit: Option<usize>,
    credentials: Option<WorkerCredentials>,
    start_timeout: Option<Duration>,
}

impl PoolBuilder {
    /// Sets the name under which this user finds the pool on this machine. Default: a unique one.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the tags of its workers, which discovered workers must have too.
    pub fn tags(mut self, tags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.tags = tags.into_iter().map(Into::into).collect();
        self
    }

    /// Sets how many workers the pool starts. It can discover further ones.
    pub fn size(mut self, workers: usize) -> Self {
        self.size = Some(workers);
        self
    }

    /// Sets how the pool finds workers that it has not started.
    pub fn discovery(mut self, discovery: impl Discovery) -> Self {
        self.discovery = Some(Arc::new(discovery));
        self
    }

    /// Sets where else the workers of this pool are published. This user on this machine finds them
    /// by the pool's name in any case.
    pub fn publisher(mut self, publisher: impl Publisher) -> Self {
        self.publisher = Some(Arc::new(publisher));
        self
    }

    /// Sets the balancer: a value, or a function, `async` or not, that makes one when the pool
    /// starts: `.balancer(Sticky)`, `.balancer(|| Sticky)` or `.balancer(|| async { Sticky })`.
    pub fn balancer<Kind>(mut self, balancer: impl IntoBalancer<Kind>) -> Self {
        self.balancer = Some(balancer.into_balancer());
        self
    }

    /// Sets the factory of its workers. Default: [`LocalWorker::new`].
    pub fn worker(mut self, factory: impl WorkerFactory) -> Self {
        self.factory = Some(Arc::new(factory));
        self
    }

    /// Sets how many workers must be ready for `start` to return; the others follow. Default: all.
    pub fn quorum(mut self, workers: usize) -> Self {
        self.quorum = Some(workers);
        self
    }

    /// Starts the workers with the first call.
    pub fn lazy(mut self) -> Self {
        self.lazy = true;
        self
    }

    /// Sets how many calls one worker gets at a time; further calls wait for a permit.
    pub fn limit(mut self, calls: usize) -> Self {
        self.limit = Some(calls.max(1));
        self
    }

    /// Sets the credentials. Then only workers that serve over TLS are called. The pool gives the
    /// credentials to its default workers; workers from [`worker`](Self::worker) must be given them
    /// by the factory.
    pub fn credentials(mut self, credentials: WorkerCredentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Sets how long a worker may take to start.
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = Some(timeout);
        self
    }

    /// Starts the pool. If too few workers can be started, published or called over TLS, all are
    /// stopped again, and the error names each cause.
    pub async fn start(self) -> Result<WorkerPool, PoolError> {
        let name = self.name.clone().unwrap_or_else(own_name);
        let size = match (self.size, &self.discovery) {
            (None, None) => thread::available_parallelism().map_or(1, usize::from),
            (None, Some(_)) => 0,
            (Some(0), None) => {
                return Err(PoolError::Invalid(
                    "a pool needs workers or a discovery: set a size above 0, or a discovery"
                        .into(),
                ));
            }
            (Some(size), _) => size,
        };
        let quorum = self.quorum.unwrap_or(size);
        if quorum > size {
            return Err(PoolError::Invalid(format!(
                "a quorum of {quorum} is larger than the pool: its size is {size}"
            )));
        }
        // Unlike the name, the id is unique.
        let id = WorkerUid::new().to_string();
        let proxy = match self.discovery {
            Some(discovery) => WorkerProxy::of_discovery(discovery).tags(self.tags.clone()),
            None => WorkerProxy::of_workers(Vec::<WorkerMetadata>::new()).route_by_pool_id(&id),
        };
        let limit = self.limit.unwrap_or(connection::LIMIT);
        let proxy = proxy
            .limit(limit)
            .maybe_balancer(self.balancer)
            .maybe_credentials(self.credentials.clone());
        if size == 0 {
            return Ok(WorkerPool {
                name,
                proxy: proxy.start().await?,
                supervisor: None,
            });
        }
        let local: [Arc<dyn Publisher>; 2] = [
            Arc::new(LocalDiscovery::new(&name)?),
            Arc::new(LocalDiscovery::of_pool_id(&id)?),
        ];
        let factory = self
            .factory
            .unwrap_or_else(|| of_this_program(self.credentials.clone()));
        let plan = PoolPlan {
            size,
            quorum,
            tags: self.tags,
            make: Arc::new(move |_, tags| factory.make(tags)),
            credentials: self.credentials,
            publishers: local.into_iter().chain(self.publisher).collect(),
            key: PoolKey::generate(),
            start_timeout: self.start_timeout,
            limit,
            is_local_caller: true,
        };
        let context = BalancerContext::default();
        let supervisor = PoolSupervisor::new(plan, context.clone());
        let proxy = proxy
            .context(context)
            .source(Arc::new(WorkerDemand(Arc::clone(&supervisor))))
            .start()
            .await?;
        let pool = WorkerPool {
            name,
            proxy,
            supervisor: Some(Arc::clone(&supervisor)),
        };
        if !self.lazy {
            supervisor.start();
            supervisor.wait_until_started().await?;
        }
        Ok(pool)
    }
}

/// A factory of workers that run this program.
fn of_this_program(credentials: Option<WorkerCredentials>) -> Arc<dyn WorkerFactory> {
    Arc::new(move |tags: &BTreeSet<String>| match &credentials {
        Some(credentials) => LocalWorker::new(tags).credentials(credentials.clone()),
        None => LocalWorker::new(tags),
    })
}

/// A unique pool name.
fn own_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    format!(
        "pool-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

impl fmt::Debug for PoolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder")
            .field("name", &self.name)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}
