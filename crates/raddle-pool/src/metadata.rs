//! What is known of a worker before it is spoken to.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use raddle_wire::v1;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::encoding::{self, Encodings};

/// What no other worker has ever been called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Uid(Uuid);

/// What is known of a worker before it is spoken to. It is what is published of it, and what balancers choose by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerMetadata {
    /// Which worker it is.
    pub uid: Uid,
    /// Where it serves: `unix:/path`, `unix-abstract:name` or `host:port`.
    pub address: String,
    /// Its process, on the machine that it runs on.
    pub pid: u32,
    /// Of the program that it is.
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
    #[serde(default, deserialize_with = "encoding::deserialize", skip_serializing_if = "Encodings::is_empty")]
    pub encodings: Encodings,
}

impl Uid {
    /// A new one.
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }
}

impl Default for Uid {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Uid {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl From<WorkerMetadata> for v1::WorkerMetadata {
    fn from(worker: WorkerMetadata) -> Self {
        let WorkerMetadata { uid, address, pid, version, tags, extra, secure, encodings } = worker;
        let (tags, extra) = (tags.into_iter().collect(), extra.into_iter().collect());
        let encodings = encoding::numbers(&encodings);
        Self { uid: uid.to_string(), address, pid, version, tags, extra, secure, encodings }
    }
}

impl TryFrom<v1::WorkerMetadata> for WorkerMetadata {
    type Error = uuid::Error;

    fn try_from(worker: v1::WorkerMetadata) -> Result<Self, Self::Error> {
        let v1::WorkerMetadata { uid, address, pid, version, tags, extra, secure, encodings } = worker;
        let (tags, extra) = (tags.into_iter().collect(), extra.into_iter().collect());
        let encodings = encoding::of_numbers(&encodings);
        Ok(Self { uid: uid.parse()?, address, pid, version, tags, extra, secure, encodings })
    }
}
