//! The protocol between a pool and its worker process over the parent link: settings, requests and
//! reports.

use raddle_discovery::WorkerMetadata;
use raddle_process::title;
use raddle_tls::CredentialSource;
use serde::{Deserialize, Serialize};

use crate::{
    membership::PoolKey,
    worker::{CallCounts, ProcessSettings},
};

/// The first argument of a program that becomes a worker.
pub(crate) const ARGUMENT: &str = "raddle-pool-worker";

/// Settings of a worker: one line on its standard input, a socket that then stays open as long as
/// the pool wants the worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkerSettings {
    /// The id in the process title.
    pub(crate) tid: raddle_model::Tid,
    /// With its address, without its credentials: they are loaded from `credentials`.
    pub(crate) process: ProcessSettings,
    pub(crate) credentials: Option<CredentialSource>,
    /// The key of the pool that starts the worker, if a pool does.
    pub(crate) pool_key: Option<PoolKey>,
}

/// Requests a worker's counts: a byte after the settings.
pub(crate) const QUERY_COUNTS: u8 = b'?';

/// Stops a worker: this byte, and then the timeout in seconds, as in `StopRequest`.
pub(crate) const STOP: u8 = b'!';
/// The timeout: an `f64`, big-endian.
pub(crate) type EncodedSeconds = [u8; 8];

/// Reports of a worker, one JSON line each: first whether it serves; later, and at its end, its
/// counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StartReport {
    /// The worker serves.
    Serving(Box<WorkerMetadata>),
    /// The worker cannot serve.
    Failed(String),
    /// The worker's counts.
    Counts(CallCounts),
}

impl WorkerSettings {
    /// Shows the worker's status in the process title.
    pub(crate) fn set_title(&self, status: &str) {
        title::set(&raddle_model::title::format(
            self.tid,
            &self.process.name,
            status,
        ));
    }
}
