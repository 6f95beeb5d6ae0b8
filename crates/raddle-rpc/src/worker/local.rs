//! `LocalWorker`: a worker process on this machine.

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

use super::{
    CallCounts, HostCommand, ProcessSettings, StopMode, Worker, WorkerError, WorkerProcess,
};
use crate::membership::PoolKey;

/// How long a worker may take to end, beyond its calls.
const STOP_MARGIN: Duration = Duration::from_secs(2);

/// A worker process on this machine: this same program, unless another is set.
#[derive(Debug)]
pub struct LocalWorker {
    settings: ProcessSettings,
    process: Mutex<Option<Arc<WorkerProcess>>>,
    /// The key of the pool that has started the worker.
    pool_key: OnceLock<PoolKey>,
    /// Notified on a restart.
    restarted: Notify,
}

impl LocalWorker {
    /// A worker with these tags.
    pub fn new(tags: &BTreeSet<String>) -> Self {
        ProcessSettings {
            tags: tags.clone(),
            ..ProcessSettings::default()
        }
        .into()
    }

    /// Runs another program than this one.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.settings.program = Some(program.into());
        self
    }

    /// Has a host run the routines, instead of the program.
    pub fn host(mut self, command: HostCommand) -> Self {
        self.settings.host = Some(command);
        self
    }

    /// Sets the name in the process title.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// Sets the address: `unix:/path`, `unix-abstract:name` or `host:port`, where port 0 means any
    /// free one.
    pub fn address_of(mut self, address: impl Into<String>) -> Self {
        self.settings.address = Some(address.into());
        self
    }

    /// Adds a published property.
    pub fn with_extra(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.extra.insert(name.into(), value.into());
        self
    }

    /// Limits the calls in flight. Further calls are refused, and go to another worker.
    pub fn max_in_flight(mut self, calls: usize) -> Self {
        self.settings.max_in_flight = Some(calls);
        self
    }

    /// Limits the plain functions (`fn`) that run at a time; others are queued. Default: the number
    /// of cores. `async fn`s do not count.
    pub fn max_blocking(mut self, functions: usize) -> Self {
        self.settings.max_blocking = Some(functions);
        self
    }

    /// Sets the credentials: the worker serves over TLS, on a loopback port unless an address is
    /// set.
    pub fn credentials(mut self, credentials: WorkerCredentials) -> Self {
        self.settings.credentials = Some(credentials);
        self
    }

    /// Sets who may call, stop and query the worker. Default: every peer that authenticates.
    pub fn allow(mut self, allow: AllowRules) -> Self {
        self.settings.allow = Some(allow);
        self
    }

    /// Accepts connections of any peer from other machines. Without this, and without credentials,
    /// the worker serves on this machine only.
    pub fn insecure(mut self) -> Self {
        self.settings.insecure = true;
        self
    }

    /// Sets the log. Default: `RADDLE_LOG` and `RADDLE_LOG_FORMAT`, or else warnings as text.
    pub fn log(mut self, log: Log) -> Self {
        self.settings.log = Some(log);
        self
    }

    /// How long the worker keeps unused connections of nested calls.
    pub fn proxy_pool_ttl(mut self, ttl: Duration) -> Self {
        self.settings.proxy_pool_ttl = ttl;
        self
    }

    /// The process, once started.
    pub fn process(&self) -> Option<Arc<WorkerProcess>> {
        self.lock().clone()
    }

    /// Starts another process in place of one that has ended, with the same id and address.
    pub async fn restart(&self, timeout: Option<Duration>) -> Result<(), WorkerError> {
        let previous = self.process().ok_or(WorkerError::NotRunning)?;
        previous.kill();
        previous.ended().await;
        let settings = ProcessSettings {
            address: Some(previous.metadata().address.clone()),
            ..self.settings.clone()
        };
        let start = WorkerProcess::start(&settings, timeout);
        let process = match self.pool_key.get().cloned() {
            Some(key) => key.run_start(start).await?,
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

/// A worker with these settings.
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

    async fn stop(&self, mode: StopMode) -> Result<(), WorkerError> {
        let process = self.process().ok_or(WorkerError::NotRunning)?;
        process.stop(mode);
        let ended = process.ended();
        match mode.time_limit(STOP_MARGIN) {
            None => _ = ended.await,
            Some(limit) => {
                if tokio::time::timeout(limit, ended).await.is_err() {
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

    async fn call_counts(&self) -> Option<CallCounts> {
        match self.process() {
            Some(process) => Some(process.call_counts().await),
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
