//! The one owner of the database in this process: group commit.
//!
//! Usually it is a thread. A process that does one thing after another and waits for each has no use for that: there the owner works on
//! the caller's thread, and saves two switches for every call.
//!
//! Writes that have come in while the last group was committed form the next one. They share a transaction. What has to survive a power
//! cut is passed on to the [`Syncer`]; the other replies go out after the commit. Reads come in between, without the write lock. Calls wait for their
//! replies, so the queue is never longer than the number of callers, and the channel needs no bound of its own.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::{
    Shared,
    bell::Topics,
    finish,
    here::Here,
    image::Image,
    leases::Leases,
    open::{self, Opened},
    syncer::{Committed, Syncer},
    tx::{Cache, Fail, Tx},
};
use crate::{Error, Result};

/// What must have happened when a write returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Durability {
    /// The commit survives the end of the process. A power cut may undo it: a task is claimed again, never lost.
    Process,
    /// The commit survives a power cut.
    Power,
}

/// Gives work to the owner.
#[derive(Clone)]
pub(super) enum Writer {
    /// On a thread of its own.
    Thread(mpsc::UnboundedSender<Work>),
    /// On the thread of whoever asks.
    Here(Here),
}

/// What the owner is asked to do.
pub(super) enum Work {
    Write(Box<dyn Job>),
    Other(Other),
}

/// What is done between two groups of writes, without the write lock.
pub(super) type Other = Box<dyn FnOnce(&mut Scribe) + Send>;

/// One call's part of a transaction.
pub(super) trait Job: Send {
    fn durability(&self) -> Durability;
    fn is_wanted(&self) -> bool;
    fn apply(&mut self, tx: &mut Tx<'_>) -> rusqlite::Result<()>;
    fn reply(self: Box<Self>, committed: Result<()>);
}

struct Call<T, U, F, G> {
    durability: Durability,
    work: Option<F>,
    outcome: Option<Result<T>>,
    /// What to make of the outcome once it is committed.
    deliver: G,
    reply: oneshot::Sender<Result<U>>,
}

/// Enough to amortise an `fsync` to nothing, and few enough that nobody waits long for the others.
const GROUP: usize = 256;
/// After so long no other call becomes part of a transaction: other processes wait for the lock. One call is never cut in two, for it
/// happens as a whole or not at all; who submits very many tasks does it in several.
const LONGEST_GROUP: Duration = Duration::from_millis(250);
/// Reading so much takes less than a spawn does.
const LONG_LOG_BYTES: u64 = 1024 * 1024;
/// A process that makes a database and no more transactions than these leaves it to the next to sync it.
const LEFT_UNSYNCED: u64 = 2;
const STACK: usize = 512 * 1024;

impl Writer {
    /// Starts the thread, which opens the database. It ends when every clone of the writer is gone.
    pub(super) async fn start(path: PathBuf) -> Result<(Self, Arc<Shared>, JoinHandle<()>)> {
        let (work, queue) = mpsc::unbounded_channel();
        let (opened, open) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("sqlite".into())
            .stack_size(STACK)
            .spawn(move || match open::open(path, open::CHECKPOINT_PAGES) {
                Ok((shared, database)) => {
                    let shared = Arc::new(shared);
                    let scribe = Scribe::new(Arc::clone(&shared), database);
                    let _ = opened.send(Ok(shared));
                    scribe.run(queue);
                }
                Err(error) => drop(opened.send(Err(error))),
            })
            .map_err(|error| Error::no_thread(&error))?;
        let shared = open.await.unwrap_or(Err(Error::Closed))?;
        Ok((Self::Thread(work), shared, thread))
    }

    /// Opens the database for a process that waits for each call, if there is one.
    pub(super) async fn here(path: &Path) -> Result<(Self, Arc<Shared>)> {
        Here::look(path).await.map(|(here, shared)| (Self::Here(here), shared))
    }

    /// Has the database there, in a process that makes it when it is first needed.
    pub(super) async fn until_open(&self) -> Result<()> {
        if let Self::Here(here) = self { here.until_open().await } else { Ok(()) }
    }

    /// Waits for others to let go of the database, in a process whose calls block: once begun, they cannot be interrupted.
    pub(super) async fn until_free(&self) -> Result<()> {
        if let Self::Here(here) = self { here.until_free().await } else { Ok(()) }
    }

