//! Workers that take calls, in the registry of a broker: how they are entered there, and found.
//!
//! Calls need no broker, and where there is one, it carries none of them: it is asked who is there, and that is all. Whoever publishes a worker enters it
//! for as long as he renews its lease, as a worker that has no queue and claims nothing; whoever looks for workers reads the registry again and
//! again. What stands there is a hint. Whoever may write to the broker may enter anybody.

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

/// How long it takes at most until somebody hears of what has changed. It is no wait that a call has: one that finds nobody at an address looks at once.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Nobody looks more often than that.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Workers that are in the registry of a broker: on one machine with SQLite, on many with Redis.
///
/// A worker is there while whoever published it lives: one whose machine dies is gone when its lease is over, within 4 s. An address that means something
/// on one machine alone (a Unix socket, the loopback) is only believed there.
///
/// Whoever may write to the broker decides who is called. Use credentials where that are not only those whom you trust.
#[derive(Clone)]
pub struct BrokerDiscovery {
    broker: Arc<dyn Broker>,
    namespace: String,
    routines: BTreeSet<String>,
    poll_interval: Duration,
    /// The workers that were entered here.
    entered: Arc<Mutex<BTreeMap<WorkerUid, RegisteredWorker>>>,
    /// Tells that a worker was not reached.
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
        // Workers are this same program, unless somebody says otherwise. Two of one name are told of where they matter.
        let routines =
            Routines::of_this_program().map(|all| all.names().map(str::to_owned).collect());
        Ok(Self {
            broker,
            namespace,
            routines: routines.unwrap_or_default(),
            poll_interval: POLL_INTERVAL,
            entered: Arc::default(),
            rechecks: watch::Sender::default(),
        })
    }

    /// How often to look. Every second, if nothing is said.
    pub fn every(self, pause: Duration) -> Self {
        Self {
            every: pause.max(MIN_POLL_INTERVAL),
            ..self
        }
    }

    /// What the workers that are published run, for those who look at the registry. The routines of this program, if nothing is said.
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

    fn entered(&self) -> MutexGuard<'_, BTreeMap<WorkerUid, RegisteredWorker>> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look(&self) -> BrokerResult<Vec<WorkerMetadata>> {
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
                let (entered, first) = RegisteredWorker::start(Arc::clone(&self.broker), info);
                // The one before goes when this one is there, so that the worker is never missing.
                let before = self.entered().insert(worker.uid, entered);
                let outcome = first.await;
                if let Some(before) = before {
                    before.leave().await;
                }
                if let Err(error) = outcome {
                    tracing::warn!(worker = %worker.uid, %error, "a worker is not in the registry yet; it is entered as soon as the broker answers");
                }
                Ok(())
            }
            DiscoveryEvent::Dropped(worker) => {
                let entered = self.entered().remove(&worker.uid);
                if let Some(entered) = entered {
                    entered.leave().await;
                }
                Ok(())
            }
        }
    }

    fn withdraw(&self, worker: &WorkerMetadata) {
        // It leaves by itself, if there is time for it, and else with the end of its lease.
        drop(self.entered().remove(&worker.uid));
    }
}

#[async_trait]
impl Discovery for BrokerDiscovery {
    async fn subscribe(
        &self,
        filter: Option<WorkerFilter>,
    ) -> Result<Subscription, DiscoveryError> {
        let (this, rechecks) = (self.clone(), self.rechecks.subscribe());
        let first = this.look().await;
        let first =
            first.map_err(|error| failed("cannot read the registry")(io::Error::other(error)))?;
        let later = stream::unfold((this, rechecks), |(this, mut rechecks)| async move {
            let mut is_cut_off = false;
            loop {
                wait_for_recheck(&mut rechecks, MIN_POLL_INTERVAL, this.poll_interval).await;
                match this.look().await {
                    Ok(workers) => return Some((workers, (this, rechecks))),
                    // A broker that does not answer takes no workers away.
                    Err(error) if !std::mem::replace(&mut is_cut_off, true) => {
                        tracing::warn!(%error, "the registry cannot be read: the workers that are known stay");
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

fn failed(what: &str) -> impl FnOnce(io::Error) -> DiscoveryError {
    let what = what.to_owned();
    move |source| DiscoveryError {
        operation: what,
        source,
    }
}

impl fmt::Debug for BrokerDiscovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerDiscovery")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}
