//! DNS discovery: the workers behind a name, such as a *headless* service in a Kubernetes cluster,
//! which has an address record per pod.
//!
//! The resolver of the C library reports neither TTLs nor SRV records, so `hickory-resolver`
//! queries the name servers. `/etc/hosts` is not read.
//!
//! An answer is as trustworthy as the network that it came over. To callers with credentials, a
//! forged worker must authenticate like any other.

mod lookup;
mod state;
mod subscription;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::watch;

use self::{
    lookup::{AddressPreference, DnsService},
    state::TtlBounds,
    subscription::subscribe,
};
use super::{Discovery, DiscoveryError, Subscription, WorkerFilter};
use crate::WorkerMetadata;

/// Default shortest polling interval, whatever the TTL.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Default longest polling interval, whatever the TTL.
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// Shortest polling interval that can be set.
const MIN_SETTABLE: Duration = Duration::from_millis(10);

/// The workers behind a name: `workers.ns.svc.cluster.local:7070` are all addresses of this name (A
/// and AAAA records), and `_raddle._tcp.workers.ns.svc.cluster.local` is a service whose SRV
/// records have a port for each.
///
/// Each address is a worker. Further metadata is set here, equal for all: whether they serve over
/// TLS, and their tags. A name server that does not answer removes no workers; an empty answer
/// counts when it was given three times in a row.
#[derive(Clone, Debug)]
pub struct DnsDiscovery(Arc<Settings>);

#[derive(Clone, Debug)]
struct Settings {
    /// The name, as it was given.
    name: String,
    service: DnsService,
    /// Name servers instead of those in `/etc/resolv.conf`.
    servers: Option<Vec<SocketAddr>>,
    /// The preferred address family.
    prefer: AddressPreference,
    bounds: TtlBounds,
    tags: BTreeSet<String>,
    extra: BTreeMap<String, String>,
    secure: bool,
    /// Requests a lookup before the TTL is over.
    recheck: watch::Sender<()>,
}

impl DnsDiscovery {
    /// The workers behind this name: `host:port`, or `_service._tcp.name`. A name with a trailing
    /// dot is absolute; others are also looked up in the search domains of `/etc/resolv.conf`.
    pub fn new(name: &str) -> Result<Self, DiscoveryError> {
        let service = name.parse().map_err(|error| {
            let source = io::Error::new(io::ErrorKind::InvalidInput, error);
            DiscoveryError {
                operation: format!("invalid DNS name '{name}'"),
                source,
            }
        })?;
        Ok(Self(Arc::new(Settings {
            name: name.to_owned(),
            service,
            servers: None,
            prefer: AddressPreference::V4,
            bounds: TtlBounds {
                least: MIN_INTERVAL,
                most: MAX_INTERVAL,
            },
            tags: BTreeSet::new(),
            extra: BTreeMap::new(),
            secure: false,
            recheck: watch::Sender::new(()),
        })))
    }

    /// Sets the tags of the workers.
    pub fn tags(self, tags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let tags = tags.into_iter().map(Into::into).collect();
        self.with(|settings| settings.tags = tags)
    }

    /// Sets a further property of the workers.
    pub fn extra(self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|settings| drop(settings.extra.insert(key.into(), value.into())))
    }

    /// The workers serve over TLS. Certificates rarely contain addresses, so callers must name the
    /// expected names: see `CredentialSource::expecting` of `raddle-tls`.
    pub fn secure(self) -> Self {
        self.with(|settings| settings.secure = true)
    }

    /// Prefers IPv6 addresses where a host has both. Default: IPv4. A host with both is one worker,
    /// not two.
    pub fn prefer_ipv6(self) -> Self {
        self.with(|settings| settings.prefer = AddressPreference::V6)
    }

    /// Sets a fixed polling interval, whatever the TTL.
    pub fn poll_interval(self, interval: Duration) -> Self {
        self.poll_between(interval, interval)
    }

    /// Sets bounds on the polling interval, which follows the TTL. Default: 1 s to 60 s.
    pub fn poll_between(self, least: Duration, most: Duration) -> Self {
        let least = least.max(MIN_SETTABLE);
        self.with(|settings| {
            settings.bounds = TtlBounds {
                least,
                most: most.max(least),
            }
        })
    }

    /// Queries these servers instead of those in `/etc/resolv.conf`, without search domains.
    pub fn name_servers(self, servers: impl IntoIterator<Item = SocketAddr>) -> Self {
        let servers: Vec<_> = servers.into_iter().collect();
        self.with(|settings| settings.servers = (!servers.is_empty()).then_some(servers))
    }

    /// Looks the name up for all subscribers, as soon as the shortest interval is over.
    pub fn recheck_now(&self) {
        self.0.recheck.send_replace(());
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }
}

impl Settings {
    /// The metadata of the worker at an address.
    fn worker(&self, address: SocketAddr) -> WorkerMetadata {
        let (tags, extra) = (self.tags.clone(), self.extra.clone());
        WorkerMetadata {
            tags,
            extra,
            secure: self.secure,
            ..WorkerMetadata::for_address(address.to_string())
        }
    }
}

#[async_trait]
impl Discovery for DnsDiscovery {
    async fn subscribe(
        &self,
        filter: Option<WorkerFilter>,
    ) -> Result<Subscription, DiscoveryError> {
        Ok(subscribe(Arc::clone(&self.0), filter).await)
    }

    /// The name may have other addresses by now, whatever the TTL was.
    fn request_recheck(&self, _worker: &WorkerMetadata) {
        self.recheck_now();
    }

    fn is_unauthenticated(&self) -> bool {
        true
    }
}
