//! Keys that say which calls belong together.

use std::hash::{DefaultHasher, Hash, Hasher};

/// A number for a key: the same in all processes of one build of a program, which may each have to find the same worker.
pub(crate) fn key_of(key: &impl Hash) -> u64 {
    // Made like this, it has no seed.
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_key_has_the_same_number_at_any_time() {
        assert_eq!(key_of(&"acme"), key_of(&String::from("acme")));
        assert_ne!(key_of(&"acme"), key_of(&"emca"));
    }
}
