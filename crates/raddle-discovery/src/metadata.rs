//! The published metadata of workers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use raddle_wire::v1;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    Address,
    encoding::{self, Encodings},
};

/// A worker's unique id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerUid(Uuid);

/// The published metadata of a worker, which balancers and filters select by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerMetadata {
    /// The worker's id.
    pub uid: WorkerUid,
    /// The address that it serves at: `unix:/path`, `unix-abstract:name` or `host:port`.
    pub address: String,
    /// Its process id, on its own machine.
    #[serde(default)]
    pub pid: u32,
    /// The version of its program.
    #[serde(default)]
    pub version: String,
    /// Tags that callers select by.
    #[serde(default)]
    pub tags: BTreeSet<String>,
    /// Further properties.
    #[serde(default)]
    pub extra: BTreeMap<String, String>,
    /// It serves over TLS.
    #[serde(default)]
    pub secure: bool,
    /// The encodings that it reads. Empty means unknown.
    #[serde(
        default,
        deserialize_with = "encoding::deserialize",
        skip_serializing_if = "Encodings::is_empty"
    )]
    pub encodings: Encodings,
}

/// Limits on metadata, which may come from untrusted publishers.
mod limits {
    /// Bytes of an address.
    pub(super) const ADDRESS: usize = 512;
    /// Bytes of a version.
    pub(super) const VERSION: usize = 128;
    /// Number of tags, and of pairs in `extra`.
    pub(super) const COUNT: usize = 64;
    /// Bytes of a tag, and of a key in `extra`.
    pub(super) const NAME: usize = 128;
    /// Bytes of a value in `extra`.
    pub(super) const VALUE: usize = 1024;
}

/// Why metadata is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MetadataError(String);

impl WorkerMetadata {
    /// The metadata of a worker of which only the address is known.
    pub fn for_address(address: impl Into<String>) -> Self {
        let address = address.into();
        Self {
            uid: WorkerUid::from_address(&address),
            address,
            pid: 0,
            version: String::new(),
            tags: BTreeSet::new(),
            extra: BTreeMap::new(),
            secure: false,
            encodings: Encodings::new(),
        }
    }

    /// Validates the metadata: the address is well-formed, and nothing is overlong or contains
    /// terminal control characters. Everything from a file or network must pass this before it is
    /// reported.
    pub fn validate(&self) -> Result<(), MetadataError> {
        let Self {
            uid: _,
            address,
            pid: _,
            version,
            tags,
            extra,
            secure: _,
            encodings: _,
        } = self;
        check_text("address", address, limits::ADDRESS)?;
        address
            .parse::<Address>()
            .map_err(|error| MetadataError(error.to_string()))?;
        check_text("version", version, limits::VERSION)?;
        for (field, count) in [("tags", tags.len()), ("extra", extra.len())] {
            if count > limits::COUNT {
                return Err(MetadataError(format!(
                    "{field}: {count} are more than {}",
                    limits::COUNT
                )));
            }
        }
        tags.iter()
            .try_for_each(|tag| check_text("tags", tag, limits::NAME))?;
        extra.iter().try_for_each(|(key, value)| {
            check_text("extra", key, limits::NAME)?;
            check_text("extra", value, limits::VALUE)
        })
    }
}

fn check_text(field: &str, text: &str, limit: usize) -> Result<(), MetadataError> {
    if text.len() > limit {
        return Err(MetadataError(format!("{field}: longer than {limit} bytes")));
    }
    if text.chars().any(char::is_control) {
        return Err(MetadataError(format!(
            "{field}: has control characters in it"
        )));
    }
    Ok(())
}

impl WorkerUid {
    /// A new random id.
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// The id of a worker that publishes none: derived from its address, so that it is the same
    /// everywhere and always.
    pub fn from_address(address: &str) -> Self {
        let hash = digest(&SHA256, format!("raddle.v1.Worker at {address}").as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.as_ref()[..16]);
        // A UUID of version 8, which is for custom schemes.
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// The 16 bytes, in the order of the text.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl Default for WorkerUid {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for WorkerUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for WorkerUid {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl From<WorkerMetadata> for v1::WorkerMetadata {
    fn from(worker: WorkerMetadata) -> Self {
        let WorkerMetadata {
            uid,
            address,
            pid,
            version,
            tags,
            extra,
            secure,
            encodings,
        } = worker;
        let (tags, extra) = (tags.into_iter().collect(), extra.into_iter().collect());
        let encodings = encoding::to_numbers(&encodings);
        Self {
            uid: uid.to_string(),
            address,
            pid,
            version,
            tags,
            extra,
            secure,
            encodings,
        }
    }
}

impl TryFrom<v1::WorkerMetadata> for WorkerMetadata {
    type Error = uuid::Error;

    fn try_from(worker: v1::WorkerMetadata) -> Result<Self, Self::Error> {
        let v1::WorkerMetadata {
            uid,
            address,
            pid,
            version,
            tags,
            extra,
            secure,
            encodings,
        } = worker;
        let (tags, extra) = (tags.into_iter().collect(), extra.into_iter().collect());
        let encodings = encoding::from_numbers(&encodings);
        Ok(Self {
            uid: uid.parse()?,
            address,
            pid,
            version,
            tags,
            extra,
            secure,
            encodings,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uid_is_derived_from_the_address() {
        // Fixed for ever: other programs may have stored it.
        assert_eq!(
            WorkerUid::from_address("10.0.0.1:7070").to_string(),
            "b788f5df-15f4-84ef-be71-ee08c0609a43"
        );
        assert_eq!(
            WorkerUid::from_address("h:1"),
            WorkerUid::from_address("h:1")
        );
        assert_ne!(
            WorkerUid::from_address("h:1"),
            WorkerUid::from_address("h:2")
        );
    }

    #[test]
    fn invalid_metadata_is_refused() {
        let good = WorkerMetadata::for_address("h:1");
        assert_eq!(good.validate(), Ok(()));
        let many = |length: usize| (0..65).map(move |n| format!("{n}{}", "x".repeat(length)));
        let with = |change: &dyn Fn(&mut WorkerMetadata)| {
            let mut worker = good.clone();
            change(&mut worker);
            worker.validate().unwrap_err().to_string()
        };
        for (change, reason) in [
            (
                &|worker: &mut WorkerMetadata| worker.address.clear(),
                "invalid address ''",
            ),
            (
                &|worker| worker.address = format!("{}:1", "h".repeat(600)),
                "address: longer than 512 bytes",
            ),
            (
                &|worker| worker.address = "h\u{1b}[2J:1".into(),
                "address: has control characters",
            ),
            (
                &|worker| worker.version = "1\n2".into(),
                "version: has control characters",
            ),
            (
                &|worker| worker.version = "1".repeat(129),
                "version: longer than 128 bytes",
            ),
            (
                &|worker| worker.tags = many(0).collect(),
                "tags: 65 are more than 64",
            ),
            (
                &|worker| worker.tags = many(128).take(1).collect(),
                "tags: longer than 128 bytes",
            ),
            (
                &|worker| worker.extra = many(0).map(|key| (key, String::new())).collect(),
                "extra: 65 are more than 64",
            ),
            (
                &|worker| worker.extra = [("k\0".into(), String::new())].into(),
                "extra: has control characters",
            ),
            (
                &|worker| worker.extra = [("k".into(), "v".repeat(1025))].into(),
                "extra: longer than 1024 bytes",
            ),
        ] as [(&dyn Fn(&mut WorkerMetadata), _); 10]
        {
            let error = with(change);
            assert!(error.starts_with(reason), "{error}, and not {reason}");
        }
    }
}
