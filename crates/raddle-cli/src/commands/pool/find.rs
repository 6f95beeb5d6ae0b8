//! The pools and workers that there are, and those that somebody means.

use std::time::Duration;

use raddle_pool::{
    Uid, WorkerMetadata,
    connection::Address,
    discovery::{Discovery, Event, LocalDiscovery},
};
use tokio::time::timeout;

use super::ways;
use crate::{
    args::{FindArgs, Finding, Global},
    error::{Failure, Outcome},
};

/// What workers are called that nobody has given a name.
const DEFAULT: &str = "default";

/// Workers that were found together, as they were when they were looked for.
pub(super) struct Pool {
    pub(super) name: String,
    pub(super) workers: Vec<WorkerMetadata>,
    /// What else knows of them, where they are on this machine.
    pub(super) local: Option<LocalDiscovery>,
}

/// All pools of this user on this machine that have workers.
pub(super) fn all() -> Outcome<Vec<Pool>> {
    let names = LocalDiscovery::namespaces().map_err(|error| Failure::Raddle(error.to_string()))?;
    // A folder that no pool could have made is none.
    let known = names.iter().filter_map(|name| LocalDiscovery::new(name).ok());
    let pools = known.map(|discovery| Pool {
        name: discovery.namespace().to_owned(),
        workers: discovery.snapshot(),
        local: Some(discovery),
    });
    // The last worker may have gone meanwhile.
    Ok(pools.filter(|pool| !pool.workers.is_empty()).collect())
}

/// Those that are meant by the name of a pool, the uid of a worker or an address, or all if nothing is named.
pub(super) async fn meant(global: &Global, args: &FindArgs, text: Option<&str>) -> Outcome<Vec<Pool>> {
    let uid = text.and_then(|text| text.parse::<Uid>().ok());
    // No pool is called like an address.
    if let (None, Some(address)) = (uid, text.and_then(|text| text.parse::<Address>().ok())) {
        return Ok(vec![at(&address, args)]);
    }
    let mut pools = match &args.discovery {
        Finding::Local => all()?,
        _ => vec![elsewhere(global, args, text.filter(|_| uid.is_none())).await?],
    };
    let Some(text) = text else { return Ok(pools) };
    // A pool can be called what looks like a uid, so that names come first.
    if let Some(place) = pools.iter().position(|pool| pool.name == text) {
        return Ok(vec![pools.swap_remove(place)]);
    }
    let is_meant = |worker: &WorkerMetadata| Some(worker.uid) == uid;
    let Some(place) = pools.iter().position(|pool| pool.workers.iter().any(is_meant)) else {
        return Err(absent(text, &pools, &args.discovery));
    };
    let mut pool = pools.swap_remove(place);
    pool.workers.retain(is_meant);
    Ok(vec![pool])
}

/// Whoever serves at an address. Nothing else is known of him.
fn at(address: &Address, args: &FindArgs) -> Pool {
    let address = address.to_string();
    let secure = args.credentials.credentials_ca.is_some();
    let worker = WorkerMetadata { secure, ..WorkerMetadata::at(&address) };
    Pool { name: address, workers: vec![worker], local: None }
}

/// Those that are found in another way than on this machine.
async fn elsewhere(global: &Global, args: &FindArgs, named: Option<&str>) -> Outcome<Pool> {
    let own = match &args.discovery {
        #[cfg(feature = "lan")]
        Finding::Lan(name) => name.as_deref(),
        Finding::Broker(name) => name.as_deref(),
        Finding::Local | Finding::File(_) | Finding::Dns(_) => None,
    };
    let is_secure = args.credentials.credentials_ca.is_some();
    let name = own.or(named).unwrap_or(DEFAULT);
    let (discovery, name) = ways::discovery(global, &args.discovery, name, is_secure).await?;
    Ok(Pool { name, workers: snapshot(&*discovery).await?, local: None })
}

/// Those that a discovery knows of now.
async fn snapshot(discovery: &dyn Discovery) -> Outcome<Vec<WorkerMetadata>> {
    let listening = discovery.subscribe(None).await;
    let mut listening = listening.map_err(|error| Failure::Raddle(error.to_string()))?;
    let mut found = Vec::new();
    // What is there is told without waiting.
    while let Ok(Some(event)) = timeout(Duration::ZERO, listening.next()).await {
        if let Event::Added(worker) = event {
            found.push(worker);
        }
    }
    found.sort_by_key(|worker: &WorkerMetadata| worker.uid);
    Ok(found)
}

/// That there is no such thing, and what there is.
fn absent(name: &str, pools: &[Pool], finding: &Finding) -> Failure {
    let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    let instead = match (finding, names.as_slice()) {
        (Finding::Local, []) => "no pool of this user is running on this machine".to_owned(),
        (Finding::Local, names) => format!("there is {}; 'raddle pool workers' shows their workers", names.join(", ")),
        (_, names) => format!("'raddle pool workers' shows those of {}", names.join(", ")),
    };
    Failure::Usage(format!("there is no pool or worker '{name}': {instead}"))
}
