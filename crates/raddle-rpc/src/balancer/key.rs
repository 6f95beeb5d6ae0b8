//! Affinity keys and rendezvous hashing.

use std::fmt::Display;

use raddle_discovery::WorkerUid;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Hashes a key: XXH3 (64 bits) of its text in UTF-8. Part of the protocol: equal in every build
/// and language.
pub(crate) fn hash_key(key: &impl Display) -> u64 {
    xxh3_64(key.to_string().as_bytes())
}

/// Rendezvous weight of a worker for a key: XXH3 of the 16 bytes of the worker's uid, seeded with
/// the key's hash. The highest wins.
pub(super) fn weigh(key: u64, worker: WorkerUid) -> u64 {
    xxh3_64_with_seed(worker.as_bytes(), key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Callers of other versions and languages must compute the same numbers.
    #[test]
    fn hashes_match_the_specification() {
        for (key, number) in [
            ("", 0x2d06_8005_38d3_94c2),
            ("acme", 0x44ad_9865_5d88_58e1),
            ("42", 0x1217_cb28_c0ef_2191),
        ] {
            assert_eq!(hash_key(&key), number, "{key}");
        }
        assert_eq!(hash_key(&42), hash_key(&"42"));
        let worker: WorkerUid = "0190b5a0-0000-7000-8000-000000000001".parse().unwrap();
        assert_eq!(weigh(hash_key(&"acme"), worker), 0x3e74_1ed4_a133_777a);
    }
}
