//! Conversion between `WorkerMetadata` and registry entries. Pure.

use std::collections::{BTreeMap, BTreeSet};

use raddle_discovery::{Address, WorkerMetadata, WorkerUid};
use raddle_model::{
    WorkerEntry,
    worker::{PoolWorkerInfo, WorkerInfo, kind},
};

use crate::worker::this_host;

/// Most workers of one namespace. Later ones are ignored.
const MAX_WORKERS: usize = 4096;
/// Most routine names in an entry.
const MAX_ROUTINES: usize = 1024;
/// Longest routine name in an entry.
const MAX_ROUTINE_BYTES: usize = 256;

/// Makes the entry of a worker, or says why it cannot be published.
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
        let why =
            "which differs on each machine: say where others find it, or serve at one address";
        return Err(format!("it serves at {address}, {why}"));
    }
    let routines = routines
        .iter()
        .filter(|name| name.len() <= MAX_ROUTINE_BYTES)
        .take(MAX_ROUTINES)
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

/// Reads the workers of a namespace, as seen from the machine `here`. Invalid entries are skipped.
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
        match parse_worker(*callee, pid, host == here) {
            // Entries are in order, so the last one of a worker wins.
            Ok(worker) if found.len() < MAX_WORKERS || found.contains_key(&worker.uid) => {
                drop(found.insert(worker.uid, worker))
            }
            Ok(worker) => {
                tracing::debug!(entry = %tid, worker = %worker.uid, "skipped a worker: there are too many")
            }
            Err(reason) => {
                tracing::debug!(entry = %tid, reason, "skipped an invalid registry entry")
            }
        }
    }
    found.into_values().collect()
}

fn parse_worker(callee: PoolWorkerInfo, pid: u32, is_here: bool) -> Result<WorkerMetadata, String> {
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
        return Err(format!("'{address}' is valid on its own machine only"));
    }
    Ok(worker)
}
