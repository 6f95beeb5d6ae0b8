//! Finds pools and workers, and selects those that the user names.

use raddle_discovery::{Address, WorkerMetadata, WorkerUid};
use raddle_view::pool::{FoundWorkers, local_pools, snapshot};

use super::discovery;
use crate::{
    args::{DiscoveryArgs, FindArgs, Global},
    error::{Failure, Outcome},
};

/// The name of a pool without a name.
const DEFAULT: &str = "default";

/// All pools of this user on this machine that have workers.
pub(super) fn local() -> Outcome<Vec<FoundWorkers>> {
    local_pools().map_err(|error| Failure::Raddle(error.to_string()))
}

/// Selects workers by pool name, uid or address; all if nothing is named.
pub(super) async fn select_workers(
    global: &Global,
    args: &FindArgs,
    text: Option<&str>,
) -> Outcome<Vec<FoundWorkers>> {
    let uid = text.and_then(|text| text.parse::<WorkerUid>().ok());
    // No pool has a name that parses as an address.
    if let (None, Some(address)) = (uid, text.and_then(|text| text.parse::<Address>().ok())) {
        return Ok(vec![worker_at_address(&address, args)]);
    }
    let mut pools = match &args.discovery {
        DiscoveryArgs::Local => local()?,
        _ => vec![discovered_workers(global, args, text.filter(|_| uid.is_none())).await?],
    };
    let Some(text) = text else { return Ok(pools) };
    // A pool may have a name that looks like a uid, so names come first.
    if let Some(index) = pools.iter().position(|pool| pool.name == text) {
        return Ok(vec![pools.swap_remove(index)]);
    }
    let is_selected = |worker: &WorkerMetadata| Some(worker.uid) == uid;
    let Some(index) = pools
        .iter()
        .position(|pool| pool.workers.iter().any(is_selected))
    else {
        return Err(unknown_target(text, &pools, &args.discovery));
    };
    let mut pool = pools.swap_remove(index);
    pool.workers.retain(is_selected);
    Ok(vec![pool])
}

/// A worker of which only the address is known.
fn worker_at_address(address: &Address, args: &FindArgs) -> FoundWorkers {
    let address = address.to_string();
    let secure = args.credentials.credentials_ca.is_some();
    let worker = WorkerMetadata {
        secure,
        ..WorkerMetadata::for_address(&address)
    };
    FoundWorkers {
        name: address,
        workers: vec![worker],
        local: None,
    }
}

/// Workers that are found by a discovery other than the local one.
async fn discovered_workers(
    global: &Global,
    args: &FindArgs,
    named: Option<&str>,
) -> Outcome<FoundWorkers> {
    let discovery_name = match &args.discovery {
        #[cfg(feature = "lan")]
        DiscoveryArgs::Lan(name) => name.as_deref(),
        DiscoveryArgs::Broker(name) => name.as_deref(),
        DiscoveryArgs::Local | DiscoveryArgs::File(_) | DiscoveryArgs::Dns(_) => None,
    };
    let is_secure = args.credentials.credentials_ca.is_some();
    let name = discovery_name.or(named).unwrap_or(DEFAULT);
    let (discovery, name) = discovery::discovery(global, &args.discovery, name, is_secure).await?;
    let workers = snapshot(&*discovery).await;
    Ok(FoundWorkers {
        name,
        workers: workers.map_err(|error| Failure::Raddle(error.to_string()))?,
        local: None,
    })
}

/// The error for an unknown name, with the known names.
fn unknown_target(name: &str, pools: &[FoundWorkers], discovery: &DiscoveryArgs) -> Failure {
    let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    let instead = match (discovery, names.as_slice()) {
        (DiscoveryArgs::Local, []) => "this user runs no pool on this machine".to_owned(),
        (DiscoveryArgs::Local, names) => {
            format!("there is {}; see 'raddle pool workers'", names.join(", "))
        }
        (_, names) => format!(
            "see 'raddle pool workers' for those of {}",
            names.join(", ")
        ),
    };
    Failure::Usage(format!("there is no pool or worker '{name}': {instead}"))
}
