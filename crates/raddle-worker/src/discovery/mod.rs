//! Discovery of pool workers in the registry of a broker.
//!
//! Calls do not pass the broker. A publisher registers a worker that has no queue and claims
//! nothing, and renews its lease. Callers read the registry periodically. Entries are hints: anyone
//! who can write to the broker can register a worker.

mod record;
mod registered;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::stream;
use raddle_broker::{Broker, Result as BrokerResult};
use raddle_discovery::{
    Discovery, DiscoveryError, DiscoveryEvent, Publisher, Subscription, WorkerFilter,
    WorkerMetadata, WorkerUid, check_namespace, wait_for_recheck,
};
use raddle_model::routine::Routines;
use tokio::sync::watch;

use self::registered::RegisteredWorker;
use crate::worker::this_host;

/// How often subscribers read the registry. A call that cannot reach a worker triggers a read at
/// once.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time between two reads.
const MIN_PAUSE: Duration = Duration::from_millis(100);

/// Workers that are in the registry of a broker: on one machine with SQLite, on many with Redis.
///
/// A worker is listed while its publisher lives. If its machine dies, it disappears when its lease
/// expires, within 4 s. An address that is valid on one machine only (a Unix socket, the loopback)
/// is ignored on others.
///
/// Anyone who can write to the broker decides which workers are called. Use credentials if you do
/// not trust all of them.
#[derive(Clone)]
pub struct BrokerDiscovery {
    broker: Arc<dyn Broker>,
    namespace: String,
    routines: BTreeSet<String>,
    poll_interval: Duration,
    /// Workers that were registered by this instance.
    registered: Arc<Mutex<BTreeMap<WorkerUid, RegisteredWorker>>>,
    /// Signals that a worker could not be reached.
    rechecks: watch::Sender<()>,
}

impl BrokerDiscovery {
    /// Workers that are published under this name.
    pub fn new(
        namespace: impl Into<String>,
        broker: Arc<dyn Broker>,
    ) -> Result<Self, DiscoveryError> {
        let namespace = namespace.into();
        check_namespace(&namespace)?;
        // By default workers run this program. Duplicate names are reported where they matter.
        let routines =
            Routines::of_this_program().map(|all| all.names().map(str::to_owned).collect());
        Ok(Self {
            broker,
            namespace,
            routines: routines.unwrap_or_default(),
            poll_interval: READ_INTERVAL,
            registered: Arc::default(),
            rechecks: watch::Sender::default(),
        })
    }

    /// How often to read the registry. Default: every second.
    pub fn poll_interval(self, interval: Duration) -> Self {
        Self {
            poll_interval: interval.max(MIN_PAUSE),
            ..self
        }
    }

    /// The routines of published workers, as shown in the registry. Default: those of this program.
    pub fn routines(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            routines: names.into_iter().map(Into::into).collect(),
            ..self
        }
    }

    /// The name that workers are published under.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    fn registered(&self) -> MutexGuard<'_, BTreeMap<WorkerUid, RegisteredWorker>> {
        self.registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn read_registry(&self) -> BrokerResult<Vec<WorkerMetadata>> {
        Ok(record::read(
            self.broker.workers().await?,
            &self.namespace,
            &this_host(),
        ))
    }
}

#[async_trait]
impl Publisher for BrokerDiscovery {
    async fn publish(&self, event: DiscoveryEvent) -> Result<(), DiscoveryError> {
        match event {
            DiscoveryEvent::Added(worker) | DiscoveryEvent::Updated(worker) => {
                let info =
                    record::write(&worker, &self.namespace, &self.routines).map_err(|reason| {
                        failed("cannot publish a worker")(io::Error::new(
                            io::ErrorKind::InvalidInput,
                            reason,
                        ))
                    })?;
                let (registered, first) = RegisteredWorker::start(Arc::clone(&self.broker), info);
                // The old entry goes after the new one is there, so that the worker is never
                // missing.
                let old = self.registered().insert(worker.uid, registered);
                let outcome = first.await;
                if let Some(old) = old {
                    old.deregister().await;
                }
                if let Err(error) = outcome {
                    tracing::warn!(worker = %worker.uid, %error, "a worker is not registered yet: retrying");
                }
                Ok(())
            }
            DiscoveryEvent::Dropped(worker) => {
                let registered = self.registered().remove(&worker.uid);
                if let Some(registered) = registered {
                    registered.deregister().await;
                }
                Ok(())
            }
        }
    }

    fn withdraw(&self, worker: &WorkerMetadata) {
        // It deregisters in the background, or its lease expires.
        drop(self.registered().remove(&worker.uid));
    }
}

#[async_trait]
impl Discovery for BrokerDiscovery {
    async fn subscribe(
        &self,
        filter: Option<WorkerFilter>,
    ) -> Result<Subscription, DiscoveryError> {
        let (this, rechecks) = (self.clone(), self.rechecks.subscribe());
        let first = this.read_registry().await;
        let first =
            first.map_err(|error| failed("cannot read the registry")(io::Error::other(error)))?;
        let later = stream::unfold((this, rechecks), |(this, mut rechecks)| async move {
            let mut is_cut_off = false;
            loop {
                wait_for_recheck(&mut rechecks, MIN_PAUSE, this.poll_interval).await;
                match this.read_registry().await {
                    Ok(workers) => return Some((workers, (this, rechecks))),
                    // Known workers stay while the broker does not answer.
                    Err(error) if !std::mem::replace(&mut is_cut_off, true) => {
                        tracing::warn!(%error, "the registry cannot be read: known workers stay");
                    }
                    Err(_) => {}
                }
            }
        });
        Ok(Subscription::from_snapshots(filter, first, later))
    }

    fn request_recheck(&self, _worker: &WorkerMetadata) {
        self.rechecks.send_replace(());
    }
}

fn failed(operation: &str) -> impl FnOnce(io::Error) -> DiscoveryError {
    let operation = operation.to_owned();
    move |source| DiscoveryError { operation, source }
}

impl fmt::Debug for BrokerDiscovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerDiscovery")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}
