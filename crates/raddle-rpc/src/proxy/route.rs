//! Routes: how routines call others in the pool that they were called in.
//!
//! A route says where workers are, and nothing else about them. It travels with every call, so it
//! is bounded, encoded once per change of the workers, and decoded only by routines that call
//! others.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use raddle_discovery::{Address, WorkerMetadata, encoding};
use raddle_tls::WorkerCredentials;
use raddle_wire::{Message, v1};
use tokio::{runtime::Handle, sync::OnceCell};

use super::{PoolMembers, WorkerProxy, ttl_cache::TtlCache};
use crate::{
    CallError, NoWorkersAvailable,
    balancer::{Endpoint, balancer_by_name},
    connection,
    membership::PoolKey,
    scope::CallDestination,
};

/// Largest number of workers in a route: enough for any routine, and small enough for every call.
const MAX_WORKERS: usize = 64;
/// Largest encoded size of these workers.
const MAX_ENCODED_LEN: usize = 16 * 1024;
/// A received route longer than this is invalid.
const MAX_RECEIVED_LEN: usize = 64 * 1024;
/// Number of proxies kept. A worker that is called from more pools at a time rebuilds some of them.
const MAX_PROXIES: usize = 64;

/// A route with only the settings that all routes share.
fn base_route(balancer: Option<&str>, limit: usize) -> v1::Route {
    // In the protocol, 0 means the default.
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

/// A route to the workers of a pool of this user on this machine that have these tags.
pub(super) fn route_by_name(
    pool: &str,
    tags: Vec<String>,
    balancer: Option<&str>,
    limit: usize,
) -> Bytes {
    v1::Route {
        pool: pool.to_owned(),
        tags,
        ..base_route(balancer, limit)
    }
    .encode_to_vec()
    .into()
}

/// A route to the workers that the pool with this id has started.
pub(super) fn route_by_pool_id(id: &str, balancer: Option<&str>, limit: usize) -> Bytes {
    v1::Route {
        members: id.to_owned(),
        ..base_route(balancer, limit)
    }
    .encode_to_vec()
    .into()
}

/// A route to as many of these workers as fit: those of our pool first, then those that have
/// accepted calls, because the others may not exist.
pub(super) fn route_to_workers(
    workers: &[Endpoint],
    balancer: Option<&str>,
    limit: usize,
) -> Bytes {
    let mut order: Vec<_> = workers.iter().collect();
    order.sort_by_cached_key(|worker| (!worker.is_pool_worker(), !worker.has_accepted_calls()));
    let (mut route, mut length) = (base_route(balancer, limit), 0);
    for (worker, address) in order
        .iter()
        .filter_map(|worker| Some((worker, worker.shared_address()?)))
    {
        let named = v1::WorkerMetadata {
            uid: worker.metadata.uid.to_string(),
            address: address.to_owned(),
            secure: worker.metadata.secure,
            encodings: encoding::to_numbers(&worker.metadata.encodings),
            ..v1::WorkerMetadata::default()
        };
        // Plus the field's tag and length.
        length += named.encoded_len() + 4;
        if length > MAX_ENCODED_LEN || route.workers.len() == MAX_WORKERS {
            break;
        }
        route.workers.push(named);
        route.own += u32::from(worker.is_pool_worker());
    }
    route.encode_to_vec().into()
}

/// The proxies through which a worker's routines call others. Made on first use, and cached.
pub(crate) struct NestedProxies {
    cache: Arc<TtlCache<RouteKey, OnceCell<WorkerProxy>>>,
    /// The runtime of the proxies, whatever runtime a routine calls from.
    runtime: Handle,
    identity: NestedIdentity,
}

/// The identity of nested calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct NestedIdentity {
    pub(crate) credentials: Option<WorkerCredentials>,
    /// The key of the pool that has started the worker.
    pub(crate) pool_key: Option<PoolKey>,
}

