//! Making, checking and opening the file.
//!
//! A file that is not ours, is damaged, or was made by a later version is named in the error and left as it is. A new database is
//! made in place under the write lock: its first page is synced before anything is accepted, and the tables come with a
//! transaction, so whatever interrupts it leaves a file that the next process completes.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, config::DbConfig};

use super::{Shared, bell::Bell, clock, schema};
use crate::{Error, Result};

/// How long SQLite itself waits. Our own processes queue elsewhere, so this is for other tools that write to the file.
const BUSY_PATIENCE: Duration = Duration::from_secs(30);
/// Pages in the log before they are moved into the database: large, because each move costs the writer two syncs.
const CHECKPOINT_PAGES: u32 = 4000;

/// Opens the database at `path`, making it if it is not there.
pub(super) fn open(path: PathBuf) -> Result<(Shared, Connection)> {
    let is_new = match fs::metadata(&path) {
        Ok(found) if found.is_dir() => return Err(Error::Foreign { path, found: "it is a folder".into() }),
        Ok(found) => found.len() == 0,
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(unusable(&path, &error)),
    };
    if is_new {
        make_folder(&path)?;
    } else {
        check(&path)?;
    }
    let bell = Bell::open(&path)?;
    let shared = Shared { path, bell, boot: clock::boot() };
    let connection = if is_new { complete(&shared)? } else { connection(&shared.path)? };
    let connection = match version(&shared.path, &connection)? {
        // Somebody began to make it and was interrupted.
        0 => complete(&shared)?,
        schema::VERSION => connection,
        found => return Err(Error::Newer { path: shared.path, found, known: schema::VERSION }),
    };
    Ok((shared, connection))
}

/// A connection to a database that is known to be ours.
pub(super) fn connection(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let set_up = || -> rusqlite::Result<Connection> {
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY_PATIENCE)?;
        connection.set_prepared_statement_cache_capacity(64);
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        // A short-lived process would otherwise pay for moving the log into the database when it leaves.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        Ok(connection)
    };
    set_up().map_err(|e| explain(path, &e))
}

/// Refuses a file that is not ours, without touching it.
fn check(path: &Path) -> Result<()> {
    // `immutable` keeps SQLite from taking locks or making files beside one that may not be ours. The mark is in the file's first
    // page from the beginning, so the log need not be read.
    let uri = format!("file:{}?immutable=1", percent_encoded(path));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mark: i32 = Connection::open_with_flags(&uri, flags)
        .and_then(|connection| connection.pragma_query_value(None, "application_id", |row| row.get(0)))
        .map_err(|e| explain(path, &e))?;
    if mark != schema::APPLICATION_ID {
        return Err(Error::Foreign { path: path.into(), found: "another program's SQLite database".into() });
    }
    Ok(())
}

fn version(path: &Path, connection: &Connection) -> Result<u32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(|e| explain(path, &e))
}

/// Makes the folder that the database stands in, and makes that last.
fn make_folder(path: &Path) -> Result<()> {
    let or_here = |path: &Path| if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_owned() };
    let folder = path.parent().map(or_here).unwrap_or_else(|| ".".into());
    match fs::create_dir(&folder) {
        Ok(()) => {
            let above = folder.parent().map(or_here).unwrap_or_else(|| ".".into());
            // What is in the folder is synced with the first commit; its own name only here.
            File::open(&above).and_then(|above| above.sync_all()).map_err(|e| unusable(&above, &e))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(unusable(&folder, &error)),
    }
}

/// Makes what is missing of a new database. Of several processes that come at once, the first does it.
fn complete(shared: &Shared) -> Result<Connection> {
    let path = &shared.path;
    let _lock = shared.lock()?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let make = || -> rusqlite::Result<()> {
        let draft = Connection::open_with_flags(path, flags)?;
        let mark: i32 = draft.pragma_query_value(None, "application_id", |row| row.get(0))?;
        if mark == 0 {
            draft.execute_batch(&format!(
                "PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY; PRAGMA application_id = {};
                 PRAGMA synchronous = FULL;",
                schema::APPLICATION_ID
            ))?;
            draft.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        }
        Ok(())
    };
    make().map_err(|e| explain(path, &e))?;
    let connection = connection(path)?;
    if version(path, &connection)? == 0 {
        // The first commit that has to last syncs this too: it is in the same log.
        connection
            .execute_batch(&format!(
                "PRAGMA synchronous = OFF; BEGIN IMMEDIATE; {} PRAGMA user_version = {}; COMMIT;
                 PRAGMA synchronous = NORMAL;",
                schema::TABLES,
                schema::VERSION
            ))
            .map_err(|e| explain(path, &e))?;
    }
    Ok(connection)
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn percent_encoded(path: &Path) -> String {
    use std::{fmt::Write, os::unix::ffi::OsStrExt};
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let mut encoded = String::new();
    for byte in absolute.as_os_str().as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => encoded.push(*byte as char),
            _ => write!(encoded, "%{byte:02x}").expect("a String takes any text"),
        }
    }
    encoded
}

fn unusable(path: &Path, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full { path: path.into() },
        io::ErrorKind::NotFound => {
            Error::ReadOnly { path: path.into(), reason: "the folder it would stand in does not exist".into() }
        }
        _ => Error::ReadOnly { path: path.into(), reason: error.to_string() },
    }
}

/// What the engine's error means for the one who has to mend it.
pub(super) fn explain(path: &Path, error: &rusqlite::Error) -> Error {
    let path: PathBuf = path.into();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => Error::Foreign { path, found: "not an SQLite file".into() },
        Some(ErrorCode::DatabaseCorrupt) => Error::Corrupt { path, found: error.to_string() },
        Some(ErrorCode::DiskFull) => Error::Full { path },
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            Error::ReadOnly { path, reason: error.to_string() }
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            Error::Locked { path, secs: BUSY_PATIENCE.as_secs(), holder: " by another program".into() }
        }
        _ => Error::Engine { path, reason: error.to_string() },
    }
}
