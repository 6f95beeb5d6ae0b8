//! Finds pools and their workers.

use std::{collections::BTreeSet, time::Duration};

use raddle_discovery::{Discovery, DiscoveryError, DiscoveryEvent, LocalDiscovery, WorkerMetadata};
use serde_json::{Value, json};
use tokio::time::timeout;

/// Workers that were found together, as a snapshot.
pub struct FoundWorkers {
    /// The name of their pool, or the location at which they were found.
    pub name: String,
    /// The workers.
    pub workers: Vec<WorkerMetadata>,
    /// Their local discovery, if they run on this machine.
    pub local: Option<LocalDiscovery>,
}

impl FoundWorkers {
    /// The pool as JSON, in a list.
    pub fn record(&self) -> Value {
        json!({ "name": self.name, "workers": self.workers.len(), "tags": self.tags() })
    }

    /// The tags of all its workers.
    pub fn tags(&self) -> BTreeSet<&str> {
        self.workers
            .iter()
            .flat_map(|worker| &worker.tags)
            .map(String::as_str)
            .collect()
    }
}

/// All pools of this user on this machine that have workers.
pub fn local_pools() -> Result<Vec<FoundWorkers>, DiscoveryError> {
    let names = LocalDiscovery::namespaces()?;
    // Skip directories that no pool could have made.
    let known = names
        .iter()
        .filter_map(|name| LocalDiscovery::new(name).ok());
    let pools = known.map(|discovery| FoundWorkers {
        name: discovery.namespace().to_owned(),
        workers: discovery.snapshot(),
        local: Some(discovery),
    });
    // The last worker may have left meanwhile.
    Ok(pools.filter(|pool| !pool.workers.is_empty()).collect())
}

/// The workers that a discovery knows now.
pub async fn snapshot(discovery: &dyn Discovery) -> Result<Vec<WorkerMetadata>, DiscoveryError> {
    let mut subscription = discovery.subscribe(None).await?;
    let mut found = Vec::new();
    // A subscription delivers the present workers without waiting.
    while let Ok(Some(event)) = timeout(Duration::ZERO, subscription.next()).await {
        if let DiscoveryEvent::Added(worker) = event {
            found.push(worker);
        }
    }
    found.sort_by_key(|worker: &WorkerMetadata| worker.uid);
    Ok(found)
}
