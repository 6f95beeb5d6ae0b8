//! What a worker's process is told when it is started, and what it says then.

use std::{collections::BTreeMap, collections::BTreeSet, time::Duration};

use raddle_process::{log::Log, title};
use serde::{Deserialize, Serialize};

use crate::{
    Uid,
    credentials::{Allow, Recipe},
    worker::Tally,
};

/// The first argument of a program that is to be a worker.
pub(crate) const ARGUMENT: &str = "raddle-pool-worker";

/// What a worker is to be. One line on its standard input, which then stays open for as long as somebody wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) uid: Uid,
    /// What its title begins with.
    pub(crate) tid: raddle_core::Tid,
    pub(crate) name: String,
    /// Where it is to serve; port 0 is any.
    pub(crate) address: String,
    pub(crate) tags: BTreeSet<String>,
    pub(crate) extra: BTreeMap<String, String>,
    /// Calls that it takes at a time, if that is bounded.
    pub(crate) max_in_flight: Option<usize>,
    /// Plain functions that it runs at a time; as many as there are cores, if nothing is said.
    pub(crate) max_blocking: Option<usize>,
    /// Who it is, and whom it trusts, if it is not to be found by whoever comes.
    pub(crate) credentials: Option<Recipe>,
    /// Who may do what, if not everybody may do everything.
    pub(crate) allow: Option<Allow>,
    /// It may be reached from other machines by anybody.
    pub(crate) insecure: bool,
    /// How long it keeps what it needs to call others, when it does not.
    pub(crate) proxy_pool_ttl: Duration,
    /// What it logs, if that is not for its environment to say.
    pub(crate) log: Option<Log>,
}

/// What asks a worker what it has done. A byte, after the line that says what it is to be.
pub(crate) const ASKED: u8 = b'?';

/// What stops a worker: this byte, and then the seconds that calls in flight may take, as in `StopRequest`.
pub(crate) const STOP: u8 = b'!';
/// How those are written: a number of eight bytes, the first of which counts most.
pub(crate) type Seconds = [u8; 8];

/// What it says when it serves, or why it cannot; later, and at its end, what it has done. One line each, the other way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// It serves there.
    Serving(String),
    /// It cannot.
    Failed(String),
    /// It has done this.
    Done(Tally),
}

impl Settings {
    /// Shows in the process's title what the worker is doing.
    pub(crate) fn show(&self, status: &str) {
        title::set(&raddle_core::title::format(self.tid, &self.name, status));
    }
}
