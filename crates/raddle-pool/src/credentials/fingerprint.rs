//! What credentials are told apart by. Made from what everybody may see: certificates, names and paths, never from a key.

use std::fmt;

use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};

/// What credentials are told apart by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; SHA256_OUTPUT_LEN]);

/// Makes one out of several things.
pub(super) struct Digest(Context);

impl Digest {
    /// For this purpose: the same things come to something else for another.
    pub(super) fn new(purpose: &str) -> Self {
        let mut digest = Self(Context::new(&SHA256));
        digest.add(purpose.as_bytes());
        digest
    }

    /// With its length, so that nothing can be moved from one thing to the next.
    pub(super) fn add(&mut self, thing: &[u8]) {
        self.0.update(&(thing.len() as u64).to_be_bytes());
        self.0.update(thing);
    }

    pub(super) fn finish(self) -> Fingerprint {
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        bytes.copy_from_slice(self.0.finish().as_ref());
        Fingerprint(bytes)
    }
}

impl Fingerprint {
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// As much of it as people compare.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}
