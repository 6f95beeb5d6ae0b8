//! The SQLite engine: one database file, any number of processes on one machine.
//!
//! A task's immutable part is one row of `tasks`. Its status is which of the tables `ready`,
//! `delayed`, `paused`, `active` and `finished` holds its id, so no update rewrites a spec, and a
//! final state is reached once. One thread per process owns the connection (`writer.rs`) and
//! commits in groups: all pending writes share one transaction and one `fsync`.
//!
//! Processes notify each other through a shared mapping (`notify.rs`) and queue for the write lock
//! in the kernel (`flock`), so no process polls. Leases are in the same mapping (`lease.rs`), so a
//! renewal takes no lock; they use the monotonic clock, so setting the wall clock expires nothing.

mod bulk_insert;
mod chain;
mod claim;
mod clock;
mod complete;
mod control;
mod counts;
mod file_mode;
mod health;
mod lease;
mod log;
mod messages;
mod notify;
mod open;
mod operations;
mod output;
mod purge;
mod query;
mod queue_pause;
mod reader;
mod reclaim;
mod registry;
mod rollups;
mod schedule;
mod schema;
mod shared_state;
mod submit;
mod submit_and_claim;
mod tx;
mod wal_index;
mod writer;

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError, mpsc},
    time::Duration,
};

use rusqlite::{Connection, ffi};
use tokio::sync::oneshot;

use lease::LeaseTable;
use notify::{Notifier, Topic};
use open::DatabaseLocation;
use raddle_broker::{
    Error, Result,
    engine::{FOREVER, SAFETY_INTERVAL},
};
use reader::Reader;
use shared_state::SharedState;
use tx::{Tx, TxError};
use writer::{Durability, Writer};

/// A broker in a SQLite file.
pub struct Sqlite {
    shared: Arc<HandleState>,
    reader: Reader,
    /// Dropped before `Drop` waits for the thread.
    writer: Option<Writer>,
    /// Disconnected when the thread ends.
    ended: Mutex<mpsc::Receiver<()>>,
}

/// State that the threads of one handle share.
struct HandleState {
    location: DatabaseLocation,
    /// The name of the database in errors.
    path: PathBuf,
    /// The directory for output that is too large for a row.
    output: PathBuf,
    /// Device and inode of the database once it is open: another file may get its name later.
    identity: Option<(u64, u64)>,
    /// Whether the file system is read-only.
    is_read_only: bool,
    notifier: Notifier,
    leases: LeaseTable,
    /// Why an `fsync` of the WAL failed. All writes are refused from then on.
    poisoned: OnceLock<String>,
    reaper: lease::renewer::Reaper,
    /// The connection for output, opened on first use. Its holder is the only writer of output
    /// files.
    output_connection: Arc<tokio::sync::Mutex<Option<Connection>>>,
}

/// How long a call waits for the write lock before it fails and names the holder.
const LOCK_TIMEOUT: Duration = Duration::from_secs(20);
/// How long dropping a handle waits for the writer thread, which may be blocked on the write lock.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

impl Sqlite {
    /// Whether there is no database at `path`, and no WAL of one.
    pub fn is_missing(path: &Path) -> bool {
        matches!(path.try_exists(), Ok(false)) && !open::has_log(path)
    }

    /// Opens the database at `path`, and creates it if it does not exist.
    pub async fn open(path: &Path) -> Result<Self> {
        Self::start(DatabaseLocation::File(path.to_owned())).await
    }

    /// A private database that is deleted with the handle. Large output goes to the directory for
    /// temporary files.
    pub async fn in_memory() -> Result<Self> {
        Self::start(DatabaseLocation::Memory(clock::unique())).await
    }

    async fn start(location: DatabaseLocation) -> Result<Self> {
        let (writer, shared, ended) = Writer::start(location).await?;
        Ok(Self {
            reader: Reader::new(Arc::clone(&shared)),
            shared,
            writer: Some(writer),
            ended: Mutex::new(ended),
        })
    }

    fn writer(&self) -> &Writer {
        self.writer
            .as_ref()
            .expect("taken only when the handle is dropped")
    }

