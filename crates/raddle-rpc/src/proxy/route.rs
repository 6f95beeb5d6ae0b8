//! How routines call others in the pool that they were called in: what travels with a call for that, and what is made of it.
//!
//! A route is for finding workers and says nothing else of them. It travels with every call, so it is bounded, written once for each change of
//! what is known, and read by none but those who call somebody.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use raddle_discovery::{Address, WorkerMetadata, encoding};
use raddle_tls::WorkerCredentials;
use raddle_wire::{Message, v1};
use tokio::{runtime::Handle, sync::OnceCell};

use super::{PoolMembers, WorkerProxy, resource::ResourcePool};
use crate::{
    CallError, NoWorkersAvailable,
    balancer::{Endpoint, balancer_by_name},
    connection,
    membership::PoolKey,
    scope::CallDestination,
};

/// So many workers are named. Enough for any routine, and little enough for every call.
const WORKERS: usize = 64;
/// And in so many bytes.
const SHORT: usize = 16 * 1024;
/// What is longer than this is no route.
const LONGEST: usize = 64 * 1024;
/// So many ways to call others are kept. Whoever is called from more pools than that at a time makes some of them anew.
const KEPT: usize = 64;

/// How calls are made, wherever they go.
fn manner(balancer: Option<&str>, limit: usize) -> v1::Route {
    // Nothing means the default.
    let limit = if limit == connection::LIMIT {
        0
    } else {
        u32::try_from(limit).unwrap_or(u32::MAX)
    };
    v1::Route {
        balancer: balancer.unwrap_or_default().to_owned(),
        limit,
        ..v1::Route::default()
    }
}

/// To the workers of a pool of this user on this machine that have these tags.
pub(super) fn by_name(
    pool: &str,
    tags: Vec<String>,
    balancer: Option<&str>,
    limit: usize,
) -> Bytes {
    v1::Route {
        pool: pool.to_owned(),
        tags,
        ..manner(balancer, limit)
    }
    .encode_to_vec()
    .into()
}

/// To the workers that the pool of this id has started.
pub(super) fn to_members(id: &str, balancer: Option<&str>, limit: usize) -> Bytes {
    v1::Route {
        members: id.to_owned(),
        ..manner(balancer, limit)
    }
    .encode_to_vec()
    .into()
}

/// To these workers, as many as there is room for: our own first, then those that have taken a call before, for of the others nobody knows whether they
/// are there.
pub(super) fn to(workers: &[Endpoint], balancer: Option<&str>, limit: usize) -> Bytes {
    let mut order: Vec<_> = workers.iter().collect();
    order.sort_by_cached_key(|worker| (!worker.is_pool_worker(), !worker.has_accepted_calls()));
    let (mut route, mut length) = (manner(balancer, limit), 0);
    for (worker, place) in order
        .iter()
        .filter_map(|worker| Some((worker, worker.shared_address()?)))
    {
        let named = v1::WorkerMetadata {
            uid: worker.metadata.uid.to_string(),
            address: place.to_owned(),
            secure: worker.metadata.secure,
            encodings: encoding::numbers(&worker.metadata.encodings),
            ..v1::WorkerMetadata::default()
        };
        // With what says how long it is.
        length += named.encoded_len() + 4;
        if length > SHORT || route.workers.len() == WORKERS {
            break;
        }
        route.workers.push(named);
        route.own += u32::from(worker.is_pool_worker());
    }
    route.encode_to_vec().into()
}

/// The proxies by which the routines of a worker call others. Made when they are first needed, and kept while they are.
pub(crate) struct NestedProxies {
    kept: Arc<ResourcePool<RouteKey, OnceCell<WorkerProxy>>>,
    /// Where they run, whatever runtime a routine calls from.
    runtime: Handle,
    own: NestedIdentity,
}

/// As whom routines call others.
#[derive(Clone, Debug, Default)]
pub(crate) struct NestedIdentity {
    pub(crate) credentials: Option<WorkerCredentials>,
    /// That of the pool that has started the worker.
    pub(crate) pool_key: Option<PoolKey>,
}

/// Where calls go, as it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RouteKey {
    route: Bytes,
    /// By a caller of this machine.
    is_from_here: bool,
    /// By the pool that has started this worker, or by a program of its user: only to whom they name does the worker prove that it is of the pool.
    is_of_pool: bool,
}

