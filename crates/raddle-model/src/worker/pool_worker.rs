//! A worker that takes calls, as the registry reports it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Declaration of a worker that takes calls, for clients that discover workers in a registry. It is
/// only a hint: any process that may write to the registry can declare anything, so a caller must
/// verify which worker answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolWorkerInfo {
    /// Discovery namespace: only clients that look for this namespace find the worker.
    pub namespace: String,
    /// UUID of the worker.
    pub uid: String,
    /// Address on which it serves.
    pub address: String,
    /// Version of its program.
    #[serde(default)]
    pub version: String,
    /// Tags, for selection.
    #[serde(default)]
    pub tags: BTreeSet<String>,
    /// Arbitrary additional data.
    #[serde(default)]
    pub extra: BTreeMap<String, String>,
    /// Whether it serves over TLS.
    #[serde(default)]
    pub secure: bool,
    /// Names of the encodings that it reads. Empty means unknown.
    #[serde(default)]
    pub encodings: BTreeSet<String>,
    /// Names of its routines.
    #[serde(default)]
    pub routines: BTreeSet<String>,
}
