//! Helpers of the discovery tests.

use std::{future::Future, time::Duration};

use futures_util::FutureExt;

use super::{DiscoveryEvent, Subscription};
use crate::{WorkerMetadata, WorkerUid};

/// Time limit of each wait: events arrive at once, but a machine may be busy.
const SOON: Duration = Duration::from_secs(60);

pub(super) async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(SOON, future).await.expect("in time")
}

pub(super) async fn next(subscription: &mut Subscription) -> DiscoveryEvent {
    soon(subscription.next()).await.expect("there is more")
}

/// The events that are available without waiting.
pub(super) fn ready(subscription: &mut Subscription) -> Vec<DiscoveryEvent> {
    std::iter::from_fn(|| subscription.next().now_or_never().flatten()).collect()
}

/// A worker with this address.
pub(super) fn worker_at(address: &str) -> WorkerMetadata {
    WorkerMetadata {
        uid: WorkerUid::new(),
        pid: 7,
        ..WorkerMetadata::for_address(address)
    }
}

pub(super) fn tagged(worker: &WorkerMetadata, tag: &str) -> WorkerMetadata {
    WorkerMetadata {
        tags: [tag.to_owned()].into(),
        ..worker.clone()
    }
}
