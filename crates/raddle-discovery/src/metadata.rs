//! What is known of a worker before it is spoken to.

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

/// What no other worker has ever been called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerUid(Uuid);

/// What is known of a worker before it is spoken to. It is what is published of it, and what balancers choose by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerMetadata {
    /// Which worker it is.
    pub uid: WorkerUid,
    /// Where it serves: `unix:/path`, `unix-abstract:name` or `host:port`.
    pub address: String,
    /// Its process, on the machine that it runs on.
    #[serde(default)]
    pub pid: u32,
    /// Of the program that it is.
    #[serde(default)]
    pub version: String,
    /// What it can do, for those who choose.
    #[serde(default)]
    pub tags: BTreeSet<String>,
    /// Anything else.
    #[serde(default)]
    pub extra: BTreeMap<String, String>,
    /// It serves over TLS.
    #[serde(default)]
    pub secure: bool,
    /// The encodings that it reads. If there are none, nothing was said of it.
    #[serde(
        default,
        deserialize_with = "encoding::deserialize",
        skip_serializing_if = "Encodings::is_empty"
    )]
    pub encodings: Encodings,
}

/// So much may be said of a worker by whoever publishes it. What is more is no description of one.
mod bounds {
    /// Bytes of an address.
    pub(super) const ADDRESS: usize = 512;
    /// Bytes of a version.
    pub(super) const VERSION: usize = 128;
    /// Tags, and pairs in `extra`.
    pub(super) const COUNT: usize = 64;
    /// Bytes of a tag, and of a key in `extra`.
    pub(super) const NAME: usize = 128;
    /// Bytes of a value in `extra`.
    pub(super) const VALUE: usize = 1024;
}

/// Why what is said of a worker is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MetadataError(String);

impl WorkerMetadata {
    /// What is known of a worker of which only the address is known.
    pub fn at(address: impl Into<String>) -> Self {
        let address = address.into();
        Self {
            uid: WorkerUid::of_address(&address),
            address,
            pid: 0,
            version: String::new(),
            tags: BTreeSet::new(),
            extra: BTreeMap::new(),
            secure: false,
            encodings: Encodings::new(),
        }
    }

    /// Whether this can be a worker: it has an address, and nothing is longer than it needs to be, or could do something to a terminal that shows it.
    /// What comes from a file or over a network is to pass this before anybody is told of it.
    pub fn check(&self) -> Result<(), MetadataError> {
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
        text("address", address, bounds::ADDRESS)?;
        address
            .parse::<Address>()
            .map_err(|error| MetadataError(error.to_string()))?;
        text("version", version, bounds::VERSION)?;
        for (what, count) in [("tags", tags.len()), ("extra", extra.len())] {
            if count > bounds::COUNT {
                return Err(MetadataError(format!(
                    "{what}: {count} are more than {}",
                    bounds::COUNT
                )));
            }
        }
        tags.iter()
            .try_for_each(|tag| text("tags", tag, bounds::NAME))?;
        extra.iter().try_for_each(|(key, value)| {
            text("extra", key, bounds::NAME)?;
            text("extra", value, bounds::VALUE)
        })
    }
}

fn text(what: &str, text: &str, longest: usize) -> Result<(), MetadataError> {
    if text.len() > longest {
        return Err(MetadataError(format!(
            "{what}: longer than {longest} bytes"
        )));
    }
    if text.chars().any(char::is_control) {
        return Err(MetadataError(format!(
            "{what}: has control characters in it"
        )));
    }
    Ok(())
}

impl WorkerUid {
    /// A new one.
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// That of whoever serves at an address, where nobody says another: the same wherever and whenever it is asked for.
    pub fn of_address(address: &str) -> Self {
        let hash = digest(&SHA256, format!("raddle.v1.Worker at {address}").as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.as_ref()[..16]);
        // Of version 8, which is left to whoever makes one.
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// Its 16 bytes, in the order of its text.
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
        let encodings = encoding::numbers(&encodings);
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
        let encodings = encoding::of_numbers(&encodings);
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
    fn a_uid_follows_from_an_address() {
        // As it is for ever: others may have noted it down.
        assert_eq!(
            WorkerUid::of_address("10.0.0.1:7070").to_string(),
            "b788f5df-15f4-84ef-be71-ee08c0609a43"
        );
        assert_eq!(WorkerUid::of_address("h:1"), WorkerUid::of_address("h:1"));
        assert_ne!(WorkerUid::of_address("h:1"), WorkerUid::of_address("h:2"));
    }

    #[test]
    fn what_is_no_worker_is_said_to_be_none() {
        let good = WorkerMetadata::at("h:1");
        assert_eq!(good.check(), Ok(()));
        let many = |length: usize| (0..65).map(move |n| format!("{n}{}", "x".repeat(length)));
        let with = |change: &dyn Fn(&mut WorkerMetadata)| {
            let mut worker = good.clone();
            change(&mut worker);
            worker.check().unwrap_err().to_string()
        };
        for (change, reason) in [
            (
                &|worker: &mut WorkerMetadata| worker.address.clear(),
                "'' is no address",
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
            let said = with(change);
            assert!(said.starts_with(reason), "{said}, and not {reason}");
        }
    }
}
