//! The pools and workers that there are, and those that somebody means.

use raddle_pool::{Uid, WorkerMetadata, connection::Address, discovery::LocalDiscovery};

use crate::error::{Failure, Outcome};

/// A pool, and its workers as they were when it was looked at.
pub(super) struct Pool {
    pub(super) discovery: LocalDiscovery,
    pub(super) workers: Vec<WorkerMetadata>,
}

/// What somebody means.
pub(super) enum Target {
    /// All workers of a pool, or the one of them that is meant.
    Workers(Pool),
    /// Whoever serves there.
    Address(Address),
}

impl Pool {
    pub(super) fn name(&self) -> &str {
        self.discovery.namespace()
    }
}

/// All pools that have workers.
pub(super) fn all() -> Outcome<Vec<Pool>> {
    let names = LocalDiscovery::namespaces().map_err(|error| Failure::Raddle(error.to_string()))?;
    // A folder that no pool could have made is none.
    let known = names.iter().filter_map(|name| LocalDiscovery::new(name).ok());
    let pools = known.map(|discovery| Pool { workers: discovery.snapshot(), discovery });
    // The last worker may have gone meanwhile.
    Ok(pools.filter(|pool| !pool.workers.is_empty()).collect())
}

/// The pool of this name.
pub(super) fn named(name: &str) -> Outcome<Pool> {
    let mut pools = all()?;
    match pools.iter().position(|pool| pool.name() == name) {
        Some(place) => Ok(pools.swap_remove(place)),
        None => Err(absent("pool", name, &pools)),
    }
}

/// The pool, worker or address that is meant. A pool can be called what looks like a uid, so that names come first; none looks like an
/// address.
pub(super) fn target(text: &str) -> Outcome<Target> {
    let mut pools = all()?;
    if let Some(place) = pools.iter().position(|pool| pool.name() == text) {
        return Ok(Target::Workers(pools.swap_remove(place)));
    }
    if let Ok(uid) = text.parse::<Uid>() {
        for Pool { discovery, workers } in &pools {
            if let Some(worker) = workers.iter().find(|worker| worker.uid == uid) {
                return Ok(Target::Workers(Pool { discovery: discovery.clone(), workers: vec![worker.clone()] }));
            }
        }
    } else if let Ok(address) = text.parse() {
        return Ok(Target::Address(address));
    }
    Err(absent("pool or worker", text, &pools))
}

/// That there is no such thing, and what there is.
fn absent(what: &str, name: &str, pools: &[Pool]) -> Failure {
    let names: Vec<&str> = pools.iter().map(Pool::name).collect();
    let instead = match names.as_slice() {
        [] => "no pool of this user is running on this machine".to_owned(),
        names => format!("there is {}; 'raddle pool workers' shows their workers", names.join(", ")),
    };
    Failure::Usage(format!("there is no {what} '{name}': {instead}"))
}
