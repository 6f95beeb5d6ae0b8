//! A worker that takes calls, as a registry shows it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// What a worker that takes calls says of itself, for those who look for workers in a registry. It is a hint: whoever may write there may say
/// anything, and whoever calls finds out for himself who answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callee {
    /// What it is found by: only those hear of it who look for the same.
    pub namespace: String,
    /// Which worker it is, a UUID.
    pub uid: String,
    /// Where it serves.
    pub address: String,
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
    /// The names of the encodings that it reads. If there are none, nothing was said of it.
    #[serde(default)]
    pub encodings: BTreeSet<String>,
    /// The names of the functions that it runs.
    #[serde(default)]
    pub routines: BTreeSet<String>,
}
