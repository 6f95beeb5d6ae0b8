//! What a pool is to be.

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

/// A pool that is not started.
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
    /// Its name among the pools of this user on this machine. One that nobody else has, if nothing is said.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// What its workers can do, and what those of others must.
    pub fn tags(mut self, tags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.tags = tags.into_iter().map(Into::into).collect();
        self
    }

    /// How many workers it starts. Others may be found besides.
    pub fn size(mut self, workers: usize) -> Self {
        self.size = Some(workers);
        self
    }

    /// How workers of others are found.
    pub fn discovery(mut self, discovery: impl Discovery) -> Self {
        self.discovery = Some(Arc::new(discovery));
        self
    }

    /// How others find the workers of this pool, besides those of this user on this machine, who find them by its name.
    pub fn publisher(mut self, publisher: impl Publisher) -> Self {
        self.publisher = Some(Arc::new(publisher));
        self
    }

    /// Chooses the worker of a call. Either a balancer, or a function, `async` or not, that makes one when the pool starts: `.balancer(Sticky)`,
    /// `.balancer(|| Sticky)` or `.balancer(|| async { Sticky })`.
    pub fn balancer<Kind>(mut self, balancer: impl IntoBalancer<Kind>) -> Self {
        self.balancer = Some(balancer.into_balancer());
        self
    }

    /// Who makes its workers. [`LocalWorker::new`], if nothing is said.
    pub fn worker(mut self, factory: impl WorkerFactory) -> Self {
        self.factory = Some(Arc::new(factory));
        self
    }

    /// How many workers must serve for the pool to be started; the rest may come later. All of them, if nothing is said.
    pub fn quorum(mut self, workers: usize) -> Self {
        self.quorum = Some(workers);
        self
    }

    /// Starts the workers with the first call.
    pub fn lazy(mut self) -> Self {
        self.lazy = true;
        self
    }

    /// How many calls are in flight to one worker at a time. Others wait their turn.
    pub fn limit(mut self, calls: usize) -> Self {
        self.limit = Some(calls.max(1));
        self
    }

    /// Who we are, and whom we trust. Calls go over TLS then, to workers that serve by it and to no others. Workers that [`worker`](Self::worker)
    /// makes have to be given the same; those of the pool itself are.
    pub fn credentials(mut self, credentials: WorkerCredentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// How long a worker may take to start.
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = Some(timeout);
        self
    }

    /// Starts it. If too few workers can be started, published or called over TLS, all are stopped again, and the error names each cause.
    pub async fn start(self) -> Result<WorkerPool, PoolError> {
        let name = self.name.clone().unwrap_or_else(own_name);
        let size = match (self.size, &self.discovery) {
            (None, None) => thread::available_parallelism().map_or(1, usize::from),
            (None, Some(_)) => 0,
            (Some(0), None) => {
                return Err(PoolError::Invalid(
                    "a pool without workers or a discovery calls nobody".into(),
                ));
            }
            (Some(size), _) => size,
        };
        let quorum = self.quorum.unwrap_or(size);
        if quorum > size {
            return Err(PoolError::Invalid(format!(
                "{quorum} workers of {size} can never serve"
            )));
        }
        // Others may have a pool of the same name.
        let id = WorkerUid::new().to_string();
        let proxy = match self.discovery {
            Some(discovery) => WorkerProxy::of_discovery(discovery).tags(self.tags.clone()),
            None => WorkerProxy::of_workers(Vec::<WorkerMetadata>::new()).route_by_members(&id),
        };
        let limit = self.limit.unwrap_or(connection::LIMIT);
        let proxy = proxy
            .limit(limit)
            .made_balancer(self.balancer)
            .known_by(self.credentials.clone());
        if size == 0 {
            return Ok(WorkerPool {
                name,
                proxy: proxy.start().await?,
                keeper: None,
            });
        }
        let local: [Arc<dyn Publisher>; 2] = [
            Arc::new(LocalDiscovery::new(&name)?),
            Arc::new(LocalDiscovery::of_members(&id)?),
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
            is_called_here: true,
        };
        let context = BalancerContext::default();
        let keeper = PoolSupervisor::new(plan, context.clone());
        let proxy = proxy
            .context(context)
            .source(Arc::new(WorkerDemand(Arc::clone(&keeper))))
            .start()
            .await?;
        let pool = WorkerPool {
            name,
            proxy,
            keeper: Some(Arc::clone(&keeper)),
        };
        if !self.lazy {
            keeper.begin();
            keeper.started().await?;
        }
        Ok(pool)
    }
}

/// Workers that are this program.
fn of_this_program(credentials: Option<WorkerCredentials>) -> Arc<dyn WorkerFactory> {
    Arc::new(move |tags: &BTreeSet<String>| match &credentials {
        Some(credentials) => LocalWorker::new(tags).credentials(credentials.clone()),
        None => LocalWorker::new(tags),
    })
}

/// A name that no other pool has.
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
