//! How workers are found: who publishes them, and who hears of them.

mod address;
#[cfg(feature = "dns")]
mod dns;
pub mod encoding;
mod entry;
mod file;
#[cfg(feature = "lan")]
mod lan;
mod local;
mod metadata;
mod namespace;
mod static_list;
mod subscription;
#[cfg(test)]
mod testing;
mod watch;

use std::{io, path::Path, sync::Arc};

use async_trait::async_trait;

#[cfg(feature = "dns")]
pub use self::dns::DnsDiscovery;
#[cfg(feature = "lan")]
pub use self::lan::LanDiscovery;
pub use self::{
    address::{Address, AddressError},
    encoding::{Encoding, Encodings},
    file::FileDiscovery,
    local::LocalDiscovery,
    metadata::{MetadataError, WorkerMetadata, WorkerUid},
    namespace::check as check_namespace,
    static_list::StaticDiscovery,
    subscription::{Subscription, wait_for_recheck},
};

/// What is heard of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoveryEvent {
    /// It is there.
    Added(WorkerMetadata),
    /// Something else is said of it.
    Updated(WorkerMetadata),
    /// It is gone.
    Dropped(WorkerMetadata),
}

/// Which workers somebody wants to hear of.
pub type WorkerFilter = Arc<dyn Fn(&WorkerMetadata) -> bool + Send + Sync>;

/// Lets others hear of workers.
#[async_trait]
pub trait Publisher: Send + Sync + 'static {
    /// Says something of a worker. One that was published is there until it is dropped, or its publisher has ended.
    async fn publish(&self, event: DiscoveryEvent) -> Result<(), DiscoveryError>;

    /// Takes back what was said of a worker, as well as that can be done without waiting: whoever published it is being dropped.
    fn withdraw(&self, _worker: &WorkerMetadata) {}
}

/// Makes subscriptions.
#[async_trait]
pub trait Discovery: Send + Sync + 'static {
    /// Begins to listen. What is there already is heard of first, as [`DiscoveryEvent::Added`], and without waiting.
    async fn subscribe(&self, filter: Option<WorkerFilter>)
    -> Result<Subscription, DiscoveryError>;

    /// Somebody could not reach this worker. Whoever can finds out whether it is still there, and tells if it is not. Does not wait.
    fn request_recheck(&self, _worker: &WorkerMetadata) {}

    /// Whether others than this user can say who the workers are. Then it takes more than a certificate for some address to be one.
    fn is_unauthenticated(&self) -> bool {
        false
    }
}

/// A discovery that does not work.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct DiscoveryError {
    /// What was tried.
    pub what: String,
    /// Why it could not be done.
    pub source: io::Error,
}

impl DiscoveryError {
    /// Makes one of the error of something that was tried.
    pub(crate) fn of<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self {
            what,
            source: source.into(),
        }
    }

    /// The same, of something that was tried at a path.
    fn at(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        Self::of(format!("{what} ({})", path.display()))
    }
}

/// One that several pools share.
#[async_trait]
impl<D: Discovery + ?Sized> Discovery for Arc<D> {
    async fn subscribe(
        &self,
        filter: Option<WorkerFilter>,
    ) -> Result<Subscription, DiscoveryError> {
        (**self).subscribe(filter).await
    }

    fn request_recheck(&self, worker: &WorkerMetadata) {
        (**self).request_recheck(worker);
    }

    fn is_unauthenticated(&self) -> bool {
        (**self).is_unauthenticated()
    }
}