impl NestedProxies {
    /// Each is kept for so long when no routine needs it.
    pub(crate) fn new(ttl: Duration, own: NestedIdentity, runtime: &Handle) -> Arc<Self> {
        Arc::new(Self {
            kept: ResourcePool::new(ttl, KEPT, runtime.clone()),
            runtime: runtime.clone(),
            own,
        })
    }
}

/// Where the calls of a routine go, as its caller says.
#[derive(Clone)]
pub(crate) struct CallerRoute {
    key: RouteKey,
    proxies: Arc<NestedProxies>,
}

impl CallerRoute {
    /// The proxy by which a routine calls others in the pool that it was called in.
    pub(crate) async fn proxy(&self) -> Result<WorkerProxy, CallError> {
        let (
            RouteKey {
                route,
                is_from_here,
                is_of_pool,
            },
            proxies,
        ) = (&self.key, &*self.proxies);
        if route.is_empty() || route.len() > LONGEST {
            return Err(CallError::NoPool);
        }
        // A copy: what has come with it is not to be kept for as long.
        let key = RouteKey {
            route: Bytes::copy_from_slice(route),
            is_from_here: *is_from_here,
            is_of_pool: *is_of_pool,
        };
        let cell = proxies.kept.get(&key, OnceCell::new);
        let made = cell.get_or_try_init(|| async {
            let starting = proxies.runtime.spawn(start(key, proxies.own.clone()));
            starting.await.unwrap_or(Err(CallError::NoPool))
        });
        made.await.cloned()
    }
}

impl fmt::Debug for CallerRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)
    }
}

async fn start(key: RouteKey, own: NestedIdentity) -> Result<WorkerProxy, CallError> {
    let mut route = v1::Route::decode(key.route.clone()).map_err(|_| CallError::NoPool)?;
    let is_by_name = !route.members.is_empty() || !route.pool.is_empty();
    // A pool of the caller's machine, which is not this one.
    if is_by_name && !key.is_from_here {
        return Err(CallError::NoPool);
    }
    let is_of_pool = key.is_of_pool;
    let members = |which| {
        own.pool_key
            .clone()
            .filter(|_| is_of_pool)
            .map(|key| PoolMembers { key, which })
    };
    let proxy = if !route.members.is_empty() {
        WorkerProxy::of_members(&route.members)
            .members(members(None))
            .route_as_given(key.route)
    } else if !route.pool.is_empty() {
        WorkerProxy::of_pool(&route.pool)
            .tags(route.tags.clone())
            .route_as_given(key.route)
    } else {
        let started: BTreeSet<_> = route
            .workers
            .iter()
            .take(route.own as usize)
            .filter_map(|worker| worker.uid.parse().ok())
            .collect();
        let workers = believable(std::mem::take(&mut route.workers), key.is_from_here);
        if workers.is_empty() {
            return Err(CallError::NoPool);
        }
        // What is not believed here is not passed on.
        route.own = workers
            .iter()
            .filter(|worker| started.contains(&worker.uid))
            .count() as u32;
        route.workers = workers.iter().cloned().map(Into::into).collect();
        let passed_on = route.encode_to_vec().into();
        WorkerProxy::of_workers(workers)
            .members(members(Some(started)))
            .route_as_given(passed_on)
    };
    let limit = if route.limit == 0 {
        connection::LIMIT
    } else {
        route.limit as usize
    };
    let proxy = proxy.limit(limit).known_by(own.credentials);
    let proxy = match balancer_by_name(&route.balancer) {
        Some(balancer) => proxy.balancer(balancer),
        None if route.balancer.is_empty() => proxy,
        None => {
            tracing::warn!(
                balancer = route.balancer,
                "is not known here: register it with `raddle::balancer!`. Calls of routines are made in turn"
            );
            proxy
        }
    };
    proxy
        .start()
        .await
        .map_err(|error| NoWorkersAvailable(Some(error.to_string())).into())
}

/// Those that can be workers. They were named by whoever has called: on another machine, what is at the loopback or at a Unix socket is somebody else.
fn believable(workers: Vec<v1::WorkerMetadata>, is_from_here: bool) -> Vec<WorkerMetadata> {
    let read = workers
        .into_iter()
        .take(WORKERS)
        .filter_map(|worker| WorkerMetadata::try_from(worker).ok());
    let is_there = |worker: &WorkerMetadata| {
        is_from_here
            || worker
                .address
                .parse()
                .is_ok_and(|address: Address| address.is_the_same_everywhere())
    };
    read.filter(|worker| worker.check().is_ok() && is_there(worker))
        .collect()
}

