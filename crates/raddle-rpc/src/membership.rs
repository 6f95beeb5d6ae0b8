//! How a pool and the workers that it has started know each other, whatever the rules of the workers are.
//!
//! The pool makes a key, and gives it to each of its workers over the socket by which it holds it. A caller proves with an HMAC that it has the key. The HMAC is
//! of the worker's uid, so that a worker that is shown one cannot use it to call another.

use std::fmt;

use bytes::Bytes;
use raddle_discovery::WorkerUid;
use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};
use serde::{Deserialize, Serialize};

/// What only a pool and its workers know.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct PoolKey([u8; 32]);

tokio::task_local! {
    /// That of the pool that starts a worker. A `WorkerFactory` may wrap workers, so it is no argument of theirs.
    static STARTS: PoolKey;
}

impl PoolKey {
    /// A new one.
    pub(crate) fn generate() -> Self {
        let mut key = [0; 32];
        SystemRandom::new()
            .fill(&mut key)
            .expect("the kernel has random numbers");
        Self(key)
    }

    /// That of the pool that starts a worker just now, if it is one.
    pub(crate) fn of_starting_pool() -> Option<Self> {
        STARTS.try_with(Clone::clone).ok()
    }

    /// Runs the start of a worker, which is given the key.
    pub(crate) async fn starting<F: Future>(self, start: F) -> F::Output {
        STARTS.scope(self, start).await
    }

    /// What proves to a worker that a call comes from its pool.
    pub(crate) fn proof_for(&self, worker: WorkerUid) -> Bytes {
        Bytes::copy_from_slice(hmac::sign(&self.hmac_key(), worker.as_bytes()).as_ref())
    }

    /// Whether this proves to a worker that a call comes from its pool.
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
    fn a_proof_is_for_one_worker_of_one_pool() {
        let (key, other) = (PoolKey::generate(), PoolKey::generate());
        let (worker, neighbour) = (WorkerUid::new(), WorkerUid::new());
        let proof = key.proof_for(worker);
        assert!(key.verify(worker, &proof));
        assert!(
            !key.verify(neighbour, &proof)
                && !other.verify(worker, &proof)
                && !key.verify(worker, b"")
        );
    }
}
