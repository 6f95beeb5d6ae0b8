//! A worker that is a process on this machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use raddle_discovery::{WorkerMetadata, WorkerUid};
use raddle_process::log::Log;
use raddle_tls::{AllowRules, WorkerCredentials};
use tokio::sync::Notify;

use super::{CallCounts, ProcessSettings, StopMode, Worker, WorkerError, WorkerProcess};
use crate::membership::PoolKey;

/// How long a worker may take to end, beyond what its calls may.
const BEYOND: Duration = Duration::from_secs(2);

/// A worker that is a process on this machine: this same program, unless it is said which.
#[derive(Debug)]
pub struct LocalWorker {
    settings: ProcessSettings,
    process: Mutex<Option<Arc<WorkerProcess>>>,
    /// That of the pool that has started it.
    pool_key: OnceLock<PoolKey>,
    /// Tells that it is another process now.
    restarted: Notify,
}

impl LocalWorker {
    /// One with these tags.
    pub fn new(tags: &BTreeSet<String>) -> Self {
        ProcessSettings {
            tags: tags.clone(),
            ..ProcessSettings::default()
        }
        .into()
    }

    /// Another program than this one.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.settings.program = Some(program.into());
        self
    }

    /// What its title shows.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// Where it serves: `unix:/path`, `unix-abstract:name` or `host:port`, where port 0 is any.
    pub fn address_of(mut self, address: impl Into<String>) -> Self {
        self.settings.address = Some(address.into());
        self
    }

    /// Anything that is to be known of it.
    pub fn with_extra(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.extra.insert(name.into(), value.into());
        self
    }

    /// How many calls it takes at a time. It answers others that it does not want more, and they are offered to another.
    pub fn max_in_flight(mut self, calls: usize) -> Self {
        self.settings.max_in_flight = Some(calls);
        self
    }

    /// How many plain functions (`fn`) it runs at a time: others wait for a thread. As many as there are cores, if nothing is said. `async fn`s do not count.
    pub fn max_blocking(mut self, functions: usize) -> Self {
        self.settings.max_blocking = Some(functions);
        self
    }

    /// Who it is, and whom it trusts: it then serves by TLS, at a port of this machine unless another address is said.
    pub fn credentials(mut self, credentials: WorkerCredentials) -> Self {
        self.settings.credentials = Some(credentials);
        self
    }

    /// Who may call what, stop it, and ask what it is. If nothing is said, everybody who is let in.
    pub fn allow(mut self, allow: AllowRules) -> Self {
        self.settings.allow = Some(allow);
        self
    }

    /// Lets it be reached from other machines by anybody. Without this, and without credentials, it serves on this machine only.
    pub fn insecure(mut self) -> Self {
        self.settings.insecure = true;
        self
    }

    /// What it logs, and how. If nothing is said, what the environment asks for: `RADDLE_LOG` and `RADDLE_LOG_FORMAT`, and warnings for people without
    /// either.
    pub fn log(mut self, log: Log) -> Self {
        self.settings.log = Some(log);
        self
    }

    /// How long it keeps what it needs to call others, when it does not. Calls that come more often than that find it ready.
    pub fn proxy_pool_ttl(mut self, ttl: Duration) -> Self {
        self.settings.proxy_pool_ttl = ttl;
        self
    }

    /// Its process, if it has been started.
    pub fn process(&self) -> Option<Arc<WorkerProcess>> {
        self.lock().clone()
    }

    /// Starts another process in the place of one that has ended, as the same worker at the same address.
    pub async fn restart(&self, timeout: Option<Duration>) -> Result<(), WorkerError> {
        let before = self.process().ok_or(WorkerError::NotRunning)?;
        before.kill();
        before.ended().await;
        let settings = ProcessSettings {
            address: Some(before.metadata().address.clone()),
            ..self.settings.clone()
        };
        let start = WorkerProcess::start(&settings, timeout);
        let process = match self.pool_key.get().cloned() {
            Some(key) => key.starting(start).await?,
            None => start.await?,
        };
        *self.lock() = Some(Arc::new(process));
        self.restarted.notify_one();
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<WorkerProcess>>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One whose process is to be so.
impl From<ProcessSettings> for LocalWorker {
    fn from(settings: ProcessSettings) -> Self {
        Self {
            settings,
            process: Mutex::default(),
            pool_key: OnceLock::new(),
            restarted: Notify::new(),
        }
    }
}

#[async_trait]
impl Worker for LocalWorker {
    fn uid(&self) -> WorkerUid {
        self.settings.uid
    }

    fn metadata(&self) -> Option<WorkerMetadata> {
        self.lock()
            .as_ref()
            .map(|process| process.metadata().clone())
    }

    fn tags(&self) -> &BTreeSet<String> {
        &self.settings.tags
    }

    fn extra(&self) -> &BTreeMap<String, String> {
        &self.settings.extra
    }

    async fn start(&self, timeout: Option<Duration>) -> Result<(), WorkerError> {
        if self.process().is_some() {
            return Err(WorkerError::Started);
        }
        if let Some(key) = PoolKey::of_starting_pool() {
            let _ = self.pool_key.set(key);
        }
        let process = WorkerProcess::start(&self.settings, timeout).await?;
        *self.lock() = Some(Arc::new(process));
        Ok(())
    }

    async fn stop(&self, patience: StopMode) -> Result<(), WorkerError> {
        let process = self.process().ok_or(WorkerError::NotRunning)?;
        process.stop(patience);
        let gone = process.ended();
        match patience.bound(BEYOND) {
            None => _ = gone.await,
            Some(bound) => {
                if tokio::time::timeout(bound, gone).await.is_err() {
                    process.kill();
                    process.ended().await;
                }
            }
        }
        Ok(())
    }

    async fn changed(&self) -> WorkerMetadata {
        self.restarted.notified().await;
        match self.metadata() {
            Some(metadata) => metadata,
            None => std::future::pending().await,
        }
    }

    async fn tally(&self) -> Option<CallCounts> {
        match self.process() {
            Some(process) => Some(process.tally().await),
            None => None,
        }
    }

    async fn ended(&self) -> String {
        match self.process() {
            Some(process) => process.ended().await,
            None => std::future::pending().await,
        }
    }
}
