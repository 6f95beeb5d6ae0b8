//! Worker discovery: how workers are published, and how callers find them.

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
    namespace::check_namespace,
    static_list::StaticDiscovery,
    subscription::{Subscription, wait_for_recheck},
};

/// A change of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoveryEvent {
    /// The worker was published.
    Added(WorkerMetadata),
    /// Its metadata has changed.
    Updated(WorkerMetadata),
    /// It is gone.
    Dropped(WorkerMetadata),
}

/// Selects the workers that a subscriber wants.
pub type WorkerFilter = Arc<dyn Fn(&WorkerMetadata) -> bool + Send + Sync>;

/// Publishes workers.
#[async_trait]
pub trait Publisher: Send + Sync + 'static {
    /// Publishes a change of a worker. A worker stays published until it is dropped or its
    /// publisher ends.
    async fn publish(&self, event: DiscoveryEvent) -> Result<(), DiscoveryError>;

    /// Withdraws a worker as far as possible without waiting, because its publisher is being
    /// dropped.
    fn withdraw(&self, _worker: &WorkerMetadata) {}
}

/// Finds workers.
#[async_trait]
pub trait Discovery: Send + Sync + 'static {
    /// Subscribes. Workers that exist already are reported first, as [`DiscoveryEvent::Added`],
    /// without waiting.
    async fn subscribe(&self, filter: Option<WorkerFilter>)
    -> Result<Subscription, DiscoveryError>;

    /// A caller could not reach this worker: the discovery checks, if it can, whether the worker
    /// still exists, and reports if not. Does not wait.
    fn request_recheck(&self, _worker: &WorkerMetadata) {}

    /// Whether others than this user can publish workers. Then a worker needs more than a
    /// certificate for its address: an expected name.
    fn is_unauthenticated(&self) -> bool {
        false
    }
}

/// Why a discovery failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation}: {source}")]
pub struct DiscoveryError {
    /// The operation.
    pub operation: String,
    /// The cause.
    pub source: io::Error,
}

impl DiscoveryError {
    /// Wraps the error of an operation.
    pub(crate) fn wrap<E: Into<io::Error>>(operation: impl Into<String>) -> impl FnOnce(E) -> Self {
        let operation = operation.into();
        move |source| Self {
            operation,
            source: source.into(),
        }
    }

    /// Wraps the error of an operation on a path.
    fn wrap_path(operation: &str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        Self::wrap(format!("{operation} ({})", path.display()))
    }
}

/// A discovery that several pools share.
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
