//! The embedded engine: one SQLite file, any number of processes on this machine.
//!
//! A task's immutable part is one row of `tasks`; where it stands is which of `ready`, `delayed`, `held`, `active` and `done` holds
//! its id, so no update ever rewrites a spec and a terminal state can only be reached once. One thread per process has the
//! database (`writer.rs`) and writes in groups: everything that is waiting goes into one transaction, and one `fsync` makes it durable for all.
//! Processes wake each other through a shared page (`bell.rs`) and queue for the write lock in the kernel, so nobody polls.
//! Leases are in that page too (`leases.rs`), so that renewing one takes no lock. They are measured on the monotonic clock: setting the wall
//! clock expires nothing.

mod bulk_insert;
mod chain;
mod claim;
mod clock;
mod complete;
mod control;
mod file_mode;
mod health;
mod lease;
mod log;
mod messages;
mod notify;
mod open;
mod output;
mod purge;
mod query;
mod reclaim;
mod registry;
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
use shared_state::SharedState;
use tx::{Tx, TxError};
use writer::{Durability, Writer};

/// A broker in a SQLite file.
pub struct Sqlite {
    shared: Arc<HandleState>,
    /// Given up before the thread is waited for.
    writer: Option<Writer>,
    /// Ends with the thread.
    ended: Mutex<mpsc::Receiver<()>>,
}

/// What the threads of one handle share.
struct HandleState {
    place: DatabaseLocation,
    /// What it is called in errors.
    path: PathBuf,
    /// The directory for output that is too large for a row.
    output: PathBuf,
    /// Device and number of the database, once it is open: another file may have its name by now.
    identity: Option<(u64, u64)>,
    /// Whether the file system refuses all writes.
    is_read_only: bool,
    bell: Notifier,
    leases: LeaseTable,
    /// Why the log could not be synced, from then on.
    hole: OnceLock<String>,
    sweep: lease::renewer::Reaper,
    /// What output is looked up with, once there is any. Whoever has it writes output, and nobody else does.
    outlet: Arc<tokio::sync::Mutex<Option<Connection>>>,
}

/// How long a call waits for other processes to let go of the database before it says who holds it.
const LOCK_PATIENCE: Duration = Duration::from_secs(20);
/// How long a handle that is dropped waits for its thread, which may stand still for the write lock.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);

impl Sqlite {
    /// Whether nobody has made a database there, nor left the log of one.
    pub fn is_unmade(path: &Path) -> bool {
        matches!(path.try_exists(), Ok(false)) && !open::has_log(path)
    }

    /// Opens the database at `path`, making it if it is not there.
    pub async fn open(path: &Path) -> Result<Self> {
        Self::start(DatabaseLocation::File(path.to_owned())).await
    }

    /// A database of this process, which is gone with the handle. Output that is too large for a row is in the directory for temporary files meanwhile.
    pub async fn in_memory() -> Result<Self> {
        Self::start(DatabaseLocation::Memory(clock::unique())).await
    }

    async fn start(place: DatabaseLocation) -> Result<Self> {
        let (writer, shared, ended) = Writer::start(place).await?;
        Ok(Self {
            shared,
            writer: Some(writer),
            ended: Mutex::new(ended),
        })
    }

    fn writer(&self) -> &Writer {
        self.writer
            .as_ref()
            .expect("given up only when the handle is dropped")
    }

