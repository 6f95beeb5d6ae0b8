//! Workers that take calls, in the registry of a broker: how they are entered there, and found.
//!
//! Calls need no broker, and where there is one, it carries none of them: it is asked who is there, and that is all. Whoever publishes a worker enters it
//! for as long as he renews its lease, as a worker that has no queue and claims nothing; whoever looks for workers reads the registry again and
//! again. What stands there is a hint. Whoever may write to the broker may enter anybody.

mod entered;
mod record;
mod subscription;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use raddle_broker::Broker;
use raddle_core::routine::Routines;
use raddle_pool::{
    Uid, WorkerMetadata,
    discovery::{Discovery, DiscoveryError, Event, Filter, Publisher, Subscription, check_namespace},
};
use tokio::sync::watch;

use self::{entered::Entered, subscription::Registered};

/// How long it takes at most until somebody hears of what has changed. It is no wait that a call has: one that finds nobody at an address looks at once.
const EVERY: Duration = Duration::from_secs(1);
/// Nobody looks more often than that.
const MOST_OFTEN: Duration = Duration::from_millis(100);

/// Workers that are in the registry of a broker: on one machine with SQLite, on many with Redis.
///
/// A worker is there while whoever published it lives: one whose machine dies is gone when its lease is over, within 4 s. An address that means something
/// on one machine alone (a Unix socket, the loopback) is only believed there.
///
/// Whoever may write to the broker decides who is called. Use [credentials](raddle_pool::WorkerCredentials) where that are not only those whom you trust.
#[derive(Clone)]
pub struct BrokerDiscovery(Arc<Inner>);

struct Inner {
    broker: Arc<dyn Broker>,
    namespace: String,
    routines: BTreeSet<String>,
    every: Duration,
    /// The workers that were entered here.
    entered: Mutex<BTreeMap<Uid, Entered>>,
    /// Somebody was not reached.
    doubts: watch::Sender<()>,
}

impl BrokerDiscovery {
    /// Workers that are published under this name.
    pub fn new(namespace: impl Into<String>, broker: Arc<dyn Broker>) -> Result<Self, DiscoveryError> {
        let namespace = namespace.into();
        check_namespace(&namespace)?;
        // Workers are this same program, unless somebody says otherwise. Two of one name are told of where they matter.
        let routines = Routines::of_this_program().map(|all| all.names().map(str::to_owned).collect());
        Ok(Self(Arc::new(Inner {
            broker,
            namespace,
            routines: routines.unwrap_or_default(),
            every: EVERY,
            entered: Mutex::default(),
            doubts: watch::Sender::default(),
        })))
    }

    /// How often to look. Every second, if nothing is said.
    pub fn every(self, pause: Duration) -> Self {
        self.with(|inner| inner.every = pause.max(MOST_OFTEN))
    }

    /// What the workers that are published run, for those who look at the registry. The routines of this program, if nothing is said.
    pub fn routines(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.with(|inner| inner.routines = names.into_iter().map(Into::into).collect())
    }

    /// The name that workers are published under.
    pub fn namespace(&self) -> &str {
        &self.0.namespace
    }

    /// Another one, which knows nobody yet.
    fn with(self, change: impl FnOnce(&mut Inner)) -> Self {
        let Inner { broker, namespace, routines, every, .. } = &*self.0;
        let (broker, namespace, routines) = (Arc::clone(broker), namespace.clone(), routines.clone());
        let (entered, doubts) = (Mutex::default(), watch::Sender::default());
        let mut inner = Inner { broker, namespace, routines, every: *every, entered, doubts };
        change(&mut inner);
        Self(Arc::new(inner))
    }
}

impl Inner {
    fn entered(&self) -> MutexGuard<'_, BTreeMap<Uid, Entered>> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Publisher for BrokerDiscovery {
    async fn publish(&self, event: Event) -> Result<(), DiscoveryError> {
        let inner = &self.0;
        match event {
            Event::Added(worker) | Event::Updated(worker) => {
                let info = record::write(&worker, &inner.namespace, &inner.routines).map_err(|reason| {
                    failed("cannot publish a worker")(io::Error::new(io::ErrorKind::InvalidInput, reason))
                })?;
                let (entered, first) = Entered::start(Arc::clone(&inner.broker), info);
                // The one before goes when this one is there, so that the worker is never missing.
                let before = inner.entered().insert(worker.uid, entered);
                let outcome = first.await;
                if let Some(before) = before {
                    before.leave().await;
                }
                outcome.map_err(|error| failed("a worker is not in the registry yet")(io::Error::other(error)))
            }
            Event::Dropped(worker) => {
                let entered = inner.entered().remove(&worker.uid);
                if let Some(entered) = entered {
                    entered.leave().await;
                }
                Ok(())
            }
        }
    }

    fn withdraw(&self, worker: &WorkerMetadata) {
        // It leaves by itself, if there is time for it, and else with the end of its lease.
        drop(self.0.entered().remove(&worker.uid));
    }
}

#[async_trait]
impl Discovery for BrokerDiscovery {
    async fn subscribe(&self, filter: Option<Filter>) -> Result<Box<dyn Subscription>, DiscoveryError> {
        let registered = Registered::start(Arc::clone(&self.0), filter).await;
        let registered = registered.map_err(|error| failed("cannot read the registry")(io::Error::other(error)))?;
        Ok(Box::new(registered))
    }

    fn doubt(&self, _worker: &WorkerMetadata) {
        self.0.doubts.send_replace(());
    }
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> DiscoveryError {
    let what = what.to_owned();
    move |source| DiscoveryError { what, source }
}

impl fmt::Debug for BrokerDiscovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerDiscovery").field("namespace", &self.0.namespace).finish_non_exhaustive()
    }
}
