//! The embedded engine: one SQLite file, any number of processes on this machine.
//!
//! A task's immutable part is one row of `tasks`; where it stands is which of `ready`, `delayed`, `held`, `active` and `done` holds
//! its id, so no update ever rewrites a spec and a terminal state can only be reached once. One thread per process has the
//! database (`writer.rs`) and writes in groups: everything that is waiting goes into one transaction, and one `fsync` makes it durable for all.
//! Processes wake each other through a shared page (`bell.rs`) and queue for the write lock in the kernel, so nobody polls.
//! Leases are in that page too (`leases.rs`), so that renewing one takes no lock. They are measured on the monotonic clock: setting the wall
//! clock expires nothing.

mod bell;
mod bulk;
mod chain;
mod claim;
mod clock;
mod control;
mod demand;
mod finish;
mod health;
mod heart;
mod here;
mod image;
mod leases;
mod log;
mod mend;
mod messages;
mod open;
mod output;
mod own;
mod page;
mod private;
mod purge;
mod reclaim;
mod registry;
mod schedules;
mod schema;
mod submit;
mod syncer;
mod tasks;
mod tether;
mod tx;
mod waiting;
mod writer;

use std::{
    fs::File,
    mem::ManuallyDrop,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::{
    Error, Result,
    wait::{FOR_EVER, SAFETY_INTERVAL},
};
use bell::{Bell, Topic};
use leases::Leases;
use page::Page;
use tx::{Fail, Tx};
use writer::{Durability, Writer};

/// A broker in a SQLite file.
pub struct Sqlite {
    shared: Arc<Shared>,
    /// Given up before the thread is waited for.
    writer: Option<Writer>,
    thread: Option<JoinHandle<()>>,
}

/// What the threads of one handle share.
struct Shared {
    path: PathBuf,
    bell: Bell,
    leases: Leases,
    /// How long to wait for other processes, where the wait cannot be given up from outside.
    patience: Option<Duration>,
    unsynced: Mutex<Unsynced>,
    /// A database that this process has made with something in it, as it wrote it. It is never closed: that would let go of every lock that this process has on
    /// the file.
    first: OnceLock<ManuallyDrop<File>>,
    /// Why the log could not be synced, from then on.
    hole: OnceLock<String>,
    sweep: heart::Sweep,
    /// What output is looked up with, once there is any. Whoever has it writes output, and nobody else does.
    outlet: Arc<tokio::sync::Mutex<Option<Connection>>>,
}

/// What of a new database does not last yet.
#[derive(Default)]
struct Unsynced {
    /// The file itself.
    draft: bool,
    /// Why the file could not be synced.
    failure: Option<Error>,
    /// The name of its folder, in this one.
    above: Option<PathBuf>,
}

/// How long a call waits for other processes to let go of the database before it says who holds it.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);
/// The same for a call that blocks its caller, who cannot even be interrupted meanwhile.
const BLOCKED_PATIENCE: Duration = Duration::from_secs(20);

impl Sqlite {
    /// Whether nobody has made a database there, nor left the log of one.
    pub fn is_unmade(path: &Path) -> bool {
        matches!(path.try_exists(), Ok(false)) && !open::has_log(path)
    }

    /// Opens the database at `path`, making it if it is not there.
    pub async fn open(path: &Path) -> Result<Self> {
        let (writer, shared, thread) = Writer::start(path.to_owned()).await?;
        Ok(Self { shared, writer: Some(writer), thread: Some(thread) })
    }

    /// As [`open`](Self::open), for a process that does one thing after another: each call is done on the caller's thread, which blocks
    /// for it, but not while it waits for other processes: there a call can be given up. That saves short commands two switches of thread a
    /// call. A database that is not there is made by the first call.
    pub async fn open_here(path: &Path) -> Result<Self> {
        let (writer, shared) = Writer::here(path).await?;
        Ok(Self { shared, writer: Some(writer), thread: None })
    }

    fn writer(&self) -> &Writer {
        self.writer.as_ref().expect("given up only when the handle is dropped")
    }

    /// Runs `job` in the next group of writes and returns once that is committed.
    async fn write<T, F>(&self, durability: Durability, job: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> Result<T, Fail> + Send + 'static,
    {
        self.writer().until_free().await?;
        self.answer(self.writer().write(durability, job)).await
    }

    /// Runs `query` on one state of the database.
    async fn read<T, F>(&self, query: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Fail> + Send + 'static,
    {
        self.writer().until_open().await?;
        self.answer(self.writer().read(query)).await
    }

    async fn answer<T>(&self, reply: oneshot::Receiver<Result<T>>) -> Result<T> {
        match tokio::time::timeout(LOCK_PATIENCE, reply).await {
            Ok(reply) => reply.unwrap_or(Err(Error::Closed)),
            // The receiver is gone with the timeout, and the thread passes over work that nobody waits for.
            Err(_) => Err(self.shared.locked(LOCK_PATIENCE)),
        }
    }

    /// A wait for `topic`, which listens from now on.
    fn wait(&self, topic: Topic, wait: Duration) -> Wait {
        // Who does not want to wait should not cost a listening thread.
        let rung = if wait.is_zero() { None } else { self.shared.bell.listen(topic) };
        Wait { rung, deadline: tokio::time::Instant::now() + wait.min(FOR_EVER) }
    }
}

/// Waits for the writing thread: it may have to tidy up, and what nobody waits for may still be under way.
impl Drop for Sqlite {
    fn drop(&mut self) {
        drop(self.writer.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A wait for something that may be there when its topic rings.
struct Wait {
    /// Without it, because there is no thread to listen, nothing is heard and all is looked at.
    rung: Option<tokio::sync::watch::Receiver<u32>>,
    deadline: tokio::time::Instant,
}

impl Wait {
    /// Returns when it is worth looking again, with `true`, or when the wait is over, with `false`. `again_in` is when something may
    /// be there without anybody ringing.
    async fn again(&mut self, again_in: Option<Duration>) -> bool {
        let now = tokio::time::Instant::now();
        if self.deadline <= now {
            return false;
        }
        let pause = again_in.unwrap_or(SAFETY_INTERVAL).clamp(Duration::from_millis(1), SAFETY_INTERVAL);
        let until = now + pause.min(self.deadline - now);
        match &mut self.rung {
            Some(rung) => drop(tokio::time::timeout_at(until, rung.changed()).await),
            None => tokio::time::sleep_until(until).await,
        }
        true
    }
}

impl Shared {
    /// Opens the page beside the database, or makes it.
    fn new(path: PathBuf, patience: Option<Duration>) -> Result<Self> {
        let boot = clock::boot();
        let page = Arc::new(Page::open(&path, boot)?);
        let leases = Leases::new(path.clone(), boot, Arc::clone(&page));
        let (unsynced, first, hole) = (Mutex::default(), OnceLock::new(), OnceLock::new());
        let (sweep, outlet) = (heart::Sweep::default(), Arc::default());
        Ok(Self { path, bell: Bell::new(page), leases, patience, unsynced, first, hole, sweep, outlet })
    }

    fn unsynced(&self) -> MutexGuard<'_, Unsynced> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the file of a new database last.
    fn complete(&self, connection: &Connection) -> rusqlite::Result<()> {
        let mut unsynced = self.unsynced();
        if unsynced.draft {
            open::complete(&self.path, connection)?;
            unsynced.draft = false;
        }
        Ok(())
    }

    /// Makes a database last that was made with something in it, and its name.
    fn sync_first(&self) -> Result<()> {
        if let Some(file) = self.first.get() {
            let mut unsynced = self.unsynced();
            if let Some(error) = &unsynced.failure {
                return Err(error.clone());
            }
            if unsynced.draft {
                // The system tells of it once, and has forgotten what it could not write.
                open::complete_first(&self.path, file).inspect_err(|error| unsynced.failure = Some(error.clone()))?;
                unsynced.draft = false;
            }
        }
        self.sync_folder()
    }

    /// Makes the name of a new folder last.
    fn sync_folder(&self) -> Result<()> {
        let mut unsynced = self.unsynced();
        if let Some(above) = &unsynced.above {
            File::open(above).and_then(|folder| folder.sync_all()).map_err(|e| open::unusable(above, &e))?;
            unsynced.above = None;
        }
        Ok(())
    }

    /// Refuses to write behind a sync of the log that has failed.
    ///
    /// The system tells of that once, and takes for written what it could not write: the next sync succeeds without it. Each part of the log vouches for
    /// the one before, so after a power cut nothing is found behind such a hole. To move the log into the database would not mend it: what the system
    /// takes for written may have to be read back from the disk, and SQLite does not check it there. So it is refused for good, and all writes are, not only
    /// those that have to last: a worker that can record no end must not begin anything.
    fn refuse_behind_hole(&self) -> Result<()> {
        let Some(reason) = self.hole.get() else { return Ok(()) };
        let reason = format!(
            "could not be synced ({reason}), and what is written behind that may not last: see to the disk, and start this process again"
        );
        Err(Error::Io { path: open::with_suffix(&self.path, open::LOG), reason })
    }

    fn error(&self, source: &rusqlite::Error) -> Error {
        open::explain(&self.path, source)
    }

    fn fail(&self, fail: Fail) -> Error {
        match fail {
            Fail::Store(source) => self.error(&source),
            Fail::Caller(error) => error,
        }
    }

    /// Takes the right to write ahead, if nobody has it.
    fn reserve(&self) -> Result<bool> {
        self.bell.reserve().map_err(|e| self.unlockable(&e))
    }

    fn unlockable(&self, error: &std::io::Error) -> Error {
        Error::Io { path: self.path.clone(), reason: format!("cannot lock it: {error}") }
    }

    /// Waits for the right to write, among all processes.
    fn lock(&self) -> Result<bell::WriteLock<'_>> {
        let refused = |e| self.unlockable(&e);
        match self.patience {
            None => self.bell.lock().map_err(refused),
            Some(patience) => self.bell.lock_within(patience).map_err(refused)?.ok_or_else(|| self.locked(patience)),
        }
    }

    fn locked(&self, patience: Duration) -> Error {
        let holder = self.bell.holder().map(|pid| format!(" by process {pid}")).unwrap_or_default();
        Error::Locked { path: self.path.clone(), secs: patience.as_secs(), holder }
    }

    /// The folder for output that is too large for a row.
    fn output_folder(&self) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push("-out");
        name.into()
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(Error::Closed))
}