    /// Runs `job` in the next group of writes and returns once that is committed.
    async fn write<T, F>(&self, durability: Durability, job: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> Result<T, TxError> + Send + 'static,
    {
        self.answer(self.writer().write(durability, job)).await
    }

    /// Runs `query` on one state of the database.
    async fn read<T, F>(&self, query: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, TxError> + Send + 'static,
    {
        self.answer(self.writer().read(query)).await
    }

    async fn answer<T>(&self, reply: oneshot::Receiver<Result<T>>) -> Result<T> {
        match tokio::time::timeout(LOCK_PATIENCE, reply).await {
            Ok(reply) => reply.unwrap_or(Err(Error::Closed)),
            // The receiver is gone with the timeout, and the thread passes over work that nobody waits for.
            Err(_) => Err(self.shared.locked()),
        }
    }

    /// A wait for `topic`, which listens from now on.
    fn wait(&self, topic: Topic, wait: Duration) -> TopicWait {
        // Who does not want to wait should not cost a listening thread.
        let rung = if wait.is_zero() {
            None
        } else {
            self.shared.bell.listen(topic)
        };
        TopicWait {
            rung,
            deadline: tokio::time::Instant::now() + wait.min(FOREVER),
        }
    }
}

/// Waits for the writing thread: it may have to tidy up, and what no caller waits for may still be under way.
impl Drop for Sqlite {
    fn drop(&mut self) {
        drop(self.writer.take());
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = ended.recv_timeout(LEAVE_PATIENCE);
    }
}

/// A wait for something that may be there when its topic rings.
struct TopicWait {
    /// Without it, because there is no thread to listen, nothing is heard and all is looked at.
    rung: Option<tokio::sync::watch::Receiver<u32>>,
    deadline: tokio::time::Instant,
}

impl TopicWait {
    /// Returns when it is worth looking again, with `true`, or when the wait is over, with `false`. `again_in` is when something may
    /// be there without anybody ringing.
    async fn again(&mut self, again_in: Option<Duration>) -> bool {
        let now = tokio::time::Instant::now();
        if self.deadline <= now {
            return false;
        }
        let pause = again_in
            .unwrap_or(SAFETY_INTERVAL)
            .clamp(Duration::from_millis(1), SAFETY_INTERVAL);
        let until = now + pause.min(self.deadline - now);
        match &mut self.rung {
            Some(rung) => drop(tokio::time::timeout_at(until, rung.changed()).await),
            None => tokio::time::sleep_until(until).await,
        }
        true
    }
}

impl HandleState {
    /// Opens the page of the database, or makes it.
    fn new(place: DatabaseLocation) -> Result<Self> {
        let (path, boot) = (place.path(), clock::boot());
        let is_read_only =
            matches!(&place, DatabaseLocation::File(path) if open::is_read_only(path));
        let page = Arc::new(match &place {
            DatabaseLocation::File(path) if is_read_only => SharedState::copy(path, boot)?,
            DatabaseLocation::File(path) => SharedState::open(path, boot)?,
            DatabaseLocation::Memory(_) => SharedState::in_memory(boot)?,
        });
        let output = match &place {
            DatabaseLocation::File(path) => open::with_suffix(path, "-out"),
            DatabaseLocation::Memory(name) => {
                std::env::temp_dir().join(format!("raddle-{name}-out"))
            }
        };
        let leases = LeaseTable::new(path.clone(), boot, Arc::clone(&page));
        let (hole, sweep, outlet) = (
            OnceLock::new(),
            lease::renewer::Reaper::default(),
            Arc::default(),
        );
        Ok(Self {
            place,
            path,
            output,
            identity: None,
            is_read_only,
            bell: Notifier::new(page),
            leases,
            hole,
            sweep,
            outlet,
        })
    }

    /// Refuses to go on with a database that has lost its name. No other process finds it there, so nothing that is done to it is ever seen.
    fn check_in_place(&self) -> Result<()> {
        let Some(identity) = self.identity else {
            return Ok(());
        };
        match open::identity(&self.path) {
            Ok(found) if found == identity => Ok(()),
            // Why it cannot be looked at has nothing to do with which file it is.
            Err(error)
                if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Ok(())
            }
            _ => {
                let reason = "was deleted or replaced while this process had it open: start this process again, to work with what is there now";
                Err(Error::Io {
                    path: self.path.clone(),
                    reason: reason.into(),
                })
            }
        }
    }

    /// Refuses writes that could not be made, or would not last.
    fn check_writable(&self) -> Result<()> {
        self.check_in_place()?;
        if self.is_read_only {
            Err(open::read_only(&self.path))
        } else {
            self.refuse_behind_hole()
        }
    }

    /// Refuses to write behind a sync of the log that has failed.
    ///
    /// The system tells of that once, and takes for written what it could not write: the next sync succeeds without it. Each part of the log vouches for
    /// the one before, so after a power cut nothing is found behind such a hole. To move the log into the database would not mend it: what the system
    /// takes for written may have to be read back from the disk, and SQLite does not check it there. So it is refused for good, and all writes are, not only
    /// those that have to last: a worker that can record no end must not begin anything.
    fn refuse_behind_hole(&self) -> Result<()> {
        let Some(reason) = self.hole.get() else {
            return Ok(());
        };
        let reason = format!(
            "could not be synced ({reason}), and what is written behind that may not last: see to the disk, and start this process again"
        );
        Err(Error::Io {
            path: open::with_suffix(&self.path, open::LOG),
            reason,
        })
    }

    /// What a failed transaction means. One that could not be synced is the last of this process.
    fn failed(&self, source: &rusqlite::Error) -> Error {
        let unsynced = [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC];
        if source
            .sqlite_error()
            .is_none_or(|error| !unsynced.contains(&error.extended_code))
        {
            return self.error(source);
        }
        let reason = self.hole.get_or_init(|| source.to_string()).clone();
        Error::Unsynced {
            path: self.path.clone(),
            reason,
        }
    }

    fn error(&self, source: &rusqlite::Error) -> Error {
        open::explain(&self.path, source)
    }

    fn fail(&self, fail: TxError) -> Error {
        match fail {
            TxError::Store(source) => self.error(&source),
            TxError::Caller(error) => error,
        }
    }

    /// Waits for the right to write, among all processes.
    fn lock(&self) -> Result<notify::WriteLock<'_>> {
        let refused = |e| Error::Io {
            path: self.path.clone(),
            reason: format!("cannot lock it: {e}"),
        };
        self.bell.lock().map_err(refused)
    }

    fn locked(&self) -> Error {
        let holder = self
            .bell
            .holder()
            .map(|pid| format!(" by process {pid}"))
            .unwrap_or_default();
        Error::Locked {
            path: self.path.clone(),
            secs: LOCK_PATIENCE.as_secs(),
            holder,
        }
    }

    fn output_directory(&self) -> PathBuf {
        self.output.clone()
    }
}

impl Drop for HandleState {
    fn drop(&mut self) {
        if let DatabaseLocation::Memory(_) = self.place {
            let _ = std::fs::remove_dir_all(&self.output);
        }
    }
}
