//! Workers that a name stands for, as in a cluster where a service without an address of its own (*headless*) has one for each of its pods.
//!
//! The resolver of the C library says neither how long an answer holds nor what an SRV record says, so `hickory-resolver` asks the name servers. `/etc/hosts`
//! is not read.
//!
//! An answer is as trustworthy as the network it came over. A worker that an attacker has made up has to prove itself to callers with credentials as any other.

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

/// Nobody is asked more often, whatever is said.
const LEAST: Duration = Duration::from_secs(1);
/// Nobody is asked more seldom, however long an answer holds.
const MOST: Duration = Duration::from_secs(60);
/// The shortest that can be asked for.
const SHORTEST: Duration = Duration::from_millis(10);

/// The workers that a name stands for: `workers.ns.svc.cluster.local:7070` are all that have this name (A and AAAA records), and
/// `_raddle._tcp.workers.ns.svc.cluster.local` is a service that says where each of them serves (SRV records).
///
/// Each address is a worker. What else is to be known of them is said here, and is the same for all: whether they serve over TLS, and their tags.
/// A name server that does not answer takes no workers away. That there are none any more is believed when it was said three times in a row.
#[derive(Clone, Debug)]
pub struct DnsDiscovery(Arc<Settings>);

#[derive(Clone, Debug)]
struct Settings {
    /// As it was given.
    name: String,
    service: DnsService,
    /// Instead of those of the system.
    servers: Option<Vec<SocketAddr>>,
    /// Which addresses are preferred.
    prefer: AddressPreference,
    bounds: TtlBounds,
    tags: BTreeSet<String>,
    extra: BTreeMap<String, String>,
    secure: bool,
    /// Rings when somebody wants to know sooner.
    again: watch::Sender<()>,
}

impl DnsDiscovery {
    /// One of the workers that this name stands for: `host:port`, or `_service._tcp.name`. A name with a dot at its end is whole; others are also looked
    /// for below those that `/etc/resolv.conf` lists.
    pub fn new(name: &str) -> Result<Self, DiscoveryError> {
        let service = name.parse().map_err(|error| {
            let source = io::Error::new(io::ErrorKind::InvalidInput, error);
            DiscoveryError {
                what: format!("'{name}' is no name of workers"),
                source,
            }
        })?;
        Ok(Self(Arc::new(Settings {
            name: name.to_owned(),
            service,
            servers: None,
            prefer: AddressPreference::V4,
            bounds: TtlBounds {
                least: LEAST,
                most: MOST,
            },
            tags: BTreeSet::new(),
            extra: BTreeMap::new(),
            secure: false,
            again: watch::Sender::new(()),
        })))
    }

    /// What the workers can do, for those who choose.
    pub fn tags(self, tags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let tags = tags.into_iter().map(Into::into).collect();
        self.with(|settings| settings.tags = tags)
    }

    /// Anything else that is to be said of the workers.
    pub fn extra(self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|settings| drop(settings.extra.insert(key.into(), value.into())))
    }

    /// The workers serve over TLS. Their certificates will hardly name their addresses: see
    /// `CredentialSource::expecting`.
    pub fn secure(self) -> Self {
        self.with(|settings| settings.secure = true)
    }

    /// Addresses of IPv6 count where a name has both. Otherwise it is those of IPv4: a host that has both is one worker, and not two.
    pub fn prefer_ipv6(self) -> Self {
        self.with(|settings| settings.prefer = AddressPreference::V6)
    }

    /// Asks every so often, whatever the answers say of how long they hold.
    pub fn every(self, pause: Duration) -> Self {
        self.between(pause, pause)
    }

    /// Asks as often as the answers say, within these bounds: 1 s and 60 s, if nothing is said.
    pub fn between(self, least: Duration, most: Duration) -> Self {
        let least = least.max(SHORTEST);
        self.with(|settings| {
            settings.bounds = TtlBounds {
                least,
                most: most.max(least),
            }
        })
    }

    /// Asks these servers, and not those of `/etc/resolv.conf`. Names are not looked for below others then.
    pub fn name_servers(self, servers: impl IntoIterator<Item = SocketAddr>) -> Self {
        let servers: Vec<_> = servers.into_iter().collect();
        self.with(|settings| settings.servers = (!servers.is_empty()).then_some(servers))
    }

    /// Asks again now, for all who listen: for whoever knows that there is something new. Not sooner after the last time than may be.
    pub fn look_again(&self) {
        self.0.again.send_replace(());
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
    /// What is known of the worker at an address.
    fn worker(&self, place: SocketAddr) -> WorkerMetadata {
        let (tags, extra) = (self.tags.clone(), self.extra.clone());
        WorkerMetadata {
            tags,
            extra,
            secure: self.secure,
            ..WorkerMetadata::at(place.to_string())
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

    /// The name may stand for others by now, whatever was said of how long that holds.
    fn request_recheck(&self, _worker: &WorkerMetadata) {
        self.look_again();
    }

    fn is_unauthenticated(&self) -> bool {
        true
    }
}
