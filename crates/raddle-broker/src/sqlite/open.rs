//! Making, checking and opening the file.
//!
//! A file that is not ours, is damaged, or was made by a later version is named in the error and left as it is.
//!
//! A new database is written beside its place, as a draft, and linked there whole: no process ever sees a half of it. It is not synced
//! at once, because it need not be: what it holds is known (`image`), and what is committed to it stands in the log. As long as it has its
//! second name, whoever opens it puts back the pages that a power cut has lost, then syncs it and takes the name away ([`complete`]). Its
//! maker does so too, unless it leaves before its third transaction.
//!
//! A database that is gone, while its log is not and nothing tells that it was new, was deleted: over an empty one, its log would bring back some of what it
//! held, in pieces. That is refused. Not so where a file without length has its place: a power cut leaves that, and somebody who wants the log laid
//! over an empty one can make it.
//!
//! `raddle run` does not even open it before its task begins: it makes the database with the task in it ([`Unmade::make_with`]), and opens it while the task
//! runs. What is in it then stands in no log, so its second name is another: as long as it has that, nobody was told that any of it lasts, and where a power
//! cut has lost a page all of it goes.

use std::{
    fs::{self, File, OpenOptions},
    io,
    mem::ManuallyDrop,
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, config::DbConfig, ffi};

use super::{
    Shared,
    image::{self, Image},
    private, schema,
};
use crate::{Error, Result, error::is_want};

/// How long SQLite itself waits. Our own processes queue elsewhere, so this is for other tools that write to the file.
const BUSY_PATIENCE: Duration = Duration::from_secs(30);
/// Pages in the log before they are moved into the database: many, because each move costs the writer two syncs.
pub(super) const CHECKPOINT_PAGES: i32 = 4000;
/// The same for short commands. The first process that opens the database after all have left reads the whole log: it must not grow
/// from visit to visit.
pub(super) const SHORT_CHECKPOINT_PAGES: i32 = 256;

/// What the log is called beside its database.
pub(super) const LOG: &str = "-wal";

/// How large what SQLite keeps at hand for small things is, and how many there are: what it has by default.
const SMALL_BYTES: i32 = 1200;
const SMALL_THINGS: i32 = 40;

/// A database that has been opened.
pub(super) struct Opened {
    pub(super) connection: Connection,
    /// Whether there was none before.
    pub(super) is_new: bool,
    /// How long the log gets before it is moved into the database.
    pub(super) pages: i32,
}

/// The place of a database, or what stands there.
pub(super) enum Place {
    Opened(Opened),
    Unmade(Unmade),
}

/// A place where there was no database when it was looked at, in a folder that there is.
pub(super) struct Unmade {
    /// The folder above, if that has to be synced for the name of the folder to last.
    above: Option<PathBuf>,
    pages: i32,
}

/// What a database was written as, and by which name that is known as long as it has not been synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draft {
    /// All that it held is known.
    Empty,
    /// It held something that is nowhere else.
    Filled,
}

/// What is at the place of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Nothing, or an empty file: SQLite and `touch` make those.
    Nothing,
    /// A link to something else.
    Link,
    /// One that may not have been synced.
    Draft(Draft),
    /// Something that is to be looked at.
    Database,
}

/// Opens the database at `path`, making it if it is not there. What it commits by itself is moved from the log into the database after
/// so many `pages`.
pub(super) fn open(path: PathBuf, pages: i32) -> Result<(Shared, Opened)> {
    let (shared, place) = look(path, None, pages)?;
    let opened = match place {
        Place::Opened(opened) => opened,
        Place::Unmade(unmade) => unmade.open(&shared)?,
    };
    Ok((shared, opened))
}

