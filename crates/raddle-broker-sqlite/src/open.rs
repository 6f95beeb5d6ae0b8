//! Creation, validation and opening of the database file.
//!
//! A file that is not a Raddle database, is damaged, or was written by a newer version is named in
//! the error and not touched.
//!
//! A new database is created under another name (`-new`), synced, and renamed, under the write
//! lock. So no process sees half of it, a power cut leaves all or nothing, and the next process
//! removes what a killed one left under that name.
//!
//! On a read-only file system the database is opened for reading; SQLite needs the WAL index
//! (`-shm`) for that. Without index and WAL the file is opened as immutable, which needs neither.
//!
//! A WAL without its database is left from a deleted one. Over a new database it would restore
//! fragments of the old one, so it is refused.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, config::DbConfig, ffi};
use rustix::fs::StatVfsMountFlags;

use super::{HandleState, file_mode, schema, wal_index};
use raddle_broker::{Error, Result, engine::is_resource_exhaustion};

const OPEN: OpenFlags = OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);
const READ_IMMUTABLE: OpenFlags = OpenFlags::SQLITE_OPEN_READ_ONLY
    .union(OpenFlags::SQLITE_OPEN_NO_MUTEX)
    .union(OpenFlags::SQLITE_OPEN_URI);
/// The busy timeout of SQLite. Raddle processes queue on their own lock, so it only matters for
/// other tools that write to the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of WAL pages before a checkpoint: many, because each checkpoint costs the writer two
/// syncs.
const CHECKPOINT_PAGES: u32 = 4000;

/// The suffix of the WAL.
pub(super) const LOG: &str = "-wal";
/// The suffixes of the database and of the files that SQLite creates beside it.
const DATABASE_SUFFIXES: [&str; 3] = ["", LOG, INDEX];
/// The suffix of the WAL index.
const INDEX: &str = "-shm";

/// The project directory. The engine adds a `.gitignore` when it creates it: it holds output and
/// environments of tasks.
const PROJECT_DIRECTORY: &str = ".raddle";
const IGNORE_FILE: &str = ".gitignore";
const IGNORE_ALL: &[u8] = b"*\n";

/// The location of a database.
#[derive(Clone, Debug)]
pub(super) enum DatabaseLocation {
    File(PathBuf),
    /// In the memory of this process. Connections with the same name share it; it is gone with the
    /// last.
    Memory(String),
}

impl DatabaseLocation {
    /// Its name in messages.
    pub(super) fn path(&self) -> PathBuf {
        match self {
            Self::File(path) => path.clone(),
            Self::Memory(_) => "mem://".into(),
        }
    }
}

/// Opens a database, and creates it if it does not exist.
pub(super) fn open(location: DatabaseLocation) -> Result<(HandleState, Connection)> {
    match location {
        DatabaseLocation::File(path) => open_file(path),
        DatabaseLocation::Memory(_) => {
            let shared = HandleState::new(location)?;
            let made = raw(&shared.location).and_then(|connection| {
                set_up(&connection)?;
                make_tables(&connection)?;
                Ok(connection)
            });
            let connection = made.map_err(|e| shared.error(&e))?;
            Ok((shared, connection))
        }
    }
}

fn open_file(path: PathBuf) -> Result<(HandleState, Connection)> {
    let path = resolve(path)?;
    let (mut shared, connection) = if has_database(&path)? {
        // Validated first, so that no file is created beside one that is refused.
        let connection = checked(&path)?;
        (HandleState::new(DatabaseLocation::File(path))?, connection)
    } else {
        let above = make_directory(&path)?;
        let shared = HandleState::new(DatabaseLocation::File(path))?;
        make(&shared, above.as_deref())?;
        let connection = checked(&shared.path)?;
        (shared, connection)
    };
    set_up(&connection).map_err(|e| shared.error(&e))?;
    check_version(&shared.path, &connection)?;
    shared.identity = identity(&shared.path).ok();
    Ok((shared, connection))
}

/// Device and inode of a file.
pub(super) fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|found| (found.dev(), found.ino()))
}

/// A connection to a file whose header says that it is a Raddle database.
fn checked(path: &Path) -> Result<Connection> {
    let connection = raw_file(path).map_err(|e| explain(path, &e))?;
    Header::read(&connection)
        .map_err(|e| explain(path, &e))?
        .check(path)?;
    Ok(connection)
}

fn raw(location: &DatabaseLocation) -> rusqlite::Result<Connection> {
    match location {
        DatabaseLocation::File(path) => raw_file(path),
        DatabaseLocation::Memory(name) => {
            // SQLite's `memdb` VFS shares names that start with a slash among the connections of a
            // process.
            let flags = OPEN | OpenFlags::SQLITE_OPEN_CREATE;
            Connection::open_with_flags_and_vfs(format!("/{name}"), flags, c"memdb")
        }
    }
}

