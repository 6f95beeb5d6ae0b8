//! What the tests of discoveries have in common.

use std::{future::Future, time::Duration};

use futures_util::FutureExt;

use super::{Event, Subscription};
use crate::{Uid, WorkerMetadata};

/// What is told is told at once; this is for machines that are busy.
const SOON: Duration = Duration::from_secs(20);

pub(super) async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(SOON, future).await.expect("in time")
}

pub(super) async fn next(subscription: &mut Box<dyn Subscription>) -> Event {
    soon(subscription.next()).await.expect("there is more")
}

/// What can be had without waiting.
pub(super) fn ready(subscription: &mut Box<dyn Subscription>) -> Vec<Event> {
    std::iter::from_fn(|| subscription.next().now_or_never().flatten()).collect()
}

/// A worker that serves there.
pub(super) fn at(address: &str) -> WorkerMetadata {
    let (address, version) = (address.to_owned(), "1".to_owned());
    let (tags, extra, encodings) = ([].into(), [].into(), [].into());
    WorkerMetadata { uid: Uid::new(), address, pid: 7, version, tags, extra, secure: false, encodings }
}

pub(super) fn tagged(worker: &WorkerMetadata, tag: &str) -> WorkerMetadata {
    WorkerMetadata { tags: [tag.to_owned()].into(), ..worker.clone() }
}
