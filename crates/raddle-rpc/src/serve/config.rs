//! What a worker's process is told when it is started, and what it says then.

use raddle_discovery::WorkerMetadata;
use raddle_process::title;
use raddle_tls::CredentialSource;
use serde::{Deserialize, Serialize};

use crate::{
    membership::PoolKey,
    worker::{CallCounts, ProcessSettings},
};

/// The first argument of a program that is to be a worker.
pub(crate) const ARGUMENT: &str = "raddle-pool-worker";

/// What a worker is to be. One line on its standard input, which then stays open for as long as somebody wants it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkerSettings {
    /// What its title begins with.
    pub(crate) tid: raddle_model::Tid,
    /// Its address is given. It has no credentials: they are made from this.
    pub(crate) process: ProcessSettings,
    pub(crate) credentials: Option<CredentialSource>,
    /// That of the pool that starts it, if it is one.
    pub(crate) pool_key: Option<PoolKey>,
}

/// What asks a worker what it has done. A byte, after the line that says what it is to be.
pub(crate) const ASKED: u8 = b'?';

/// What stops a worker: this byte, and then the seconds that calls in flight may take, as in `StopRequest`.
pub(crate) const STOP: u8 = b'!';
/// How those are written: a number of eight bytes, the first of which counts most.
pub(crate) type EncodedSeconds = [u8; 8];

/// What it says when it serves, or why it cannot; later, and at its end, what it has done. One line each, the other way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StartReport {
    /// It serves, as this.
    Serving(Box<WorkerMetadata>),
    /// It cannot.
    Failed(String),
    /// It has done this.
    Done(CallCounts),
}

impl WorkerSettings {
    /// Shows in the process's title what the worker is doing.
    pub(crate) fn show(&self, status: &str) {
        title::set(&raddle_model::title::format(
            self.tid,
            &self.process.name,
            status,
        ));
    }
}