/// As [`open`], without making one. Where there is a limit to `patience` others are not waited for in here, nor when it is made: the caller can do that
/// without blocking.
pub(super) fn look(path: PathBuf, patience: Option<Duration>, pages: i32) -> Result<(Shared, Place)> {
    let (path, found) = match find(&path)? {
        Found::Link => {
            let path = resolve(&path)?;
            let found = find(&path)?;
            (path, found)
        }
        found => (path, found),
    };
    if found == Found::Database {
        let connection = checked(&path)?;
        // Until here the file has not been touched, nor anything beside it.
        let shared = Shared::new(path, patience)?;
        set_up(&connection, pages).map_err(|e| shared.error(&e))?;
        check_version(&shared.path, &connection)?;
        return Ok((shared, Place::Opened(Opened { connection, is_new: false, pages })));
    }
    let above = make_folder(&path)?;
    let shared = Shared::new(path, patience)?;
    let unmade = Unmade { above, pages };
    match found {
        Found::Nothing => Ok((shared, Place::Unmade(unmade))),
        _ => unmade.open(&shared).map(|opened| (shared, Place::Opened(opened))),
    }
}

impl Unmade {
    /// Opens it, and makes it if nobody has.
    pub(super) fn open(&self, shared: &Shared) -> Result<Opened> {
        let is_made_here = shared.first.get().is_some();
        let is_new = is_made_here || make(shared, self.above.clone(), Draft::Empty, Image::new, drop)?;
        let connection = checked(&shared.path)?;
        set_up(&connection, self.pages).map_err(|e| shared.error(&e))?;
        Ok(Opened { connection, is_new, pages: self.pages })
    }

    /// Makes it with what `image` gives, unless it is there. Says whether it did.
    pub(super) fn make_with(&self, shared: &Shared, image: impl FnOnce() -> Image) -> Result<bool> {
        make(shared, self.above.clone(), Draft::Filled, image, |file| drop(shared.first.set(ManuallyDrop::new(file))))
    }
}

/// A connection to a file that is ours by its first bytes.
fn checked(path: &Path) -> Result<Connection> {
    let connection = raw(path).map_err(|e| explain(path, &e))?;
    Header::read(&connection).map_err(|e| explain(path, &e))?.check(path)?;
    Ok(connection)
}

fn raw(path: &Path) -> rusqlite::Result<Connection> {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)
}

/// Looks without following a link: what a name leads to is found out once, by [`resolve`].
fn find(path: &Path) -> Result<Found> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Ok(Found::Link),
        // Devices, FIFOs and sockets have no length either, and are not to be written over for that.
        Ok(found) if !found.is_file() => {
            Err(Error::Foreign { path: path.into(), found: format!("it is {}", kind(found.file_type())) })
        }
        Ok(found) if found.len() == 0 => Ok(Found::Nothing),
        Ok(found) => {
            let is_same = |draft: fs::Metadata| (draft.dev(), draft.ino()) == (found.dev(), found.ino());
            let is_found = |draft: &Draft| draft.of(path).symlink_metadata().is_ok_and(is_same);
            let draft = if found.nlink() > 1 { Draft::BOTH.into_iter().find(is_found) } else { None };
            Ok(draft.map_or(Found::Database, Found::Draft))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
        Err(error) => Err(unusable(path, &error)),
    }
}

fn kind(kind: fs::FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

/// Where a link leads. The files beside the database are beside the one that it leads to, so that all who come by any name meet there.
fn resolve(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            Error::Foreign { path: path.into(), found: "a link to a file that is not there".into() }
        }
        _ => unusable(path, &error),
    })
}

/// Makes a new database, and says whether it did: of several processes that come at once, the first does. The name of the folder, in
/// the one `above`, has to be made to last by each. What becomes of the handle is decided under the lock: nobody has another yet, whose locks would go with it.
fn make(
    shared: &Shared,
    above: Option<PathBuf>,
    draft: Draft,
    image: impl FnOnce() -> Image,
    keep: impl FnOnce(File),
) -> Result<bool> {
    let path = &shared.path;
    if shared.patience.is_some() && !shared.reserve()? {
        return Err(shared.locked(Duration::ZERO));
    }
    let _lock = shared.lock()?;
    shared.unsynced().above = above;
    match find(path)? {
        Found::Database => return Ok(false),
        Found::Draft(found) => {
            let connection = raw(path).map_err(|e| explain(path, &e))?;
            restore(path, found, &connection)?;
            complete(path, &connection).map_err(|e| explain(path, &e))?;
            return Ok(false);
        }
        Found::Link => {
            let found = "a link has just taken its place".into();
            return Err(Error::Foreign { path: path.clone(), found });
        }
        // Of one that held something not even the length is left, and what is in the log was written to that. The name goes last: it is what tells.
        Found::Nothing if Draft::Filled.of(path).symlink_metadata().is_ok() => {
            remove_log(path)?;
            let _ = fs::remove_file(Draft::Filled.of(path));
        }
        // A log is written after its database was linked there, and so is the name that tells that this was new taken away.
        Found::Nothing if is_deleted(path) => return Err(Error::LogAlone { path: path.clone() }),
        // What is in the log was written to one that held nothing, and would be laid over what this one holds.
        Found::Nothing if draft == Draft::Filled && has_log(path) => return Ok(false),
        Found::Nothing => {}
    }
    let made = write(path, draft, &image()).inspect_err(|_| drop(fs::remove_file(draft.of(path))));
    let made = made.map_err(|e| unusable(path, &e))?;
    shared.unsynced().draft = true;
    keep(made);
    Ok(true)
}

