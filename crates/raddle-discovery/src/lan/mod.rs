//! LAN discovery: the workers on the same network, by DNS-SD over mDNS, without a server.
//!
//! Each worker is an instance of the service `_raddle._tcp`, named by its uid. Its SRV and address
//! records have its location, its TXT record the other metadata. Records come from any host: they
//! name workers to *try*, and never workers to trust. `docs/how-to/discovery.md` has the format,
//! for other implementations.
//!
//! `mdns-sd` sends and receives. This module adds: liveness records, so that a worker that dies
//! silently is missed after seconds instead of minutes; and bounded memory under a flood of
//! records.

mod advertised_location;
mod hub;
mod interfaces;
mod listen;
mod record;
mod service_cache;

use std::{
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::stream;

use self::{
    advertised_location::{AdvertisedHost, AdvertisedLocation},
    hub::MdnsHub,
    interfaces::InterfaceFilter,
};
use super::{
    Discovery, DiscoveryError, DiscoveryEvent, Publisher, Subscription, WorkerFilter, namespace,
};
use crate::WorkerMetadata;

/// Shortest time that existing workers have to answer a new subscriber.
const MIN_SETTLE: Duration = Duration::from_millis(300);
/// Longest time: a host that has just answered may not answer again within a second (RFC 6762), and
/// is queried again after that.
const MAX_SETTLE: Duration = Duration::from_millis(1500);
/// After this long without an answer, the first snapshot is complete.
const QUIET_PERIOD: Duration = Duration::from_millis(150);
/// How long announcing the end of a worker may take.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(500);

/// The workers on the same network that were published under one name.
///
/// ```ignore
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{WorkerPool, discovery::LanDiscovery, pool::worker::LocalWorker};
///
/// let lan = LanDiscovery::new("math")?.interfaces(["eth0"]);
/// // On this and every other machine of the network.
/// let workers = |tags: &_| LocalWorker::new(tags).address_of("0.0.0.0:0").insecure();
/// let pool = WorkerPool::builder().size(4).worker(workers).publisher(lan.clone()).discovery(lan).start().await?;
/// # Ok(()) }
/// ```
///
/// Additions, changes and ends are reported at once. A worker that dies silently is missed after 15
/// s, or 3 s after a call could not reach it.
#[derive(Clone)]
pub struct LanDiscovery {
    namespace: Arc<str>,
    filter: InterfaceFilter,
    literal: Option<AdvertisedHost>,
    /// Made on first use.
    hub: Arc<Mutex<Option<Arc<MdnsHub>>>>,
}

impl LanDiscovery {
    /// The workers published under this name, on all interfaces but the loopback. A name has up to
    /// 64 letters, digits, dots, dashes and underscores, and does not start with a dot.
    pub fn new(namespace: &str) -> Result<Self, DiscoveryError> {
        namespace::check_namespace(namespace)?;
        Ok(Self {
            namespace: namespace.into(),
            filter: InterfaceFilter::default(),
            literal: None,
            hub: Arc::default(),
        })
    }

    /// Uses only these interfaces, by name or address: `eth0`, `10.0.0.1`. The loopback is used if
    /// it is named.
    pub fn interfaces(self, wanted: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            filter: InterfaceFilter::new(wanted),
            hub: Arc::default(),
            ..self
        }
    }

    /// Sets the address of published workers: an IP address, with or without a port. Default: the
    /// address that they listen on; for a wildcard (`0.0.0.0`, `[::]`), the current addresses of
    /// the used interfaces.
    pub fn advertise(self, address: &str) -> Result<Self, DiscoveryError> {
        let literal =
            AdvertisedHost::parse(address).map_err(invalid("cannot advertise workers"))?;
        Ok(Self {
            literal: Some(literal),
            hub: Arc::default(),
            ..self
        })
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    fn hub(&self) -> Result<Arc<MdnsHub>, DiscoveryError> {
        let mut hub = self.hub.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hub) = &*hub {
            return Ok(Arc::clone(hub));
        }
        let failed = || DiscoveryError::wrap::<io::Error>("cannot use mDNS");
        let all = interfaces::list_interfaces().map_err(failed())?;
        self.filter.select(&all).map_err(failed())?;
        let made = Arc::new(MdnsHub::new(&self.namespace, self.filter.clone()).map_err(failed())?);
        Ok(Arc::clone(hub.insert(made)))
    }

    fn existing_hub(&self) -> Option<Arc<MdnsHub>> {
        self.hub
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The location to publish for a worker.
    fn location(&self, worker: &WorkerMetadata) -> Result<AdvertisedLocation, io::Error> {
        let all = interfaces::list_interfaces()?;
        let addresses: Vec<_> = self
            .filter
            .select(&all)?
            .into_iter()
            .map(|one| one.ip)
            .collect();
        AdvertisedLocation::resolve(&worker.address, self.literal, &addresses)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
    }
}

#[async_trait]
impl Publisher for LanDiscovery {
    async fn publish(&self, event: DiscoveryEvent) -> Result<(), DiscoveryError> {
        match event {
            DiscoveryEvent::Added(worker) | DiscoveryEvent::Updated(worker) => {
                let what = format!("cannot publish worker {} on the network", worker.uid);
                let location = self
                    .location(&worker)
                    .map_err(DiscoveryError::wrap(what.clone()))?;
                self.hub()?.publish(worker, location).map_err(invalid(what))
            }
            DiscoveryEvent::Dropped(worker) => {
                let sent = self
                    .existing_hub()
                    .and_then(|hub| hub.unpublish(worker.uid));
                if let Some(sent) = sent {
                    // Waits for the sending, not for the reception.
                    let _ = tokio::time::timeout(GOODBYE_TIMEOUT, sent.recv_async()).await;
                }
                Ok(())
            }
        }
    }

    fn withdraw(&self, worker: &WorkerMetadata) {
        if let Some(hub) = self.existing_hub() {
            hub.unpublish(worker.uid);
        }
    }
}

#[async_trait]
impl Discovery for LanDiscovery {
    /// The first subscription takes a third of a second, until existing workers have answered; one
    /// and a half if there are none.
    async fn subscribe(
        &self,
        filter: Option<WorkerFilter>,
    ) -> Result<Subscription, DiscoveryError> {
        let hub = self.hub()?;
        let mut changes = hub.subscribe_changes();
        let since = hub.start_browsing().map_err(DiscoveryError::wrap(
            "cannot browse the network for workers",
        ))?;
        tokio::time::sleep_until((since + MIN_SETTLE).into()).await;
        let settled = async {
            while tokio::time::timeout(QUIET_PERIOD, changes.changed())
                .await
                .is_ok()
                || hub.workers().is_empty()
            {}
        };
        // Workers that answer later are reported later.
        let _ = tokio::time::timeout_at((since + MAX_SETTLE).into(), settled).await;
        let first = hub.workers();
        let later = stream::unfold((hub, changes), |(hub, mut changes)| async move {
            changes.changed().await.ok()?;
            Some((hub.workers(), (hub, changes)))
        });
        Ok(Subscription::from_snapshots(filter, first, later))
    }

    fn request_recheck(&self, worker: &WorkerMetadata) {
        if let Some(hub) = self.existing_hub() {
            hub.request_recheck(worker.uid);
        }
    }

    fn is_unauthenticated(&self) -> bool {
        true
    }
}

fn invalid<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    operation: impl Into<String>,
) -> impl FnOnce(E) -> DiscoveryError {
    let operation = operation.into();
    move |error| DiscoveryError {
        operation,
        source: io::Error::new(io::ErrorKind::InvalidInput, error),
    }
}

impl fmt::Debug for LanDiscovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LanDiscovery")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}
