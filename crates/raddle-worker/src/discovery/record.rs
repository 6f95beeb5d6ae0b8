//! A worker that takes calls, as it stands in a registry. Pure.

use std::collections::{BTreeMap, BTreeSet};

use raddle_discovery::{Address, WorkerMetadata, WorkerUid};
use raddle_model::{
    WorkerEntry,
    worker::{PoolWorkerInfo, WorkerInfo, kind},
};

use crate::worker::this_host;

/// More workers of one name are not taken: those that came first are.
const MOST: usize = 4096;
/// More names of routines are not said.
const MOST_ROUTINES: usize = 1024;
/// Nor longer ones.
const LONGEST_ROUTINE: usize = 256;

/// What is entered of a worker, or why it cannot be.
pub(super) fn write(
    worker: &WorkerMetadata,
    namespace: &str,
    routines: &BTreeSet<String>,
) -> Result<WorkerInfo, String> {
    worker.validate().map_err(|error| error.to_string())?;
    let WorkerMetadata {
        uid,
        address,
        pid,
        version,
        tags,
        extra,
        secure,
        encodings,
    } = worker.clone();
    if address
        .parse::<Address>()
        .is_ok_and(|address| address.is_wildcard())
    {
        let why = "which is another place on every machine: say where others find it, or serve at one address";
        return Err(format!("it serves at {address}, {why}"));
    }
    let routines = routines
        .iter()
        .filter(|name| name.len() <= LONGEST_ROUTINE)
        .take(MOST_ROUTINES)
        .cloned();
    let callee = PoolWorkerInfo {
        namespace: namespace.to_owned(),
        uid: uid.to_string(),
        address,
        version,
        tags,
        extra,
        secure,
        encodings: encodings
            .iter()
            .map(|encoding| encoding.name().to_owned())
            .collect(),
        routines: routines.collect(),
    };
    Ok(WorkerInfo {
        pid,
        host: this_host(),
        callee: Some(Box::new(callee)),
        ..WorkerInfo::new(namespace, kind::POOL)
    })
}

/// The workers of this name that a registry shows, for somebody on this machine. What cannot be one is passed over.
pub(super) fn read(entries: Vec<WorkerEntry>, namespace: &str, here: &str) -> Vec<WorkerMetadata> {
    let mut found = BTreeMap::new();
    for WorkerEntry { tid, info, .. } in entries {
        let WorkerInfo {
            pid,
            host,
            callee: Some(callee),
            ..
        } = info
        else {
            continue;
        };
        if callee.namespace != namespace {
            continue;
        }
        match worker(*callee, pid, host == here) {
            // Entries come in their order: what was said last of a worker counts.
            Ok(worker) if found.len() < MOST || found.contains_key(&worker.uid) => {
                drop(found.insert(worker.uid, worker))
            }
            Ok(worker) => {
                tracing::debug!(entry = %tid, worker = %worker.uid, "one worker too many is passed over")
            }
            Err(reason) => {
                tracing::debug!(entry = %tid, reason, "what the registry says of a worker is passed over")
            }
        }
    }
    found.into_values().collect()
}

fn worker(callee: PoolWorkerInfo, pid: u32, is_here: bool) -> Result<WorkerMetadata, String> {
    let PoolWorkerInfo {
        namespace: _,
        uid,
        address,
        version,
        tags,
        extra,
        secure,
        encodings,
        routines: _,
    } = callee;
    let uid: WorkerUid = uid.parse().map_err(|error| format!("uid: {error}"))?;
    let encodings = encodings
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    let worker = WorkerMetadata {
        uid,
        address,
        pid,
        version,
        tags,
        extra,
        secure,
        encodings,
    };
    worker.validate().map_err(|error| error.to_string())?;
    let address: Address = worker.address.parse().map_err(|_| "address".to_owned())?;
    if address.is_wildcard() || !(is_here || address.is_global()) {
        return Err(format!(
            "'{address}' means something on its own machine alone"
        ));
    }
    Ok(worker)
}
