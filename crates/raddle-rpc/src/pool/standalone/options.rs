//! What standalone workers are to be.

use std::{fmt, sync::Arc, thread, time::Duration};

use raddle_discovery::{Address, Publisher, WorkerUid};

use super::advertise::{self, Advertise};
use crate::{
    PoolError,
    serve::ListenError,
    worker::{LocalWorker, ProcessSettings, Worker},
};

/// What standalone workers are to be.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// What they are called: in titles, and to this user on this machine, who finds them by it.
    pub name: String,
    /// How many.
    pub workers: usize,
    /// Where they serve. Several at a port serve at ports in a row, from it on; port 0 is any, for each. If nothing is said, each serves at a
    /// socket that only this user reaches; with credentials, at any port of the loopback.
    pub bind: Option<Address>,
    /// Where others find them, if that is not where they serve.
    pub advertise: Option<Advertise>,
    /// How others find them, besides this user on this machine.
    pub publishers: Vec<Arc<dyn Publisher>>,
    /// What the process of each is to be. Which worker it is and where it serves is decided for each, and its title is the name above.
    pub process: ProcessSettings,
    /// How long they serve. Then they take no more calls, and end when those in flight have.
    pub max_uptime: Option<Duration>,
    /// How long each may take to serve.
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

    /// Whether it can be done: what can be told before anything is started.
    pub(super) fn check(&self) -> Result<(), PoolError> {
        let invalid = |message: String| Err(PoolError::Invalid(message));
        if self.workers == 0 {
            return invalid("no workers serve nobody".into());
        }
        if let Some(bind) = &self.bind {
            if !self.process.insecure
                && self.process.credentials.is_none()
                && advertise::is_exposed(bind)
            {
                return invalid(ListenError::Exposed(bind.to_string()).to_string());
            }
            if let Err(reason) = advertise::at(bind, self.workers - 1) {
                return invalid(reason);
            }
        }
        match &self.advertise {
            Some(advertise) => advertise.check(self.bind.as_ref()).or_else(invalid),
            None => Ok(()),
        }
    }

    /// The worker of a place.
    pub(super) fn worker(&self, place: usize) -> Arc<dyn Worker> {
        // What it says of the last holds for all before it.
        let address = self
            .bind
            .as_ref()
            .and_then(|bind| advertise::at(bind, place).ok())
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
