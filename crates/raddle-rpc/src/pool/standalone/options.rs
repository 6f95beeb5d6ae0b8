//! Options of standalone workers.

use std::{fmt, sync::Arc, thread, time::Duration};

use raddle_discovery::{Address, Publisher, WorkerUid};

use super::advertise::{self, Advertise};
use crate::{
    PoolError,
    serve::ListenError,
    worker::{LocalWorker, ProcessSettings, Worker},
};

/// Options of standalone workers.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// The name in process titles, and under which this user on this machine finds the workers.
    pub name: String,
    /// Number of workers.
    pub workers: usize,
    /// The address to listen on. Several workers with a port listen on consecutive ones; port 0
    /// means any free port for each. Default: a socket per worker that only this user can connect
    /// to; with credentials, any loopback port.
    pub bind: Option<Address>,
    /// The public address, if it differs.
    pub advertise: Option<Advertise>,
    /// How callers find the workers, in addition to this user on this machine.
    pub publishers: Vec<Arc<dyn Publisher>>,
    /// Settings of the worker processes. Id, address and name are set for each.
    pub process: ProcessSettings,
    /// How long the workers serve. Then they refuse calls, and end when those in flight have ended.
    pub max_uptime: Option<Duration>,
    /// How long each worker may take to start.
    pub start_timeout: Option<Duration>,
}

impl Options {
    /// As many workers as there are cores, for this user on this machine.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            workers: thread::available_parallelism().map_or(1, usize::from),
            bind: None,
            advertise: None,
            publishers: Vec::new(),
            process: ProcessSettings::default(),
            max_uptime: None,
            start_timeout: None,
        }
    }

    /// Checks what can be checked before a start.
    pub(super) fn check(&self) -> Result<(), PoolError> {
        let invalid = |message: String| Err(PoolError::Invalid(message));
        if self.workers == 0 {
            return invalid("the number of workers is 0: give at least 1".into());
        }
        if let Some(bind) = &self.bind {
            if !self.process.insecure
                && self.process.credentials.is_none()
                && advertise::is_exposed(bind)
            {
                return invalid(ListenError::Exposed(bind.to_string()).to_string());
            }
            if let Err(reason) = advertise::listen_address(bind, self.workers - 1) {
                return invalid(reason);
            }
        }
        match &self.advertise {
            Some(advertise) => advertise.check(self.bind.as_ref()).or_else(invalid),
            None => Ok(()),
        }
    }

    /// Makes the worker of a slot.
    pub(super) fn worker(&self, slot: usize) -> Arc<dyn Worker> {
        // `check` has tried the last slot, so the address of each slot is valid.
        let address = self
            .bind
            .as_ref()
            .and_then(|bind| advertise::listen_address(bind, slot).ok())
            .map(|address| address.to_string());
        let (uid, name) = (WorkerUid::new(), self.name.clone());
        Arc::new(LocalWorker::from(ProcessSettings {
            uid,
            name,
            address,
            ..self.process.clone()
        }))
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Options");
        shown
            .field("name", &self.name)
            .field("workers", &self.workers)
            .field("bind", &self.bind);
        shown.finish_non_exhaustive()
    }
}