fn write(path: &Path, draft: Draft, image: &Image) -> io::Result<File> {
    let draft = draft.of(path);
    // Whatever has this name is nobody's, and if it is a link it must not be followed.
    let _ = fs::remove_file(&draft);
    let mut file = private::options().write(true).create_new(true).open(&draft)?;
    private::keep(&file, &file.metadata()?)?;
    image.write(&mut file)?;
    if path.symlink_metadata().is_ok_and(|found| found.is_file() && found.len() == 0) {
        // An empty file.
        fs::remove_file(path)?;
    }
    match fs::hard_link(&draft, path) {
        // Some file systems have no second names.
        Err(error) if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied) => {
            file.sync_all()?;
            fs::rename(&draft, path)?;
        }
        linked => linked?,
    }
    Ok(file)
}

/// Puts the pages of a draft back that a power cut has lost: those that are missing or hold nothing but zeros, which no page in use does. All of them, if
/// it held something that nobody was told of, and without what has been written since.
fn restore(path: &Path, draft: Draft, connection: &Connection) -> Result<()> {
    let image = Image::new();
    let mut found = vec![0; Image::PAGES * image::PAGE_BYTES];
    read(connection, &mut found).map_err(|e| explain(path, &e))?;
    let pages = found.chunks_exact(image::PAGE_BYTES).zip(image.pages()).enumerate();
    let (mut lost, kept): (Vec<_>, Vec<_>) = pages.partition(|(_, (page, _))| page.iter().all(|byte| *byte == 0));
    if lost.is_empty() {
        return Ok(());
    }
    if draft == Draft::Filled {
        lost.extend(kept);
        remove_log(path)?;
    }
    tracing::warn!(path = %path.display(), pages = lost.len(), "a power cut has left a new database in pieces: it is put together");
    let write = || -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        lost.iter().try_for_each(|(number, (_, page))| file.write_all_at(*page, (number * image::PAGE_BYTES) as u64))
    };
    write().map_err(|e| unusable(path, &e))
}

/// Whether anything was written to the log.
pub(super) fn has_log(path: &Path) -> bool {
    fs::metadata(with_suffix(path, LOG)).is_ok_and(|log| log.len() > 0)
}

/// Whether there is a log that was written to one that was there, and was complete.
fn is_deleted(path: &Path) -> bool {
    let is_missing = |path: &Path| matches!(path.symlink_metadata(), Err(e) if e.kind() == io::ErrorKind::NotFound);
    has_log(path) && is_missing(path) && is_missing(&Draft::Empty.of(path))
}

fn remove_log(path: &Path) -> Result<()> {
    match fs::remove_file(with_suffix(path, LOG)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unusable(path, &error)),
        _ => Ok(()),
    }
}

/// Syncs a new database and takes its second name away.
pub(super) fn complete(path: &Path, connection: &Connection) -> rusqlite::Result<()> {
    sync(connection)?;
    forget_draft(path);
    Ok(())
}

/// As [`complete`], of one that this process has made and has a handle on.
pub(super) fn complete_first(path: &Path, file: &File) -> Result<()> {
    let unsynced = |error| Error::Io { path: path.into(), reason: format!("cannot sync it: {error}") };
    file.sync_all().map_err(unsynced)?;
    forget_draft(path);
    Ok(())
}

