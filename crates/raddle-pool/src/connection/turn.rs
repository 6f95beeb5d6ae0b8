//! Whose turn it is to send a call to a worker: so many calls at a time, in the order in which they came.
//!
//! Apart from the channel, so that whoever waits knows whether a call was sent. Nothing is opened or sent here.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Code;

use super::resource::ResourcePool;
use crate::RpcError;

/// How long turns are remembered that nobody takes. They have no state then, so that it does not matter.
const TTL: Duration = Duration::from_secs(60);

/// As there is one channel for each of these, there is one queue.
static QUEUES: LazyLock<ResourcePool<Key, Semaphore>> = LazyLock::new(|| ResourcePool::new(TTL));

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    address: Arc<str>,
    limit: usize,
    runtime: tokio::runtime::Id,
}

/// Waits for a turn, which lasts until it is dropped.
pub(super) async fn take(address: &Arc<str>, limit: usize) -> Result<OwnedSemaphorePermit, RpcError> {
    let key = Key { address: Arc::clone(address), limit, runtime: tokio::runtime::Handle::current().id() };
    let queue = QUEUES.get(&key, || Ok::<_, RpcError>(Semaphore::new(limit.clamp(1, Semaphore::MAX_PERMITS))))?;
    // Nobody closes it.
    queue.acquire_owned().await.map_err(|_| RpcError::refused(Code::Unavailable, "nobody takes turns any more"))
}