fn raw_file(path: &Path) -> rusqlite::Result<Connection> {
    if is_read_only(path) && !with_suffix(path, INDEX).exists() && !has_log(path) {
        return Connection::open_with_flags(immutable_uri(path), READ_IMMUTABLE);
    }
    let connection = Connection::open_with_flags(path, OPEN)?;
    wal_index::allocate_when_mapped(&connection);
    Ok(connection)
}

/// Whether a database is on a read-only file system, as far as `statvfs` reports it.
pub(super) fn is_read_only(path: &Path) -> bool {
    let directory = or_current(path.parent().unwrap_or(Path::new("")));
    rustix::fs::statvfs(&directory)
        .is_ok_and(|disk| disk.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// The URI of an immutable file: SQLite takes no locks and needs no files beside it.
fn immutable_uri(path: &Path) -> String {
    let mut uri = if path.is_absolute() {
        "file://".to_owned()
    } else {
        "file:".to_owned()
    };
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                uri.push(char::from(*byte))
            }
            _ => write!(uri, "%{byte:02X}").expect("a string can be written to"),
        }
    }
    uri + "?immutable=1"
}

/// Whether there is a database to open. An empty file counts as none: SQLite and `touch` create
/// those.
fn has_database(path: &Path) -> Result<bool> {
    match fs::symlink_metadata(path) {
        // Devices, FIFOs and sockets have no length either, and must not be overwritten.
        Ok(found) if !found.is_file() => Err(Error::Foreign {
            path: path.into(),
            found: format!("it is {}", kind(found.file_type())),
        }),
        Ok(found) => Ok(found.len() > 0),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(file_error(path, &error)),
    }
}

fn kind(kind: fs::FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_symlink() => "a link",
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

/// Resolves a symbolic link. The files beside the database are beside its target, so that all
/// processes share them whichever name they use.
fn resolve(path: PathBuf) -> Result<PathBuf> {
    if !path.is_symlink() {
        return Ok(path);
    }
    path.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::Foreign {
            path: path.clone(),
            found: "a link to a file that does not exist".into(),
        },
        _ => file_error(&path, &error),
    })
}

/// Creates a new database. If several processes arrive at once, the first creates it.
fn make(shared: &HandleState, above: Option<&Path>) -> Result<()> {
    let path = &shared.path;
    let _lock = shared.lock_for_writing()?;
    if !has_database(path)? {
        if has_log(path) {
            return Err(Error::LogAlone { path: path.clone() });
        }
        let draft = with_suffix(path, "-new");
        let made = write(path, &draft);
        // Also removes what a killed process has left.
        remove(&draft);
        made?;
    }
    // Every process that finds the directory unsynced syncs it: the others may have been killed
    // before.
    above.map_or(Ok(()), sync_directory)
}

/// Creates the tables under the name `draft` and renames the file to the database.
fn write(path: &Path, draft: &Path) -> Result<()> {
    remove(draft);
    let io = |e: io::Error| file_error(path, &e);
    let file = file_mode::options()
        .write(true)
        .create_new(true)
        .open(draft)
        .map_err(io)?;
    file_mode::keep(&file, &file.metadata().map_err(io)?).map_err(io)?;
    let tables = || {
        let connection = raw_file(draft)?;
        // Before the rename nothing needs to be durable or undone.
        connection.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")?;
        make_tables(&connection)?;
        connection.execute_batch("PRAGMA journal_mode = WAL")?;
        connection.close().map_err(|(_, error)| error)
    };
    tables().map_err(|e| explain(path, &e))?;
    file.sync_all().map_err(io)?;
    fs::rename(draft, path).map_err(io)?;
    sync_directory(path.parent().unwrap_or(Path::new("")))
}

fn make_tables(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("BEGIN")?;
    connection.pragma_update(None, "application_id", schema::APPLICATION_ID)?;
    connection.pragma_update(None, "user_version", schema::VERSION)?;
    schema::STATEMENTS
        .iter()
        .try_for_each(|statement| connection.execute_batch(statement))?;
    connection.execute_batch("COMMIT")
}

/// Removes a draft and SQLite's files beside it, if there are any.
fn remove(draft: &Path) {
    DATABASE_SUFFIXES
        .iter()
        .for_each(|suffix| drop(fs::remove_file(with_suffix(draft, suffix))));
}

/// Makes the names in a directory durable.
fn sync_directory(directory: &Path) -> Result<()> {
    let directory = or_current(directory);
    match File::open(&directory).and_then(|opened| opened.sync_all()) {
        // Some file systems cannot sync directories.
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => {
            Err(file_error(&directory, &error))
        }
        _ => Ok(()),
    }
}