    /// Runs `job` in the next write group and returns once it is committed.
    async fn write<T, F>(&self, durability: Durability, job: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> Result<T, TxError> + Send + 'static,
    {
        self.await_reply(self.writer().write(durability, job)).await
    }

    /// Runs `query` on one snapshot of the database, on the reader thread.
    async fn read<T, F>(&self, query: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, TxError> + Send + 'static,
    {
        match self.reader.read(query) {
            Ok(reply) => self.await_reply(reply).await,
            Err(query) => self.check_first(query).await,
        }
    }

    /// Runs `query`, which precedes a write and takes microseconds, between two write groups: a
    /// process that only writes needs no reader thread.
    async fn check_first<T, F>(&self, query: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, TxError> + Send + 'static,
    {
        self.await_reply(self.writer().read(query)).await
    }

    async fn await_reply<T>(&self, reply: oneshot::Receiver<Result<T>>) -> Result<T> {
        match tokio::time::timeout(LOCK_TIMEOUT, reply).await {
            Ok(reply) => reply.unwrap_or(Err(Error::Closed)),
            // The timeout drops the receiver, and the writer skips jobs whose receiver is gone.
            Err(_) => Err(self.shared.lock_timeout_error()),
        }
    }

    /// Subscribes to `topic` from now on.
    fn wait(&self, topic: Topic, wait: Duration) -> TopicWait {
        // A call that does not wait must not start the listener thread.
        let changes = if wait.is_zero() {
            None
        } else {
            self.shared.notifier.subscribe(topic)
        };
        TopicWait {
            changes,
            deadline: tokio::time::Instant::now() + wait.min(FOREVER),
        }
    }
}

/// Waits for the writer thread, which may still run detached writes and the final checkpoint.
impl Drop for Sqlite {
    fn drop(&mut self) {
        drop(self.writer.take());
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = ended.recv_timeout(CLOSE_TIMEOUT);
    }
}

/// Waits for notifications of a topic.
struct TopicWait {
    /// `None` if no listener thread could be started; then the wait polls.
    changes: Option<tokio::sync::watch::Receiver<u32>>,
    deadline: tokio::time::Instant,
}

impl TopicWait {
    /// Waits until it is worth checking again and returns `true`, or `false` when the wait is over.
    /// `again_in` is when something becomes available without a notification.
    async fn next(&mut self, again_in: Option<Duration>) -> bool {
        let now = tokio::time::Instant::now();
        if self.deadline <= now {
            return false;
        }
        let pause = again_in
            .unwrap_or(SAFETY_INTERVAL)
            .clamp(Duration::from_millis(1), SAFETY_INTERVAL);
        let until = now + pause.min(self.deadline - now);
        match &mut self.changes {
            Some(changes) => drop(tokio::time::timeout_at(until, changes.changed()).await),
            None => tokio::time::sleep_until(until).await,
        }
        true
    }
}

impl HandleState {
    /// Maps the state file of the database, and creates it if it does not exist.
    fn new(location: DatabaseLocation) -> Result<Self> {
        let (path, boot) = (location.path(), clock::boot());
        let is_read_only =
            matches!(&location, DatabaseLocation::File(path) if open::is_read_only(path));
        let page = Arc::new(match &location {
            DatabaseLocation::File(path) if is_read_only => SharedState::copy(path, boot)?,
            DatabaseLocation::File(path) => SharedState::open(path, boot)?,
            DatabaseLocation::Memory(_) => SharedState::in_memory(boot)?,
        });
        let output = match &location {
            DatabaseLocation::File(path) => open::with_suffix(path, "-out"),
            DatabaseLocation::Memory(name) => {
                std::env::temp_dir().join(format!("raddle-{name}-out"))
            }
        };
        let leases = LeaseTable::new(path.clone(), boot, Arc::clone(&page));
        let (poisoned, reaper, output_connection) = (
            OnceLock::new(),
            lease::renewer::Reaper::default(),
            Arc::default(),
        );
        Ok(Self {
            location,
            path,
            output,
            identity: None,
            is_read_only,
            notifier: Notifier::new(page),
            leases,
            poisoned,
            reaper,
            output_connection,
        })
    }

    /// Fails if the database file was deleted or replaced: no other process would see what is
    /// written to it.
    fn check_not_replaced(&self) -> Result<()> {
        let Some(identity) = self.identity else {
            return Ok(());
        };
        match open::identity(&self.path) {
            Ok(found) if found == identity => Ok(()),
            // An unreadable directory does not mean that the file was replaced.
            Err(error)
                if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Ok(())
            }
            _ => {
                let reason = "was deleted or replaced while this process had it open: restart this process to use the file that is there now";
                Err(Error::Io {
                    path: self.path.clone(),
                    reason: reason.into(),
                })
            }
        }
    }

    /// Runs `query` on one snapshot of the database.
    fn read_snapshot<T>(
        &self,
        connection: &Connection,
        query: impl FnOnce(&Connection) -> Result<T, TxError>,
    ) -> Result<T> {
        self.check_not_replaced()?;
        let snapshot = connection
            .unchecked_transaction()
            .map_err(|e| self.error(&e))?;
        query(&snapshot).map_err(|fail| self.job_error(fail))
    }

    /// Fails if writes are impossible, or would not be durable.
    fn check_writable(&self) -> Result<()> {
        self.check_not_replaced()?;
        if self.is_read_only {
            Err(open::read_only(&self.path))
        } else {
            self.refuse_after_failed_sync()
        }
    }

    /// Refuses all writes after an `fsync` of the WAL has failed.
    ///
    /// The kernel reports a write-back error once and then marks the pages clean, so the next
    /// `fsync` succeeds without them. WAL frames are checksummed in a chain, so after a power cut
    /// nothing behind the lost pages is recovered. A checkpoint does not help: SQLite may have to
    /// read the lost pages back from the disk, and does not verify them there. Writes of all
    /// durability classes are refused, because a worker that cannot record the end of an attempt
    /// must not begin one.
    fn refuse_after_failed_sync(&self) -> Result<()> {
        let Some(reason) = self.poisoned.get() else {
            return Ok(());
        };
        let reason = format!(
            "could not be synced ({reason}), so later writes may be lost in a power cut: check the disk, then restart this process"
        );
        Err(Error::Io {
            path: open::with_suffix(&self.path, open::LOG),
            reason,
        })
    }

    /// Maps a failed commit to an error. A failed `fsync` also refuses all later writes of this
    /// process.
    fn commit_error(&self, source: &rusqlite::Error) -> Error {
        let unsynced = [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC];
        if source
            .sqlite_error()
            .is_none_or(|error| !unsynced.contains(&error.extended_code))
        {
            return self.error(source);
        }
        let reason = self.poisoned.get_or_init(|| source.to_string()).clone();
        Error::Unsynced {
            path: self.path.clone(),
            reason,
        }
    }

    fn error(&self, source: &rusqlite::Error) -> Error {
        open::explain(&self.path, source)
    }

    fn job_error(&self, fail: TxError) -> Error {
        match fail {
            TxError::Store(source) => self.error(&source),
            TxError::Caller(error) => error,
        }
    }

    /// Takes the write lock, which excludes all other processes.
    fn lock_for_writing(&self) -> Result<notify::WriteLock<'_>> {
        let refused = |e| Error::Io {
            path: self.path.clone(),
            reason: format!("cannot lock the database: {e}"),
        };
        self.notifier.lock().map_err(refused)
    }

    fn lock_timeout_error(&self) -> Error {
        let holder = self
            .notifier
            .holder()
            .map(|pid| format!(" by process {pid}"))
            .unwrap_or_default();
        Error::Locked {
            path: self.path.clone(),
            secs: LOCK_TIMEOUT.as_secs(),
            holder,
        }
    }

    fn output_directory(&self) -> PathBuf {
        self.output.clone()
    }
}

impl Drop for HandleState {
    fn drop(&mut self) {
        if let DatabaseLocation::Memory(_) = self.location {
            let _ = std::fs::remove_dir_all(&self.output);
        }
    }
}