    /// Makes the database with something in it, which `first` gives, in a process that has found none. Nothing elsewhere.
    pub(super) async fn begin_with<T>(
        &self,
        first: impl FnOnce(&Leases) -> Result<Option<(T, Image)>>,
    ) -> Result<Option<T>> {
        if let Self::Here(here) = self { here.begin_with(first).await } else { Ok(None) }
    }

    /// Has `job` done in the next group of writes.
    pub(super) fn write<T, F>(&self, durability: Durability, job: F) -> oneshot::Receiver<Result<T>>
    where
        T: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> Result<T, Fail> + Send + 'static,
    {
        self.write_and_deliver(durability, job, |value| value)
    }

    /// As [`write`](Self::write), with something to be done to the outcome when it is committed, and only then.
    pub(super) fn write_and_deliver<T, U, F, G>(
        &self,
        durability: Durability,
        job: F,
        deliver: G,
    ) -> oneshot::Receiver<Result<U>>
    where
        T: Send + 'static,
        U: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> Result<T, Fail> + Send + 'static,
        G: FnOnce(T) -> U + Send + 'static,
    {
        let (reply, receiver) = oneshot::channel();
        self.send(Work::Write(Box::new(Call { durability, work: Some(job), outcome: None, deliver, reply })));
        receiver
    }

    /// As [`write`](Self::write), for what has to be done when nobody is left to wait for it.
    pub(super) fn write_unattended<F>(&self, durability: Durability, job: F)
    where
        F: FnOnce(&mut Tx<'_>) -> Result<(), Fail> + Send + 'static,
    {
        let work = Work::Write(Box::new(Errand { durability, work: Some(job) }));
        match self {
            Self::Thread(_) => self.send(work),
            // Whoever holds it may be the one that asks. What is left undone is made good when its worker leaves.
            Self::Here(here) => here.perform_if_free(work),
        }
    }

    /// Has `query` asked between two groups of writes, on one state of the database.
    pub(super) fn read<T, F>(&self, query: F) -> oneshot::Receiver<Result<T>>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Fail> + Send + 'static,
    {
        let (reply, receiver) = oneshot::channel();
        self.send(Work::Other(Box::new(move |Scribe { shared, connection, .. }| {
            if reply.is_closed() {
                return;
            }
            let snapshot = connection.unchecked_transaction().map_err(|e| shared.error(&e));
            let found = snapshot.and_then(|snapshot| query(&snapshot).map_err(|fail| shared.fail(fail)));
            let _ = reply.send(found);
        })));
        receiver
    }

    /// Has everything made durable that was written before.
    pub(super) fn sync(&self) -> oneshot::Receiver<Result<()>> {
        let (reply, receiver) = oneshot::channel();
        if let Self::Here(here) = self
            && here.is_unopened()
        {
            // What it was made with is synced by whoever asks.
            drop(reply.send(Ok(())));
            return receiver;
        }
        self.send(Work::Other(Box::new(move |scribe| {
            if scribe.is_unsynced {
                let jobs: Vec<Box<dyn Job>> = vec![Box::new(Synced(reply))];
                scribe.is_unsynced = false;
                scribe.syncer.settle(Committed { topics: Topics::default(), jobs }, false);
            } else {
                drop(reply.send(scribe.shared.refuse_behind_hole()));
            }
        })));
        receiver
    }

    /// Makes ready for the end of an attempt, where the caller would have to wait for that. On a thread of its own it takes nobody's time.
    pub(super) fn make_ready(&self) {
        if let Self::Here(here) = self {
            here.make_ready();
        }
    }

    fn send(&self, work: Work) {
        match self {
            // When the thread is gone the work is dropped with its sender, which the receiver reports as closed.
            Self::Thread(queue) => drop(queue.send(work)),
            Self::Here(here) => here.perform(work),
        }
    }
}

/// Waits for what was written before, and writes nothing itself.
struct Synced(oneshot::Sender<Result<()>>);

impl Job for Synced {
    fn durability(&self) -> Durability {
        Durability::Power
    }

    fn is_wanted(&self) -> bool {
        !self.0.is_closed()
    }