/// Whether there is a WAL that is not empty.
pub(super) fn has_log(path: &Path) -> bool {
    fs::metadata(with_suffix(path, LOG)).is_ok_and(|log| log.len() > 0)
}

/// The header of a database file.
struct Header {
    bytes: [u8; HEADER_BYTES],
}

const HEADER_BYTES: usize = 100;
/// The offset of `user_version` in the header.
const VERSION_AT: usize = 60;
const APPLICATION_ID_AT: usize = 68;

impl Header {
    fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let mut bytes = [0; HEADER_BYTES];
        read(connection, &mut bytes)?;
        Ok(Self { bytes })
    }

    /// Fails for a file of another program or of a newer version.
    fn check(&self, path: &Path) -> Result<()> {
        let foreign = |found: &str| {
            Err(Error::Foreign {
                path: path.into(),
                found: found.into(),
            })
        };
        if !self.bytes.starts_with(b"SQLite format 3\0") {
            return foreign("not an SQLite file");
        }
        if self.number(APPLICATION_ID_AT) != schema::APPLICATION_ID as u32 {
            return foreign("another program's SQLite database");
        }
        match self.number(VERSION_AT) {
            found if found > schema::VERSION => Err(Error::Newer {
                path: path.into(),
                found,
                known: schema::VERSION,
            }),
            0 | schema::VERSION => Ok(()),
            found => foreign(&unreleased(found)),
        }
    }

    fn number(&self, at: usize) -> u32 {
        u32::from_be_bytes(
            self.bytes[at..at + 4]
                .try_into()
                .expect("four bytes make a number"),
        )
    }
}

/// Reads the start of a database. Bytes beyond the end of a shorter file are zero.
fn read(connection: &Connection, bytes: &mut [u8]) -> rusqlite::Result<()> {
    let file = file_of(connection);
    // SAFETY: the file is open as long as the connection is, and no more is read than the buffer
    // holds.
    let code = unsafe {
        match file.as_ref().and_then(|open| (*open.pMethods).xRead) {
            Some(read) => read(file, bytes.as_mut_ptr().cast(), bytes.len() as i32, 0),
            None => ffi::SQLITE_CANTOPEN,
        }
    };
    if matches!(code, ffi::SQLITE_OK | ffi::SQLITE_IOERR_SHORT_READ) {
        Ok(())
    } else {
        Err(failure(code))
    }
}

/// SQLite's own handle on the database file; null if it is not open. POSIX locks require this:
/// closing another descriptor of the file would release all locks of this process on it.
pub(super) fn file_of(connection: &Connection) -> *mut ffi::sqlite3_file {
    let which = ffi::SQLITE_FCNTL_FILE_POINTER;
    let mut file: *mut ffi::sqlite3_file = std::ptr::null_mut();
    // SAFETY: the connection is open and not used elsewhere; SQLite writes one pointer to the given
    // address. A file without methods is not open.
    unsafe {
        let found = ffi::sqlite3_file_control(
            connection.handle(),
            c"main".as_ptr(),
            which,
            (&raw mut file).cast(),
        );
        let is_open =
            found == ffi::SQLITE_OK && file.as_ref().is_some_and(|file| !file.pMethods.is_null());
        if is_open { file } else { std::ptr::null_mut() }
    }
}

fn failure(code: i32) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)
}

/// A further connection to a database that was validated before. Its commits survive the process,
/// but not necessarily a power cut.
pub(super) fn connection(location: &DatabaseLocation) -> Result<Connection> {
    let open = || {
        let connection = raw(location)?;
        set_up(&connection)?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        Ok(connection)
    };
    open().map_err(|e| explain(&location.path(), &e))
}

/// A further connection that only reads.
pub(super) fn reader(location: &DatabaseLocation) -> Result<Connection> {
    let open = || {
        let connection = raw(location)?;
        set_up(&connection)?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(connection)
    };
    open().map_err(|e| explain(&location.path(), &e))
}

fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(256);
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    // Otherwise a short-lived process would pay for a checkpoint when it exits.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(())
}

/// Fails for a database of another version. The header may be older than the WAL, which a query
/// reads too.
fn check_version(path: &Path, connection: &Connection) -> Result<()> {
    match connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(|e| explain(path, &e))?
    {
        schema::VERSION => Ok(()),
        0 => Err(Error::Foreign {
            path: path.into(),
            found: "a database without tables".into(),
        }),
        found if found > schema::VERSION => Err(Error::Newer {
            path: path.into(),
            found,
            known: schema::VERSION,
        }),
        found => Err(Error::Foreign {
            path: path.into(),
            found: unreleased(found),
        }),
    }
}