/// An encoded route, with the trust in its sender.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RouteKey {
    route: Bytes,
    /// The sender is on this machine.
    is_local_caller: bool,
    /// The sender is the pool that has started this worker, or a program of the same user. This
    /// worker proves its membership only to workers that such a sender names.
    is_pool_caller: bool,
}

impl NestedProxies {
    /// Proxies that no routine uses are dropped after `ttl`.
    pub(crate) fn new(ttl: Duration, identity: NestedIdentity, runtime: &Handle) -> Arc<Self> {
        Arc::new(Self {
            cache: TtlCache::new(ttl, MAX_PROXIES, runtime.clone()),
            runtime: runtime.clone(),
            identity,
        })
    }
}

/// Where the nested calls of a routine go, as its caller has determined.
#[derive(Clone)]
pub(crate) struct CallerRoute {
    key: RouteKey,
    proxies: Arc<NestedProxies>,
}

impl CallerRoute {
    /// The proxy for the routine's nested calls.
    pub(crate) async fn proxy(&self) -> Result<WorkerProxy, CallError> {
        let (
            RouteKey {
                route,
                is_local_caller,
                is_pool_caller,
            },
            proxies,
        ) = (&self.key, &*self.proxies);
        if route.is_empty() || route.len() > MAX_RECEIVED_LEN {
            return Err(CallError::NoPool);
        }
        // Copied, because the received buffer holds the whole call.
        let key = RouteKey {
            route: Bytes::copy_from_slice(route),
            is_local_caller: *is_local_caller,
            is_pool_caller: *is_pool_caller,
        };
        let cell = proxies.cache.get(&key, OnceCell::new);
        let made = cell.get_or_try_init(|| async {
            let task = proxies
                .runtime
                .spawn(start_proxy(key, proxies.identity.clone()));
            task.await.unwrap_or(Err(CallError::NoPool))
        });
        made.await.cloned()
    }
}

impl fmt::Debug for CallerRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)
    }
}

async fn start_proxy(key: RouteKey, identity: NestedIdentity) -> Result<WorkerProxy, CallError> {
    let mut route = v1::Route::decode(key.route.clone()).map_err(|_| CallError::NoPool)?;
    let is_by_name = !route.members.is_empty() || !route.pool.is_empty();
    // The name means a pool of the sender's machine, which is not this one.
    if is_by_name && !key.is_local_caller {
        return Err(CallError::NoPool);
    }
    let is_pool_caller = key.is_pool_caller;
    let pool_members = |uids| {
        identity
            .pool_key
            .clone()
            .filter(|_| is_pool_caller)
            .map(|key| PoolMembers { key, uids })
    };
    let proxy = if !route.members.is_empty() {
        WorkerProxy::of_pool_id(&route.members)
            .pool_members(pool_members(None))
            .forward_route(key.route)
    } else if !route.pool.is_empty() {
        WorkerProxy::of_pool(&route.pool)
            .tags(route.tags.clone())
            .forward_route(key.route)
    } else {
        let pool_uids: BTreeSet<_> = route
            .workers
            .iter()
            .take(route.own as usize)
            .filter_map(|worker| worker.uid.parse().ok())
            .collect();
        let workers = usable_workers(std::mem::take(&mut route.workers), key.is_local_caller);
        if workers.is_empty() {
            return Err(CallError::NoPool);
        }
        // Pass on only what was accepted here.
        route.own = workers
            .iter()
            .filter(|worker| pool_uids.contains(&worker.uid))
            .count() as u32;
        route.workers = workers.iter().cloned().map(Into::into).collect();
        let accepted_route = route.encode_to_vec().into();
        WorkerProxy::of_workers(workers)
            .pool_members(pool_members(Some(pool_uids)))
            .forward_route(accepted_route)
    };
    let limit = if route.limit == 0 {
        connection::LIMIT
    } else {
        route.limit as usize
    };
    let proxy = proxy.limit(limit).maybe_credentials(identity.credentials);
    let proxy = match balancer_by_name(&route.balancer) {
        Some(balancer) => proxy.balancer(balancer),
        None if route.balancer.is_empty() => proxy,
        None => {
            tracing::warn!(
                balancer = route.balancer,
                "unknown balancer, nested calls use round robin: register it with `raddle::balancer!`"
            );
            proxy
        }
    };
    proxy
        .start()
        .await
        .map_err(|error| NoWorkersAvailable(Some(error.to_string())).into())
}