    fn apply(&mut self, _: &mut Tx<'_>) -> rusqlite::Result<()> {
        Ok(())
    }

    fn reply(self: Box<Self>, committed: Result<()>) {
        let _ = self.0.send(committed);
    }
}

/// A job that nobody waits for.
struct Errand<F> {
    durability: Durability,
    work: Option<F>,
}

impl<F> Job for Errand<F>
where
    F: FnOnce(&mut Tx<'_>) -> Result<(), Fail> + Send,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn is_wanted(&self) -> bool {
        true
    }

    fn apply(&mut self, tx: &mut Tx<'_>) -> rusqlite::Result<()> {
        let work = self.work.take().expect("a job is applied once");
        match work(tx) {
            Ok(()) => Ok(()),
            Err(Fail::Store(error)) => Err(error),
            Err(Fail::Caller(error)) => {
                tracing::warn!(%error, "a write that nobody waits for was refused");
                Ok(())
            }
        }
    }

    fn reply(self: Box<Self>, committed: Result<()>) {
        if let Err(error) = committed {
            tracing::warn!(%error, "a write that nobody waits for failed");
        }
    }
}

impl<T, U, F, G> Job for Call<T, U, F, G>
where
    T: Send,
    U: Send,
    F: FnOnce(&mut Tx<'_>) -> Result<T, Fail> + Send,
    G: FnOnce(T) -> U + Send,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn is_wanted(&self) -> bool {
        !self.reply.is_closed()
    }

    fn apply(&mut self, tx: &mut Tx<'_>) -> rusqlite::Result<()> {
        let work = self.work.take().expect("a job is applied once");
        self.outcome = Some(match work(tx) {
            Ok(value) => Ok(value),
            Err(Fail::Caller(error)) => Err(error),
            Err(Fail::Store(error)) => return Err(error),
        });
        Ok(())
    }

    fn reply(self: Box<Self>, committed: Result<()>) {
        let Self { outcome, deliver, reply, .. } = *self;
        let _ = reply.send(committed.and_then(|()| outcome.unwrap_or(Err(Error::Closed))).map(deliver));
    }
}

/// The owner.
pub(super) struct Scribe {
    /// First, so that it is the first to end: those who wait are told while all else is there.
    syncer: Syncer,
    /// Before what is shared, which may hold the file open.
    connection: Connection,
    shared: Arc<Shared>,
    cache: Cache,
    /// What the connection is set to.
    synchronous: Option<Synchronous>,
    /// How long the log gets before it is moved into the database.
    pages: i32,
    /// Whether it has made the database.
    is_new: bool,
    /// How many transactions it has made.
    commits: u64,
    /// Whether there are commits that the syncer has not been told of.
    is_unsynced: bool,
}

/// What SQLite syncs by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Synchronous {
    /// Nothing. For the first commit to a new database alone: there is nothing yet that could be damaged.
    Off,
    /// What keeps the database whole. Commits that have to last are the [`Syncer`]'s.
    Normal,
}

impl Scribe {
    pub(super) fn new(shared: Arc<Shared>, database: Opened) -> Self {
        let Opened { connection, is_new, pages } = database;
        let syncer = Syncer::new(Arc::clone(&shared));
        let (cache, synchronous) = (Cache::default(), None);
        Self { shared, connection, cache, synchronous, pages, syncer, is_new, commits: 0, is_unsynced: false }
    }

    fn run(mut self, mut queue: mpsc::UnboundedReceiver<Work>) {
        while let Some(work) = queue.blocking_recv() {
            // Who asks for one thing often asks for another with the same breath: together they are one transaction.
            thread::yield_now();
            self.perform(work, Some(&mut queue));
        }
    }

    /// Compiles what the end of an attempt asks of the database.
    pub(super) fn make_ready(&mut self) {
        let _ = self.choose_synchronous();
        let _ = finish::make_ready(&self.connection);
    }

    /// Does one piece of work; writes take along what else waits in the queue.
    pub(super) fn perform(&mut self, work: Work, queue: Option<&mut mpsc::UnboundedReceiver<Work>>) {
        let mut others: Vec<Other> = Vec::new();
        match work {
            Work::Other(other) => others.push(other),
            Work::Write(job) => self.write(job, queue, &mut others),
        }
        others.into_iter().for_each(|other| other(self));
    }