/// Takes the second name away, whichever it is. Another process may have done it.
fn forget_draft(path: &Path) {
    Draft::BOTH.iter().for_each(|draft| drop(fs::remove_file(draft.of(path))));
}

impl Draft {
    const BOTH: [Self; 2] = [Self::Empty, Self::Filled];

    /// Its name beside the database.
    fn of(self, path: &Path) -> PathBuf {
        with_suffix(
            path,
            match self {
                Self::Empty => "-new",
                Self::Filled => "-first",
            },
        )
    }
}

/// What the first bytes of a database say.
struct Header {
    bytes: [u8; HEADER_BYTES],
}

const HEADER_BYTES: usize = 100;
/// Where SQLite keeps `user_version` and `application_id` in its header.
const VERSION_AT: usize = 60;
const APPLICATION_ID_AT: usize = 68;

impl Header {
    fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let mut bytes = [0; HEADER_BYTES];
        read(connection, &mut bytes)?;
        Ok(Self { bytes })
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

/// Reads the beginning of a database. What is missing of a shorter file is zero.
fn read(connection: &Connection, bytes: &mut [u8]) -> rusqlite::Result<()> {
    let file = file_of(connection);
    // SAFETY: the file is open as long as the connection is, and no more is read than the buffer holds.
    let code = unsafe {
        match file.as_ref().and_then(|open| (*open.pMethods).xRead) {
            Some(read) => read(file, bytes.as_mut_ptr().cast(), bytes.len() as i32, 0),
            None => ffi::SQLITE_CANTOPEN,
        }
    };
    if matches!(code, ffi::SQLITE_OK | ffi::SQLITE_IOERR_SHORT_READ) { Ok(()) } else { Err(failure(code)) }
}

fn sync(connection: &Connection) -> rusqlite::Result<()> {
    let file = file_of(connection);
    // SAFETY: the file is open as long as the connection is.
    let code = unsafe {
        match file.as_ref().and_then(|open| (*open.pMethods).xSync) {
            Some(sync) => sync(file, ffi::SQLITE_SYNC_FULL),
            None => ffi::SQLITE_CANTOPEN,
        }
    };
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(failure(code)) }
}

/// The engine's own handle on the database; null if that is not open. It is read and synced through it because closing another
/// one would let go of every lock that this process has on the file.
fn file_of(connection: &Connection) -> *mut ffi::sqlite3_file {
    let which = ffi::SQLITE_FCNTL_FILE_POINTER;
    let mut file: *mut ffi::sqlite3_file = std::ptr::null_mut();
    // SAFETY: the connection is open and used by nobody else; the engine writes one pointer to where it is asked to. A file
    // whose methods are not set is not open.
    unsafe {
        let found = ffi::sqlite3_file_control(connection.handle(), c"main".as_ptr(), which, (&raw mut file).cast());
        let is_open = found == ffi::SQLITE_OK && file.as_ref().is_some_and(|file| !file.pMethods.is_null());
        if is_open { file } else { std::ptr::null_mut() }
    }
}

fn failure(code: i32) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)
}

/// A further connection to a database that is known to be ours. What it commits survives the process, and need not survive a power cut.
pub(super) fn connection(path: &Path) -> Result<Connection> {
    let open = || {
        let connection = raw(path)?;
        set_up(&connection, CHECKPOINT_PAGES)?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        Ok(connection)
    };
    open().map_err(|e| explain(path, &e))
}

fn set_up(connection: &Connection, pages: i32) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_PATIENCE)?;
    connection.set_prepared_statement_cache_capacity(256);
    checkpoint_after(connection, pages);
    if pages == CHECKPOINT_PAGES {
        // Who stays has thousands of small things to keep, and who leaves at once touches twelve pages of memory for a few of them: see `.cargo/config.toml`.
        // SAFETY: as above; SQLite takes the memory itself.
        unsafe {
            let nowhere = std::ptr::null_mut::<std::ffi::c_void>();
            ffi::sqlite3_db_config(
                connection.handle(),
                ffi::SQLITE_DBCONFIG_LOOKASIDE,
                nowhere,
                SMALL_BYTES,
                SMALL_THINGS,
            );
        }
    }
    // A short-lived process would otherwise pay for moving the log into the database when it leaves.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(())
}