/// The workers of a received route that can be called. Loopback addresses and Unix sockets from a
/// sender on another machine name workers there, so they are left out.
fn usable_workers(workers: Vec<v1::WorkerMetadata>, is_local_caller: bool) -> Vec<WorkerMetadata> {
    let read = workers
        .into_iter()
        .take(MAX_WORKERS)
        .filter_map(|worker| WorkerMetadata::try_from(worker).ok());
    let is_usable = |worker: &WorkerMetadata| {
        is_local_caller
            || worker
                .address
                .parse()
                .is_ok_and(|address: Address| address.is_global())
    };
    read.filter(|worker| worker.validate().is_ok() && is_usable(worker))
        .collect()
}

/// A caller's rights over nested calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routing {
    /// Nothing: nested calls fail.
    Forbidden,
    /// Everything but addresses that are local to this machine.
    RemoteOnly,
    /// Everything.
    Unrestricted,
    /// Everything, and nested calls prove membership of the pool.
    PoolMember,
}

impl Routing {
    /// Where nested calls go in a routine that was called with this route.
    pub(crate) fn destination(self, route: Bytes, proxies: &Arc<NestedProxies>) -> CallDestination {
        if route.is_empty() || self == Self::Forbidden {
            return CallDestination::None;
        }
        let (is_local_caller, is_pool_caller) = (
            matches!(self, Self::Unrestricted | Self::PoolMember),
            self == Self::PoolMember,
        );
        let key = RouteKey {
            route,
            is_local_caller,
            is_pool_caller,
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
            uid: WorkerUid::from_address(&address),
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
    fn route_is_bounded() {
        let context = BalancerContext::default();
        let put = |worker: WorkerMetadata, is_pool_worker| {
            let factory = ConnectionFactory::new(&worker.address, 1);
            if is_pool_worker {
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
                route_to_workers(workers, Some("sticky"), 7)
            })
        };
        let first = route();
        assert!(first.len() < MAX_ENCODED_LEN);
        assert_eq!((route(), made.get()), (first.clone(), 1), "encoded once");
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
            (MAX_WORKERS, "10.0.1.1:7000"),
            "the pool's own worker is included"
        );
        assert!(workers.iter().all(|worker| worker.tags.is_empty()));
        let long = "x".repeat(500);
        (0..200).for_each(|n| put(worker(format!("{n}{long}:7000"), 0), false));
        let second = route();
        assert!(
            second.len() <= MAX_ENCODED_LEN && made.get() == 2,
            "{}",
            second.len()
        );
    }

    #[test]
    fn local_addresses_of_remote_callers_are_ignored() {
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
        let addresses = |is_local_caller| {
            usable_workers(all.clone(), is_local_caller)
                .into_iter()
                .map(|worker| worker.address)
        };
        assert_eq!(addresses(false).collect::<Vec<_>>(), ["10.0.0.1:1"]);
        assert_eq!(addresses(true).len(), 5);
    }

    #[tokio::test]
    async fn route_is_ignored_unless_the_caller_may_set_it() {
        let route = route_by_name("pool", vec![], None, connection::LIMIT);
        let proxies = NestedProxies::new(
            Duration::ZERO,
            NestedIdentity::default(),
            &Handle::current(),
        );
        let destination = |routing: Routing, route| routing.destination(route, &proxies);
        assert!(matches!(
            destination(Routing::Forbidden, route.clone()),
            CallDestination::None
        ));
        assert!(matches!(
            destination(Routing::Unrestricted, Bytes::new()),
            CallDestination::None
        ));
        assert!(matches!(
            destination(Routing::RemoteOnly, route),
            CallDestination::Route(CallerRoute {
                key: RouteKey {
                    is_local_caller: false,
                    ..
                },
                ..
            })
        ));
    }
}