/// What a caller may say of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routing {
    /// Nothing: they go nowhere.
    Nowhere,
    /// All but what is on this machine alone.
    Beyond,
    /// Everything.
    Anywhere,
    /// Everything, in the name of the pool.
    OfPool,
}

impl Routing {
    /// Where the calls of a routine go that was called with this.
    pub(crate) fn of(self, route: Bytes, proxies: &Arc<NestedProxies>) -> CallDestination {
        if route.is_empty() || self == Self::Nowhere {
            return CallDestination::Nowhere;
        }
        let (is_from_here, is_of_pool) = (
            matches!(self, Self::Anywhere | Self::OfPool),
            self == Self::OfPool,
        );
        let key = RouteKey {
            route,
            is_from_here,
            is_of_pool,
        };
        CallDestination::Route(CallerRoute {
            key,
            proxies: Arc::clone(proxies),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{balancer::BalancerContext, connection::ConnectionFactory};
    use raddle_discovery::WorkerUid;

    fn worker(address: String, tags: usize) -> WorkerMetadata {
        let (extra, encodings, version) = ([].into(), [].into(), String::new());
        let tags = (0..tags).map(|n| format!("{n:064}")).collect();
        WorkerMetadata {
            uid: WorkerUid::of_address(&address),
            address,
            pid: 0,
            version,
            tags,
            extra,
            secure: false,
            encodings,
        }
    }

    #[test]
    fn a_route_is_short_whatever_is_said_of_workers_and_however_many_there_are() {
        let context = BalancerContext::default();
        let put = |worker: WorkerMetadata, is_own| {
            let factory = ConnectionFactory::new(&worker.address, 1);
            if is_own {
                context.put_pool_worker(worker, factory)
            } else {
                context.put_worker(worker, factory)
            }
        };
        (0..200).for_each(|n| put(worker(format!("10.0.0.{n}:7000"), 64), false));
        put(worker("10.0.1.1:7000".into(), 64), true);
        let made = std::cell::Cell::new(0);
        let route = || {
            context.route(|workers| {
                made.set(made.get() + 1);
                to(workers, Some("sticky"), 7)
            })
        };
        let first = route();
        assert!(first.len() < SHORT);
        assert_eq!((route(), made.get()), (first.clone(), 1), "it is made once");
        let v1::Route {
            workers,
            own,
            balancer,
            limit,
            ..
        } = v1::Route::decode(first).unwrap();
        assert_eq!((own, balancer.as_str(), limit), (1, "sticky", 7));
        assert_eq!(
            (workers.len(), workers[0].address.as_str()),
            (WORKERS, "10.0.1.1:7000"),
            "its own is among them"
        );
        assert!(workers.iter().all(|worker| worker.tags.is_empty()));
        let long = "x".repeat(500);
        (0..200).for_each(|n| put(worker(format!("{n}{long}:7000"), 0), false));
        let second = route();
        assert!(second.len() <= SHORT && made.get() == 2, "{}", second.len());
    }

    #[test]
    fn what_is_only_there_on_one_machine_is_not_looked_for_on_another() {
        let all = [
            "unix:/run/docker.sock",
            "unix-abstract:x",
            "127.0.0.1:1",
            "localhost:1",
            "10.0.0.1:1",
            "not a place",
        ];
        let all: Vec<v1::WorkerMetadata> =
            all.map(|address| worker(address.into(), 0).into()).into();
        let places = |is_from_here| {
            believable(all.clone(), is_from_here)
                .into_iter()
                .map(|worker| worker.address)
        };
        assert_eq!(places(false).collect::<Vec<_>>(), ["10.0.0.1:1"]);
        assert_eq!(places(true).len(), 5);
    }

    #[tokio::test]
    async fn whoever_may_not_say_where_calls_go_says_nothing() {
        let route = by_name("pool", vec![], None, connection::LIMIT);
        let proxies = NestedProxies::new(
            Duration::ZERO,
            NestedIdentity::default(),
            &Handle::current(),
        );
        let of = |routing: Routing, route| routing.of(route, &proxies);
        assert!(matches!(
            of(Routing::Nowhere, route.clone()),
            CallDestination::Nowhere
        ));
        assert!(matches!(
            of(Routing::Anywhere, Bytes::new()),
            CallDestination::Nowhere
        ));
        assert!(matches!(
            of(Routing::Beyond, route),
            CallDestination::Route(CallerRoute {
                key: RouteKey {
                    is_from_here: false,
                    ..
                },
                ..
            })
        ));
    }
}