    fn write(
        &mut self,
        first: Box<dyn Job>,
        mut queue: Option<&mut mpsc::UnboundedReceiver<Work>>,
        others: &mut Vec<Other>,
    ) {
        let mut group = vec![first];
        loop {
            match self.commit(&mut group, queue.as_deref_mut(), others) {
                Ok((topics, done)) => {
                    let committed = Committed { topics, jobs: group.drain(..done).collect() };
                    if committed.jobs.iter().any(|job| job.durability() == Durability::Power) {
                        self.is_unsynced = false;
                        let others_wait = queue.as_ref().is_some_and(|queue| !queue.is_empty());
                        self.syncer.settle(committed, others_wait);
                    } else {
                        self.is_unsynced |= !committed.jobs.is_empty();
                        committed.tell(&self.shared, &Ok(()));
                    }
                }
                Err(error) => {
                    // What a rolled-back transaction had put into the cache may not exist.
                    self.cache = Cache::default();
                    group.drain(..).for_each(|job| job.reply(Err(error.clone())));
                }
            }
            if group.is_empty() {
                return;
            }
            // Whoever waits for the lock is awake by now, and comes first if this one lets it.
            thread::yield_now();
        }
    }

    /// Commits the first jobs of a group, and says how many.
    fn commit(
        &mut self,
        group: &mut Vec<Box<dyn Job>>,
        mut queue: Option<&mut mpsc::UnboundedReceiver<Work>>,
        others: &mut Vec<Other>,
    ) -> Result<(Topics, usize)> {
        let shared = Arc::clone(&self.shared);
        shared.refuse_behind_hole()?;
        let _lock = shared.lock()?;
        // The group is closed only now: others may have come while this one waited for the lock.
        while group.len() < GROUP
            && let Some(Ok(work)) = queue.as_mut().map(|queue| queue.try_recv())
        {
            match work {
                Work::Write(job) => group.push(job),
                Work::Other(other) => others.push(other),
            }
        }
        group.retain(|job| job.is_wanted());
        if group.is_empty() {
            return Ok((Topics::default(), 0));
        }
        self.transact(group).map_err(|e| shared.error(&e))
    }

    fn transact(&mut self, group: &mut [Box<dyn Job>]) -> rusqlite::Result<(Topics, usize)> {
        if self.commits >= LEFT_UNSYNCED {
            self.shared.complete(&self.connection)?;
        }
        self.choose_synchronous()?;
        let mut tx = Tx::begin(&self.connection, &mut self.cache, &self.shared.leases)?;
        let began = Instant::now();
        let mut done = 0;
        for job in group {
            job.apply(&mut tx)?;
            done += 1;
            if began.elapsed() >= LONGEST_GROUP {
                break;
            }
        }
        let topics = tx.commit()?;
        self.commits += 1;
        Ok((topics, done))
    }

    fn choose_synchronous(&mut self) -> rusqlite::Result<()> {
        // Others may have been there meanwhile.
        let is_first = self.is_new && self.commits == 0 && !open::has_log(&self.shared.path);
        self.set_synchronous(if is_first { Synchronous::Off } else { Synchronous::Normal })
    }

    fn set_synchronous(&mut self, wanted: Synchronous) -> rusqlite::Result<()> {
        if self.synchronous != Some(wanted) {
            // Not a statement to be kept: this pragma takes effect when it is prepared, not when it is run.
            self.connection.execute_batch(match wanted {
                Synchronous::Off => "PRAGMA synchronous = OFF",
                Synchronous::Normal => "PRAGMA synchronous = NORMAL",
            })?;
            // What is moved into the database without a sync is not in the log any more.
            open::checkpoint_after(&self.connection, if wanted == Synchronous::Off { 0 } else { self.pages });
            self.synchronous = Some(wanted);
        }
        Ok(())
    }
}