fn unreleased(format: u32) -> String {
    format!("of format {format}, which was never released")
}

/// Creates the directory of the database. If it did not exist, returns its parent, which must be
/// synced to make the name durable.
fn make_directory(path: &Path) -> Result<Option<PathBuf>> {
    let directory = or_current(path.parent().unwrap_or(Path::new("")));
    match file_mode::make_directory(&directory) {
        Ok(()) => {
            if directory.ends_with(PROJECT_DIRECTORY) {
                // Optional: a failure is ignored.
                let _ = write_gitignore(&directory);
            }
            Ok(Some(
                directory.parent().map(Path::to_owned).unwrap_or_default(),
            ))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(file_error(&directory, &error)),
    }
}

fn write_gitignore(directory: &Path) -> io::Result<()> {
    let mut file = file_mode::options()
        .write(true)
        .create_new(true)
        .open(directory.join(IGNORE_FILE))?;
    file_mode::keep(&file, &file.metadata()?)?;
    file.write_all(IGNORE_ALL)
}

/// The current directory if `directory` is empty, as in the parent of a relative path.
fn or_current(directory: &Path) -> PathBuf {
    if directory.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        directory.to_owned()
    }
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

pub(super) fn file_error(path: &Path, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Error::Full { path: path.into() }
        }
        io::ErrorKind::NotFound => Error::ReadOnly {
            path: path.into(),
            reason: "its directory does not exist".into(),
        },
        io::ErrorKind::ReadOnlyFilesystem => read_only(path),
        _ if is_resource_exhaustion(error) => Error::io(path, error),
        io::ErrorKind::PermissionDenied => Error::ReadOnly {
            path: path.into(),
            reason: file_mode::foreign_owner(path).unwrap_or_else(|| error.to_string()),
        },
        _ => Error::ReadOnly {
            path: path.into(),
            reason: error.to_string(),
        },
    }
}

/// The error for a read-only file system.
pub(super) fn read_only(path: &Path) -> Error {
    let reason = "its file system is read-only: mount it for writing, or copy the directory to a writable one and work there";
    Error::ReadOnly {
        path: path.into(),
        reason: reason.into(),
    }
}

/// Maps an error of SQLite to one that says what to do.
pub(super) fn explain(path: &Path, error: &rusqlite::Error) -> Error {
    let path: PathBuf = path.into();
    let code = error.sqlite_error_code();
    if matches!(
        code,
        Some(ErrorCode::CannotOpen | ErrorCode::SystemIoFailure)
    ) && let Some(want) = descriptor_error()
    {
        return want;
    }
    match code {
        Some(ErrorCode::NotADatabase) => Error::Foreign {
            path,
            found: "not an SQLite file".into(),
        },
        Some(ErrorCode::DatabaseCorrupt) => Error::Corrupt {
            path,
            found: error.to_string(),
        },
        Some(ErrorCode::DiskFull) => Error::Full { path },
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            let reason = file_mode::foreign_owner(&path)
                .filter(|_| !is_writable(&path))
                .unwrap_or_else(|| error.to_string());
            Error::ReadOnly { path, reason }
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::Locked {
            path,
            secs: BUSY_TIMEOUT.as_secs(),
            holder: " by another program".into(),
        },
        Some(ErrorCode::SystemIoFailure) => Error::Io {
            path,
            reason: format!("{error}{}", file_size_hint()),
        },
        _ => Error::Io {
            path,
            reason: error.to_string(),
        },
    }
}

/// The error if this process has no free descriptor: SQLite does not report why it could not open a
/// file.
fn descriptor_error() -> Option<Error> {
    let path = Path::new("/dev/null");
    let refused = File::open(path).err().filter(is_resource_exhaustion)?;
    Some(Error::io(path, &refused))
}

/// Whether this process may write the file, as far as modes and owners tell.
fn is_writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// A hint at the file size limit, if there is one: SQLite does not report that it was reached.
fn file_size_hint() -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    limit
        .map(|most| format!(" (files may have {most} bytes: is 'ulimit -f' too low?)"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_immutable_files_with_any_name() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["a?b#c%20d.db", "mit Leerzeichen & 'so'.db", "file:x"] {
            let path = directory.path().join(name);
            Connection::open(&path)
                .unwrap()
                .execute_batch("CREATE TABLE t (x)")
                .unwrap();
            let found = Connection::open_with_flags(immutable_uri(&path), READ_IMMUTABLE).unwrap();
            let tables: u32 = found
                .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
                .unwrap();
            assert_eq!(tables, 1, "{name}");
        }
    }
}
