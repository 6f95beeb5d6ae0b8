//! Proof of pool membership: a pool and its workers recognise each other, whatever the workers'
//! allow rules say.
//!
//! The pool generates a key and passes it to each worker over the socket pair that it started the
//! worker with. A caller proves with an HMAC that it has the key. The HMAC covers the worker's uid,
//! so a worker that receives one cannot use it to call another.

use std::fmt;

use bytes::Bytes;
use raddle_discovery::WorkerUid;
use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};
use serde::{Deserialize, Serialize};

/// A secret of a pool and its workers.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct PoolKey([u8; 32]);

tokio::task_local! {
    /// The key of the pool that is starting a worker. Not an argument of `Worker::start`, because a
    /// `WorkerFactory` may wrap workers.
    static STARTING_POOL: PoolKey;
}

impl PoolKey {
    /// Generates a key.
    pub(crate) fn generate() -> Self {
        let mut key = [0; 32];
        SystemRandom::new()
            .fill(&mut key)
            .expect("the kernel has random numbers");
        Self(key)
    }

    /// The key of the pool that is starting a worker in this task, if any.
    pub(crate) fn of_starting_pool() -> Option<Self> {
        STARTING_POOL.try_with(Clone::clone).ok()
    }

    /// Runs the start of a worker, for which [`of_starting_pool`](Self::of_starting_pool) returns
    /// this key.
    pub(crate) async fn run_start<F: Future>(self, start: F) -> F::Output {
        STARTING_POOL.scope(self, start).await
    }

    /// Proves to the worker that a call comes from its pool.
    pub(crate) fn proof_for(&self, worker: WorkerUid) -> Bytes {
        Bytes::copy_from_slice(hmac::sign(&self.hmac_key(), worker.as_bytes()).as_ref())
    }

    /// Checks a caller's proof for the worker.
    pub(crate) fn verify(&self, worker: WorkerUid, proof: &[u8]) -> bool {
        hmac::verify(&self.hmac_key(), worker.as_bytes(), proof).is_ok()
    }

    fn hmac_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

impl fmt::Debug for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_is_valid_for_one_worker_of_one_pool() {
        let (key, other) = (PoolKey::generate(), PoolKey::generate());
        let (worker, other_worker) = (WorkerUid::new(), WorkerUid::new());
        let proof = key.proof_for(worker);
        assert!(key.verify(worker, &proof));
        assert!(
            !key.verify(other_worker, &proof)
                && !other.verify(worker, &proof)
                && !key.verify(worker, b"")
        );
    }
}