/// Moves a long log into the database. The first process that opens the database after all have left reads the whole log, so one that
/// grows from visit to visit would make each dearer than the last.
impl Drop for Scribe {
    fn drop(&mut self) {
        let is_long = |log: std::fs::Metadata| log.len() > LONG_LOG_BYTES;
        if self.synchronous != Some(Synchronous::Off)
            && self.shared.hole.get().is_none()
            && std::fs::metadata(open::with_suffix(&self.shared.path, open::LOG)).is_ok_and(is_long)
        {
            // Somebody else may be at it, or read: then it is theirs to do, and not worth a wait.
            let _ = self.connection.busy_timeout(Duration::ZERO);
            let _ = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Result, sqlite::Sqlite};

    use super::*;

    #[test]
    fn nothing_is_written_behind_a_sync_that_failed() {
        let folder = tempfile::tempdir().unwrap();
        let (shared, database) = open::open(folder.path().join("broker.db"), open::CHECKPOINT_PAGES).unwrap();
        let shared = Arc::new(shared);
        let mut scribe = Scribe::new(Arc::clone(&shared), database);
        let write = |scribe: &mut Scribe, durability, key: &'static str| {
            let (reply, receiver) = oneshot::channel();
            let work = Some(move |tx: &mut Tx<'_>| -> Result<(), Fail> {
                tx.db().execute("INSERT INTO meta (key, value) VALUES (?1, 1)", [key])?;
                Ok(())
            });
            let call = Call { durability, work, outcome: None, deliver: |()| (), reply };
            scribe.perform(Work::Write(Box::new(call)), None);
            receiver.blocking_recv().unwrap()
        };
        write(&mut scribe, Durability::Power, "synced").unwrap();
        scribe.syncer = Syncer::with(Arc::clone(&shared), |_| Err(std::io::Error::from_raw_os_error(libc::EIO)));
        let error = write(&mut scribe, Durability::Power, "unsynced").unwrap_err();
        assert!(matches!(error, Error::Unsynced { .. }) && !error.is_retryable(), "{error}");

        // Opened anew, and it would succeed: the system has told of it.
        scribe.syncer = Syncer::new(Arc::clone(&shared));
        for durability in [Durability::Power, Durability::Process] {
            let error = write(&mut scribe, durability, "behind").unwrap_err();
            assert!(matches!(error, Error::Io { .. }) && !error.is_retryable(), "{error}");
            assert!(error.to_string().contains("broker.db-wal: could not be synced (Input/output error"), "{error}");
        }
        let pulse = super::super::heart::take_back(&shared).unwrap_err();
        assert!(matches!(pulse, Error::Io { .. }), "nor is anything taken back: {pulse}");
        // What was committed before it was known that the sync had failed.
        let (reply, receiver) = oneshot::channel();
        let jobs: Vec<Box<dyn Job>> = vec![Box::new(Synced(reply))];
        scribe.syncer.settle(Committed { topics: Topics::default(), jobs }, true);
        assert!(matches!(receiver.blocking_recv().unwrap(), Err(Error::Unsynced { .. })));

        let stored = "SELECT key FROM meta WHERE key IN ('synced', 'unsynced', 'behind') ORDER BY key";
        let mut stored = scribe.connection.prepare(stored).unwrap();
        let stored: Vec<String> = stored.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        assert_eq!(stored, ["synced", "unsynced"]);
    }

    const JOB: Duration = Duration::from_millis(100);
    const JOBS: usize = 12;

    fn slow(broker: &Sqlite) -> oneshot::Receiver<Result<Instant>> {
        broker.writer().write(Durability::Process, |_| {
            thread::sleep(JOB);
            Ok(Instant::now())
        })
    }

    /// All of it is there before the lock is free, so that without a bound it would be one transaction.
    #[tokio::test]
    async fn a_long_group_lets_other_processes_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broker.db");
        let (busy, other, gate) = tokio::join!(Sqlite::open(&path), Sqlite::open(&path), Sqlite::open(&path));
        let (busy, other, gate) = (busy.unwrap(), other.unwrap(), gate.unwrap());
        let lock = gate.shared.lock().unwrap();
        let group: Vec<_> = (0..JOBS).map(|_| slow(&busy)).collect();
        let one = slow(&other);
        tokio::time::sleep(JOB).await;
        drop(lock);
        let one = one.await.unwrap().unwrap();
        let mut last = one;
        for job in group {
            last = job.await.unwrap().unwrap();
        }
        assert!(one < last, "it had to wait for all");
    }
}
