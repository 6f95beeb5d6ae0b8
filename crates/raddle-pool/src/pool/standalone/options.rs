//! What standalone workers are to be.

use std::{collections::BTreeSet, fmt, path::PathBuf, sync::Arc, thread, time::Duration};

use raddle_process::log::Log;

use super::place::{self, Advertise};
use crate::{
    PoolError,
    connection::Address,
    credentials::{Allow, WorkerCredentials},
    discovery::Publisher,
    serve::ListenError,
    worker::{LocalWorker, Worker},
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
    /// What they can do, for those who choose.
    pub tags: BTreeSet<String>,
    /// How others find them, besides this user on this machine.
    pub publishers: Vec<Arc<dyn Publisher>>,
    /// Who they are, and whom they trust.
    pub credentials: Option<WorkerCredentials>,
    /// Who may do what. If nothing is said, everybody who is let in.
    pub allow: Option<Allow>,
    /// They may be reached from other machines by anybody.
    pub insecure: bool,
    /// Calls that each takes at a time, if that is bounded.
    pub max_in_flight: Option<usize>,
    /// Plain functions (`fn`) that each runs at a time. As many as there are cores, if nothing is said.
    pub max_blocking: Option<usize>,
    /// How long they serve. Then they take no more calls, and end when those in flight have.
    pub max_uptime: Option<Duration>,
    /// How long each may take to serve.
    pub start_timeout: Option<Duration>,
    /// Another program than this one.
    pub program: Option<PathBuf>,
    /// What each logs, and how. If nothing is said, what the environment asks for.
    pub log: Option<Log>,
}

impl Options {
    /// As many workers as there are cores, for this user on this machine.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            workers: thread::available_parallelism().map_or(1, usize::from),
            bind: None,
            advertise: None,
            tags: BTreeSet::new(),
            publishers: Vec::new(),
            credentials: None,
            allow: None,
            insecure: false,
            max_in_flight: None,
            max_blocking: None,
            max_uptime: None,
            start_timeout: None,
            program: None,
            log: None,
        }
    }

    /// Whether it can be done: what can be told before anything is started.
    pub(super) fn check(&self) -> Result<(), PoolError> {
        let invalid = |message: String| Err(PoolError::Invalid(message));
        if self.workers == 0 {
            return invalid("no workers serve nobody".into());
        }
        if let Some(bind) = &self.bind {
            if !self.insecure && self.credentials.is_none() && place::is_exposed(bind) {
                return invalid(ListenError::Exposed(bind.to_string()).to_string());
            }
            if let Err(reason) = place::at(bind, self.workers - 1) {
                return invalid(reason);
            }
        }
        match &self.advertise {
            Some(advertise) => advertise.check(self.bind.as_ref()).or_else(invalid),
            None => Ok(()),
        }
    }

    /// The worker of a place.
    pub(super) fn worker(&self, place: usize, tags: &BTreeSet<String>) -> Arc<dyn Worker> {
        let mut worker = LocalWorker::new(tags).name(&self.name);
        // What it says of the last holds for all before it.
        if let Some(Ok(address)) = self.bind.as_ref().map(|bind| place::at(bind, place)) {
            worker = worker.address_of(address.to_string());
        }
        if let Some(credentials) = &self.credentials {
            worker = worker.credentials(credentials.clone());
        }
        if let Some(allow) = &self.allow {
            worker = worker.allow(allow.clone());
        }
        if self.insecure {
            worker = worker.insecure();
        }
        if let Some(calls) = self.max_in_flight {
            worker = worker.max_in_flight(calls);
        }
        if let Some(functions) = self.max_blocking {
            worker = worker.max_blocking(functions);
        }
        if let Some(program) = &self.program {
            worker = worker.program(program);
        }
        if let Some(log) = &self.log {
            worker = worker.log(log.clone());
        }
        Arc::new(worker)
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Options");
        shown.field("name", &self.name).field("workers", &self.workers).field("bind", &self.bind);
        shown.finish_non_exhaustive()
    }
}
