//! The pools of the program.

use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use raddle_discovery::{Discovery, DnsDiscovery, FileDiscovery, LocalDiscovery};
use raddle_rpc::{
    PoolBuilder, WorkerPool,
    balancer::{LeastLoaded, PowerOfTwo, RoundRobin, Sticky},
    worker::{HostCommand, LocalWorker, StopMode},
};
use raddle_tls::{CredentialSource, PemSource, WorkerCredentials};
use raddle_worker::discovery::BrokerDiscovery;
use serde::Deserialize;
use serde_json::json;

use crate::{Failure, brokers::Brokers, connection::Success};

/// The options of a pool.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PoolOptions {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    size: Option<usize>,
    #[serde(default)]
    tags: Vec<String>,
    /// The host that each worker starts.
    #[serde(default)]
    host: Option<HostCommand>,
    #[serde(default)]
    discovery: Option<DiscoveryOptions>,
    #[serde(default)]
    balancer: Option<String>,
    #[serde(default)]
    quorum: Option<usize>,
    #[serde(default)]
    lazy: bool,
    #[serde(default)]
    limit: Option<usize>,
    #[serde(default)]
    credentials: Option<CredentialFiles>,
    #[serde(default)]
    start_timeout_ms: Option<u64>,
}

/// How workers are found that the pool has not started.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DiscoveryOptions {
    /// The pool of this name, of this user on this machine.
    Local(String),
    /// By mDNS, under this name.
    Lan(String),
    /// A file or directory that lists workers.
    File(PathBuf),
    /// The addresses of a DNS name.
    Dns(String),
    /// The registry of a broker, under this name.
    Broker { broker: usize, name: String },
}

/// Credentials, in files.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CredentialFiles {
    ca: PathBuf,
    #[serde(default)]
    certificate: Option<PathBuf>,
    #[serde(default)]
    key: Option<PathBuf>,
    #[serde(default = "yes")]
    mutual: bool,
}

fn yes() -> bool {
    true
}

/// The open pools, under the numbers that requests name. They end with the companion.
#[derive(Default)]
pub(crate) struct Pools {
    open: Mutex<HashMap<u64, Arc<WorkerPool>>>,
    next: AtomicU64,
}

impl Pools {
    /// Starts a pool. Returns its number.
    pub(crate) async fn open(
        &self,
        options: PoolOptions,
        brokers: &Brokers,
    ) -> Result<Success, Failure> {
        let pool = build(options, brokers)?
            .start()
            .await
            .map_err(|error| Failure::new("no_workers", &error.to_string()))?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = pool.name().to_owned();
        self.lock().insert(number, Arc::new(pool));
        Ok((json!({ "pool": number, "name": name }), None))
    }

    /// Stops a pool. Returns when its workers are gone.
    pub(crate) async fn close(
        &self,
        number: u64,
        timeout_ms: Option<u64>,
    ) -> Result<Success, Failure> {
        let removed = self.lock().remove(&number);
        let mode = match timeout_ms {
            None | Some(0) => StopMode::Cancel,
            Some(limit) => StopMode::DrainFor(Duration::from_millis(limit)),
        };
        // Calls that are about to start may hold it for a moment; dropping the last one stops it.
        if let Some(pool) = removed.and_then(|pool| Arc::try_unwrap(pool).ok()) {
            pool.stop_with(mode).await;
        }
        Ok((json!(null), None))
    }

    /// The workers that calls of a pool can go to.
    pub(crate) fn workers(&self, number: u64) -> Result<Success, Failure> {
        let workers = self.get(number)?.workers();
        let list = serde_json::to_value(&workers).map_err(Failure::invalid)?;
        Ok((list, None))
    }

    /// The pool with this number.
    pub(crate) fn get(&self, number: u64) -> Result<Arc<WorkerPool>, Failure> {
        let found = self.lock().get(&number).map(Arc::clone);
        found.ok_or_else(|| Failure::new("no_workers", "the pool was closed"))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<WorkerPool>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn build(options: PoolOptions, brokers: &Brokers) -> Result<PoolBuilder, Failure> {
    let mut builder = WorkerPool::builder().tags(options.tags);
    if let Some(name) = options.name {
        builder = builder.name(name);
    }
    if let Some(size) = options.size {
        builder = builder.size(size);
    }
    if let Some(quorum) = options.quorum {
        builder = builder.quorum(quorum);
    }
    if let Some(limit) = options.limit {
        builder = builder.limit(limit);
    }
    if let Some(limit) = options.start_timeout_ms {
        builder = builder.start_timeout(Duration::from_millis(limit));
    }
    if options.lazy {
        builder = builder.lazy();
    }
    let credentials = options.credentials.as_ref().map(load).transpose()?;
    if let Some(discovery) = options.discovery {
        builder = with_discovery(builder, discovery, credentials.is_some(), brokers)?;
    }
    if let Some(credentials) = &credentials {
        builder = builder.credentials(credentials.clone());
    }
    builder = match options
        .balancer
        .as_deref()
        .map(|name| name.replace('-', "_"))
    {
        None => builder,
        Some(name) => match &*name {
            "round_robin" => builder.balancer(RoundRobin),
            "least_loaded" => builder.balancer(LeastLoaded),
            "power_of_two" => builder.balancer(PowerOfTwo),
            "sticky" => builder.balancer(Sticky),
            _ => {
                return Err(Failure::invalid(format!(
                    "there is no balancer '{name}': use round-robin, least-loaded, power-of-two or sticky"
                )));
            }
        },
    };
    if let Some(host) = options.host {
        builder = builder.worker(move |tags: &BTreeSet<String>| {
            let worker = LocalWorker::new(tags).host(host.clone());
            match &credentials {
                Some(credentials) => worker.credentials(credentials.clone()),
                None => worker,
            }
        });
    }
    Ok(builder)
}

fn with_discovery(
    builder: PoolBuilder,
    discovery: DiscoveryOptions,
    is_secure: bool,
    brokers: &Brokers,
) -> Result<PoolBuilder, Failure> {
    fn checked<D: Discovery, E: std::fmt::Display>(made: Result<D, E>) -> Result<D, Failure> {
        made.map_err(Failure::invalid)
    }
    Ok(match discovery {
        DiscoveryOptions::Local(name) => builder.discovery(checked(LocalDiscovery::new(&name))?),
        DiscoveryOptions::File(path) => builder.discovery(checked(FileDiscovery::new(path))?),
        DiscoveryOptions::Dns(name) => {
            let dns = checked(DnsDiscovery::new(&name))?;
            builder.discovery(if is_secure { dns.secure() } else { dns })
        }
        DiscoveryOptions::Broker { broker, name } => {
            let broker = brokers.get(broker)?;
            builder.discovery(checked(BrokerDiscovery::new(&name, broker))?)
        }
        #[cfg(feature = "lan")]
        DiscoveryOptions::Lan(name) => {
            builder.discovery(checked(raddle_discovery::LanDiscovery::new(&name))?)
        }
        #[cfg(not(feature = "lan"))]
        DiscoveryOptions::Lan(_) => {
            return Err(Failure::invalid("this program was built without 'lan'"));
        }
    })
}

fn load(files: &CredentialFiles) -> Result<WorkerCredentials, Failure> {
    let mut source = CredentialSource::new(PemSource::file(&files.ca)).mutual(files.mutual);
    if let (Some(certificate), Some(key)) = (&files.certificate, &files.key) {
        source = source.identity(PemSource::file(certificate), PemSource::file(key));
    }
    source.load().map_err(Failure::invalid)
}
