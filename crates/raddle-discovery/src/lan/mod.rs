//! The workers on the same network, in whatever machine they run: DNS-SD over mDNS, with nobody who serves it.
//!
//! Each worker is an instance of the service `_raddle._tcp`, by the name of its uid. Its SRV and address records say where it is, its TXT record says what
//! else there is to know. What is heard comes from anybody: it is a hint whom to *try*, and never a reason to trust. `docs/how-to/discovery.md` has the form
//! of the records, for those who write their own.
//!
//! `mdns-sd` sends and receives. What it does not do is done here: a worker that dies without a word is missed after seconds and not after minutes,
//! since it gives signs of life; a flood of records takes no more memory than there is room for.

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

/// How long those who are there have to say so when somebody begins to listen, at least.
const SETTLE: Duration = Duration::from_millis(300);
/// How long, at most: who has just spoken may not do so again for a second, and is asked again then.
const SETTLED: Duration = Duration::from_millis(1500);
/// Who is heard of after so long without a word may be anybody.
const QUIET: Duration = Duration::from_millis(150);
/// How long it may take to say that a worker has gone.
const GOODBYE: Duration = Duration::from_millis(500);

/// The workers on the same network that were published under one name.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle_rpc::{WorkerPool, discovery::LanDiscovery, worker::LocalWorker};
///
/// let lan = LanDiscovery::new("math")?.interfaces(["eth0"]);
/// // Here, and at every other machine on this network.
/// let workers = |tags: &_| LocalWorker::new(tags).address_of("0.0.0.0:0").insecure();
/// let pool = WorkerPool::builder().size(4).worker(workers).publisher(lan.clone()).discovery(lan).start().await?;
/// # Ok(()) }
/// ```
///
/// A worker that comes, changes or goes is heard of at once. One that dies without a word is missed after 15 s, or 3 s after somebody could not reach it.
#[derive(Clone)]
pub struct LanDiscovery {
    namespace: Arc<str>,
    choice: InterfaceFilter,
    literal: Option<AdvertisedHost>,
    /// Made when it is first needed.
    hub: Arc<Mutex<Option<Arc<MdnsHub>>>>,
}

impl LanDiscovery {
    /// One for workers that are published under this name, at all interfaces but the loopback. A name has up to 64 letters, digits, dots, dashes and
    /// underscores, and does not begin with a dot.
    pub fn new(namespace: &str) -> Result<Self, DiscoveryError> {
        namespace::check(namespace)?;
        Ok(Self {
            namespace: namespace.into(),
            choice: InterfaceFilter::default(),
            literal: None,
            hub: Arc::default(),
        })
    }

    /// Uses these interfaces alone, by their names or addresses: `eth0`, `10.0.0.1`. The loopback is used if it is named.
    pub fn interfaces(self, wanted: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            choice: InterfaceFilter::of(wanted),
            hub: Arc::default(),
            ..self
        }
    }

    /// Says of the workers that are published that they are there: an IP address, with or without a port. If nothing is said, they are where they
    /// serve; one that serves everywhere (`0.0.0.0`, `[::]`) is at the addresses of the interfaces that are used, whatever becomes of those.
    pub fn advertise(self, address: &str) -> Result<Self, DiscoveryError> {
        let literal = AdvertisedHost::read(address).map_err(invalid("cannot advertise workers"))?;
        Ok(Self {
            literal: Some(literal),
            hub: Arc::default(),
            ..self
        })
    }

    /// The name that its workers are published under.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    fn hub(&self) -> Result<Arc<MdnsHub>, DiscoveryError> {
        let mut hub = self.hub.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hub) = &*hub {
            return Ok(Arc::clone(hub));
        }
        let failed = || DiscoveryError::of::<io::Error>("cannot speak to the network");
        let all = interfaces::all().map_err(failed())?;
        self.choice.among(&all).map_err(failed())?;
        let made = Arc::new(MdnsHub::new(&self.namespace, self.choice.clone()).map_err(failed())?);
        Ok(Arc::clone(hub.insert(made)))
    }

    fn made(&self) -> Option<Arc<MdnsHub>> {
        self.hub
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Where a worker is to be said to be.
    fn place(&self, worker: &WorkerMetadata) -> Result<AdvertisedLocation, io::Error> {
        let all = interfaces::all()?;
        let here: Vec<_> = self
            .choice
            .among(&all)?
            .into_iter()
            .map(|one| one.ip)
            .collect();
        AdvertisedLocation::of(&worker.address, self.literal, &here)
            .map_err(|nowhere| io::Error::new(io::ErrorKind::InvalidInput, nowhere))
    }
}

#[async_trait]
impl Publisher for LanDiscovery {
    async fn publish(&self, event: DiscoveryEvent) -> Result<(), DiscoveryError> {
        match event {
            DiscoveryEvent::Added(worker) | DiscoveryEvent::Updated(worker) => {
                let what = format!("worker {} cannot be published on the network", worker.uid);
                let place = self
                    .place(&worker)
                    .map_err(DiscoveryError::of(what.clone()))?;
                self.hub()?.publish(worker, place).map_err(invalid(what))
            }
            DiscoveryEvent::Dropped(worker) => {
                let told = self.made().and_then(|hub| hub.take_back(worker.uid));
                if let Some(told) = told {
                    // It is not waited for that it was heard.
                    let _ = tokio::time::timeout(GOODBYE, told.recv_async()).await;
                }
                Ok(())
            }
        }
    }

    fn withdraw(&self, worker: &WorkerMetadata) {
        if let Some(hub) = self.made() {
            hub.take_back(worker.uid);
        }
    }
}

#[async_trait]
impl Discovery for LanDiscovery {
    /// The first time, it takes a third of a second until those who are there have answered; if nobody is, one and a half.
    async fn subscribe(
        &self,
        filter: Option<WorkerFilter>,
    ) -> Result<Subscription, DiscoveryError> {
        let hub = self.hub()?;
        let mut news = hub.news();
        let since = hub
            .listen()
            .map_err(DiscoveryError::of("cannot ask who is on the network"))?;
        tokio::time::sleep_until((since + SETTLE).into()).await;
        let settled = async {
            while tokio::time::timeout(QUIET, news.changed()).await.is_ok()
                || hub.workers().is_empty()
            {}
        };
        // Whoever comes later is heard of as well.
        let _ = tokio::time::timeout_at((since + SETTLED).into(), settled).await;
        let first = hub.workers();
        let later = stream::unfold((hub, news), |(hub, mut news)| async move {
            news.changed().await.ok()?;
            Some((hub.workers(), (hub, news)))
        });
        Ok(Subscription::from_snapshots(filter, first, later))
    }

    fn request_recheck(&self, worker: &WorkerMetadata) {
        if let Some(hub) = self.made() {
            hub.request_recheck(worker.uid);
        }
    }

    fn is_unauthenticated(&self) -> bool {
        true
    }
}

fn invalid<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    what: impl Into<String>,
) -> impl FnOnce(E) -> DiscoveryError {
    let what = what.into();
    move |error| DiscoveryError {
        what,
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
