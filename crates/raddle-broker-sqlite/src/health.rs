//! Health checks for `raddle doctor`.

use rusqlite::Connection;

use super::{
    HandleState, clock,
    open::{DatabaseLocation, LOG, with_suffix},
    registry::entered,
    tx::TxError,
};
use raddle_broker::{EngineHealth, HealthCheck};

/// A WAL larger than this is reported: something prevents checkpoints.
const LARGE_WAL_BYTES: u64 = 256 * 1024 * 1024;

pub(super) fn health(db: &Connection, shared: &HandleState) -> Result<EngineHealth, TxError> {
    Ok(EngineHealth {
        engine: format!("sqlite {}", rusqlite::version()),
        location: shared.path.display().to_string(),
        durability: match shared.location {
            DatabaseLocation::File(_) => {
                "submit and complete are synced to disk before they return: they survive a power cut; \
                 claims survive a crash of the process, and a power cut only makes a task run again"
            }
            DatabaseLocation::Memory(_) => "nothing survives the end of the process",
        }
        .into(),
        checks: match shared.location {
            DatabaseLocation::File(_) if shared.is_read_only => {
                vec![read_only(), integrity(db)?, stale_workers(db, shared)?]
            }
            DatabaseLocation::File(_) => {
                vec![journal(db)?, integrity(db)?, log_size(shared), stale_workers(db, shared)?]
            }
            DatabaseLocation::Memory(_) => vec![integrity(db)?, stale_workers(db, shared)?],
        },
    })
}

fn read_only() -> HealthCheck {
    HealthCheck {
        name: "file system".into(),
        ok: false,
        detail: "read-only: tasks can be read, but not submitted or run".into(),
        fix: Some(
            "'mount -o remount,rw' it, or copy the whole directory to where it can be written"
                .into(),
        ),
    }
}

fn journal(db: &Connection) -> Result<HealthCheck, TxError> {
    let mode: String = db.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    let ok = mode == "wal";
    Ok(HealthCheck {
        name: "journal".into(),
        ok,
        detail: format!("mode {mode}"),
        fix: (!ok)
            .then(|| "another tool changed it: run 'PRAGMA journal_mode=WAL' with sqlite3".into()),
    })
}

fn integrity(db: &Connection) -> Result<HealthCheck, TxError> {
    let found: String = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    let ok = found == "ok";
    let fix = (!ok).then(|| "restore the file from a backup, or 'sqlite3 FILE .recover'".into());
    Ok(HealthCheck {
        name: "integrity".into(),
        ok,
        detail: found,
        fix,
    })
}

fn log_size(shared: &HandleState) -> HealthCheck {
    let bytes = std::fs::metadata(with_suffix(&shared.path, LOG)).map_or(0, |found| found.len());
    let ok = bytes <= LARGE_WAL_BYTES;
    HealthCheck {
        name: "write-ahead log".into(),
        ok,
        detail: format!("{} KiB", bytes / 1024),
        fix: (!ok).then(|| {
            "a process holds a read transaction open: find it with 'fuser', and stop it".into()
        }),
    }
}

fn stale_workers(db: &Connection, shared: &HandleState) -> Result<HealthCheck, TxError> {
    let now = clock::machine();
    let stale = entered(db)?
        .into_iter()
        .filter(|worker| !shared.leases.get(*worker).holds(now))
        .count();
    Ok(HealthCheck {
        name: "stale workers".into(),
        ok: stale == 0,
        detail: format!("{stale} without a valid lease"),
        fix: (stale > 0).then(|| {
            "run 'raddle requeue-orphans', or start a worker, which reclaims their tasks".into()
        }),
    })
}
