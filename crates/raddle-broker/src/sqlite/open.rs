//! Making, checking and opening the file.
//!
//! A file that is not ours, is damaged, or was made by a later version is named in the error and left as it is. A new database is
//! made in place under the write lock: its first page is synced before anything is accepted, and the tables come with a
//! transaction, so whatever interrupts it leaves a file that the next process completes.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, config::DbConfig, ffi};

use super::{Shared, bell::Bell, clock, schema};
use crate::{Error, Result};

/// How long SQLite itself waits. Our own processes queue elsewhere, so this is for other tools that write to the file.
const BUSY_PATIENCE: Duration = Duration::from_secs(30);
/// Pages in the log before they are moved into the database: large, because each move costs the writer two syncs.
const CHECKPOINT_PAGES: u32 = 4000;

/// Opens the database at `path`, making it if it is not there.
pub(super) fn open(path: PathBuf, patience: Option<Duration>) -> Result<(Shared, Connection)> {
    match fs::metadata(&path) {
        Ok(found) if found.is_dir() => return Err(Error::Foreign { path, found: "it is a folder".into() }),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => make_folder(&path)?,
        Err(error) => return Err(unusable(&path, &error)),
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(&path, flags).map_err(|e| explain(&path, &e))?;
    // Until here the file has not been touched, nor anything beside it.
    let header = Header::read(&connection).map_err(|e| explain(&path, &e))?;
    if let Some(header) = &header {
        header.check(&path)?;
    }
    let bell = Bell::open(&path)?;
    let shared = Shared { path, bell, boot: clock::boot(), patience };
    let path = &shared.path;
    set_up(&connection).map_err(|e| explain(path, &e))?;
    // The header may be older than the log, which a connection reads too.
    let version = match header {
        Some(_) => version(path, &connection)?,
        None => 0,
    };
    match version {
        0 => complete(&shared, &connection)?,
        schema::VERSION => {}
        found => return Err(Error::Newer { path: path.clone(), found, known: schema::VERSION }),
    }
    Ok((shared, connection))
}

/// What the first bytes of a database say. They are read through the engine's own handle on the file: closing another one would
/// let go of every lock that this process has on it.
struct Header {
    bytes: [u8; HEADER_BYTES],
}

const HEADER_BYTES: usize = 100;
/// Where SQLite keeps `user_version` and `application_id` in its header.
const VERSION_AT: usize = 60;
const APPLICATION_ID_AT: usize = 68;

impl Header {
    /// The header, or `None` if the file is empty.
    fn read(connection: &Connection) -> rusqlite::Result<Option<Self>> {
        let mut file: *mut ffi::sqlite3_file = std::ptr::null_mut();
        let mut bytes = [0; HEADER_BYTES];
        // SAFETY: the connection is open and used by nobody else; the engine hands out its file, whose methods are set for as long as
        // it is open, and reads no more than it is asked to into a buffer of that size.
        let code = unsafe {
            let slot = (&raw mut file).cast();
            let main = c"main".as_ptr();
            let found = ffi::sqlite3_file_control(connection.handle(), main, ffi::SQLITE_FCNTL_FILE_POINTER, slot);
            match file.as_ref().and_then(|file| file.pMethods.as_ref()).and_then(|methods| methods.xRead) {
                Some(read) if found == ffi::SQLITE_OK => read(file, bytes.as_mut_ptr().cast(), HEADER_BYTES as i32, 0),
                _ => ffi::SQLITE_CANTOPEN,
            }
        };
        match code {
            ffi::SQLITE_OK => Ok(Some(Self { bytes })),
            // Shorter than a header; the rest is zero.
            ffi::SQLITE_IOERR_SHORT_READ if bytes == [0; HEADER_BYTES] => Ok(None),
            ffi::SQLITE_IOERR_SHORT_READ => Ok(Some(Self { bytes })),
            code => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)),
        }
    }

    /// Refuses a file that is not ours, or that a later version has made.
    fn check(&self, path: &Path) -> Result<()> {
        let foreign = |found: &str| Err(Error::Foreign { path: path.into(), found: found.into() });
        if !self.bytes.starts_with(b"SQLite format 3\0") {
            return foreign("not an SQLite file");
        }
        if self.number(APPLICATION_ID_AT) != schema::APPLICATION_ID as u32 {
            return foreign("another program's SQLite database");
        }
        match self.number(VERSION_AT) {
            found if found > schema::VERSION => Err(Error::Newer { path: path.into(), found, known: schema::VERSION }),
            _ => Ok(()),
        }
    }

    fn number(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes[at..at + 4].try_into().expect("four bytes make a number"))
    }
}

/// A further connection to a database that is known to be ours.
pub(super) fn connection(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || {
        let connection = Connection::open_with_flags(path, flags)?;
        set_up(&connection)?;
        Ok(connection)
    };
    open().map_err(|e| explain(path, &e))
}

fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_PATIENCE)?;
    connection.set_prepared_statement_cache_capacity(64);
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    // A short-lived process would otherwise pay for moving the log into the database when it leaves.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(())
}

fn version(path: &Path, connection: &Connection) -> Result<u32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(|e| explain(path, &e))
}

/// Makes the folder that the database stands in, and makes that last.
fn make_folder(path: &Path) -> Result<()> {
    let or_here = |path: &Path| if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_owned() };
    let folder = path.parent().map(or_here).unwrap_or_else(|| ".".into());
    // For its owner alone: specs hold what people put into environments.
    match DirBuilder::new().mode(0o700).create(&folder) {
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
fn complete(shared: &Shared, connection: &Connection) -> Result<()> {
    let _lock = shared.lock()?;
    let make = || -> rusqlite::Result<()> {
        let mark: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
        if mark == 0 {
            connection.execute_batch(&format!(
                "PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY; PRAGMA application_id = {};",
                schema::APPLICATION_ID
            ))?;
        }
        // Writes the first page again, and this time syncs it. Nothing happens when another process has done so.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        let version: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if version == 0 {
            // The first commit that has to last syncs this too: it is in the same log.
            connection.execute_batch(&format!(
                "PRAGMA synchronous = OFF; BEGIN IMMEDIATE; {} PRAGMA user_version = {}; COMMIT;
                 PRAGMA synchronous = NORMAL;",
                schema::TABLES,
                schema::VERSION
            ))?;
        }
        Ok(())
    };
    make().map_err(|e| explain(&shared.path, &e))
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
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