/// Has what it commits moved from the log into the database after so many pages; never, after 0.
pub(super) fn checkpoint_after(connection: &Connection, pages: i32) {
    // SAFETY: the connection is open and used by nobody else. As a statement, this would have to be compiled first.
    unsafe { ffi::sqlite3_wal_autocheckpoint(connection.handle(), pages) };
}

/// Refuses what a later version has made. The header may be older than the log, which a connection reads too.
fn check_version(path: &Path, connection: &Connection) -> Result<()> {
    match connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(|e| explain(path, &e))? {
        schema::VERSION => Ok(()),
        0 => Err(Error::Foreign { path: path.into(), found: "a database without tables".into() }),
        found => Err(Error::Newer { path: path.into(), found, known: schema::VERSION }),
    }
}

/// Makes the folder that the database stands in. If it did not exist, returns the one above, which has to be synced for the name to
/// last.
fn make_folder(path: &Path) -> Result<Option<PathBuf>> {
    let or_here = |path: &Path| if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_owned() };
    let folder = path.parent().map(or_here).unwrap_or_else(|| ".".into());
    match private::make_folder(&folder) {
        Ok(()) => Ok(Some(folder.parent().map(or_here).unwrap_or_else(|| ".".into()))),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(unusable(&folder, &error)),
    }
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

pub(super) fn unusable(path: &Path, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full { path: path.into() },
        io::ErrorKind::NotFound => {
            Error::ReadOnly { path: path.into(), reason: "the folder it would stand in does not exist".into() }
        }
        // Also to look: whoever looks tells others that it is there, and waits for them, through files beside the database.
        io::ErrorKind::ReadOnlyFilesystem => {
            let reason = "its file system is read-only: mount that for writing, or copy the folder to where it can be \
                          written and work there";
            Error::ReadOnly { path: path.into(), reason: reason.into() }
        }
        _ if is_want(error) => Error::io(path, error),
        io::ErrorKind::PermissionDenied => {
            Error::ReadOnly { path: path.into(), reason: private::whose(path).unwrap_or_else(|| error.to_string()) }
        }
        _ => Error::ReadOnly { path: path.into(), reason: error.to_string() },
    }
}

/// What the engine's error means for the one who has to mend it.
pub(super) fn explain(path: &Path, error: &rusqlite::Error) -> Error {
    let path: PathBuf = path.into();
    let code = error.sqlite_error_code();
    if matches!(code, Some(ErrorCode::CannotOpen | ErrorCode::SystemIoFailure))
        && let Some(want) = no_descriptor()
    {
        return want;
    }
    match code {
        Some(ErrorCode::NotADatabase) => Error::Foreign { path, found: "not an SQLite file".into() },
        Some(ErrorCode::DatabaseCorrupt) => Error::Corrupt { path, found: error.to_string() },
        Some(ErrorCode::DiskFull) => Error::Full { path },
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            let reason = private::whose(&path).filter(|_| !is_writable(&path)).unwrap_or_else(|| error.to_string());
            Error::ReadOnly { path, reason }
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            Error::Locked { path, secs: BUSY_PATIENCE.as_secs(), holder: " by another program".into() }
        }
        Some(ErrorCode::SystemIoFailure) => Error::Engine { path, reason: format!("{error}{}", largest_file()) },
        _ => Error::Engine { path, reason: error.to_string() },
    }
}

/// Whether it was for want of a descriptor that something could not be opened: the engine does not tell.
fn no_descriptor() -> Option<Error> {
    let path = Path::new("/dev/null");
    let refused = fs::File::open(path).err().filter(is_want)?;
    Some(Error::io(path, &refused))
}

/// Whether this process may write there, as far as modes and owners say.
fn is_writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// A remark on how large files may be, if there is a limit: the engine does not tell that it has met it.
fn largest_file() -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    limit.map(|most| format!(" (files may have {most} bytes: is 'ulimit -f' too low?)")).unwrap_or_default()
}
