//! Making, checking and opening the file.
//!
//! A new database is built under another name and linked into place whole, so that no process ever sees half of one. A file that is
//! not ours, is damaged, or was made by a later version is named in the error and left as it is.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, config::DbConfig};

use super::schema;
use crate::{Error, Result};

/// How long SQLite itself waits. Our own processes queue elsewhere, so this is for other tools that write to the file.
const BUSY_PATIENCE: Duration = Duration::from_secs(30);
/// Pages in the log before they are moved into the database: large, because each move costs the writer two syncs.
const CHECKPOINT_PAGES: u32 = 4000;

/// Opens the database at `path`, making it if it is not there.
pub(super) fn open_or_create(path: &Path) -> Result<Connection> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() && found.len() > 0 => check(path)?,
        Ok(found) if found.is_dir() => {
            return Err(Error::Foreign { path: path.into(), found: "it is a folder".into() });
        }
        Ok(_) => create(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => create(path)?,
        Err(error) => return Err(unusable(path, &error)),
    }
    connection(path)
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
    // `immutable` keeps SQLite from taking locks or making files beside one that may not be ours. What is asked for was written
    // when the file was made, so the log need not be read.
    let uri = format!("file:{}?immutable=1", percent_encoded(path));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let look = || -> rusqlite::Result<(i32, u32)> {
        let connection = Connection::open_with_flags(&uri, flags)?;
        let id = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
        Ok((id, connection.pragma_query_value(None, "user_version", |row| row.get(0))?))
    };
    let (id, version) = look().map_err(|e| explain(path, &e))?;
    if id != schema::APPLICATION_ID {
        let found = "another program's SQLite database".into();
        return Err(Error::Foreign { path: path.into(), found });
    }
    if version > schema::VERSION {
        return Err(Error::Newer { path: path.into(), found: version, known: schema::VERSION });
    }
    Ok(())
}

fn create(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let made_folder = match fs::create_dir(folder) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(unusable(folder, &error)),
    };
    let draft = Draft(with_suffix(path, &format!("-new-{}-{}", std::process::id(), draft_number())));
    File::create_new(&draft.0).map_err(|e| unusable(&draft.0, &e))?;
    fill(&draft.0).map_err(|e| explain(path, &e))?;
    File::open(&draft.0).and_then(|file| file.sync_data()).map_err(|e| unusable(path, &e))?;
    match fs::hard_link(&draft.0, path) {
        Ok(()) => {}
        // Another process was faster, or an empty file stood there.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if fs::metadata(path).is_ok_and(|found| found.len() == 0) {
                fs::rename(&draft.0, path).map_err(|e| unusable(path, &e))?;
            }
            return check(path);
        }
        Err(error) => return Err(unusable(path, &error)),
    }
    // The folder itself is synced with the first commit to the log; the folder it stands in only here.
    if made_folder {
        let above = folder.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(above).and_then(|above| above.sync_all()).map_err(|e| unusable(above, &e))?;
    }
    Ok(())
}

/// Writes the tables into an empty file. Nothing is synced on the way: until it is linked, nobody misses it.
fn fill(draft: &Path) -> rusqlite::Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(draft, flags)?;
    connection.execute_batch(&format!(
        "PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF; PRAGMA application_id = {}; PRAGMA user_version = {};
         BEGIN; {} COMMIT;",
        schema::APPLICATION_ID,
        schema::VERSION,
        schema::TABLES
    ))?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    Ok(())
}

/// A database in the making; what is left of it goes when it is linked or given up.
struct Draft(PathBuf);

impl Drop for Draft {
    fn drop(&mut self) {
        for suffix in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(with_suffix(&self.0, suffix));
        }
    }
}

/// Tells apart the drafts of threads of one process.
fn draft_number() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
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
