//! The thread that owns the connection of one handle, with group commit.
//!
//! Writes that arrive while a group is committed form the next group. They share one transaction.
//! SQLite syncs it if one of them must survive a power cut (`synchronous = FULL`), and does not
//! otherwise (`NORMAL`). Reads run between groups without the write lock. Each caller waits for its
//! reply, so the queue is bounded by the number of callers and the channel needs no bound.

use std::{
    sync::{Arc, mpsc::Receiver},
    task::{Context, Poll, Wake},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::{
    HandleState, LOCK_TIMEOUT,
    notify::Topics,
    open::{self, DatabaseLocation},
    rollups::{FLUSH_AFTER, RollupBuffer},
    tx::{Tx, TxCache, TxError},
};
use raddle_broker::{Error, Result};

/// The failures that a committed write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Durability {
    /// The end of the process. A power cut may undo the commit: a task is claimed again, but not
    /// lost.
    Process,
    /// A power cut.
    Power,
}

/// Sends requests to the writer thread.
#[derive(Clone)]
pub(super) struct Writer(mpsc::UnboundedSender<WriterRequest>);

/// A writer that does not keep the thread running.
pub(super) struct WeakWriter(mpsc::WeakUnboundedSender<WriterRequest>);

/// A request to the writer thread.
pub(super) enum WriterRequest {
    Write(Box<dyn WriteJob>),
    Other(DetachedJob),
}

/// A job that runs between two groups, without the write lock.
pub(super) type DetachedJob = Box<dyn FnOnce(&DbWriter) + Send>;

/// One call's part of a transaction.
pub(super) trait WriteJob: Send {
    fn durability(&self) -> Durability;
    fn is_wanted(&self) -> bool;
    fn apply(&mut self, tx: &mut Tx<'_>) -> rusqlite::Result<()>;
    fn reply(self: Box<Self>, committed: Result<()>);
}

struct WriteCall<T, U, F, G> {
    durability: Durability,
    work: Option<F>,
    outcome: Option<Result<T>>,
    /// Maps the result after the commit.
    deliver: G,
    /// `None`: the job runs without a caller.
    reply: Option<oneshot::Sender<Result<U>>>,
}

/// Large enough to amortise an `fsync`, small enough that no caller waits long for the others.
const GROUP: usize = 256;
/// After this time no further job joins a transaction, because other processes wait for the lock. A
/// single job is never split, as it must be atomic; callers submit very many tasks in several
/// calls.
const LONGEST_GROUP: Duration = Duration::from_millis(250);
/// Replaying a WAL of this size takes less time than starting a process.
const LONG_LOG_BYTES: u64 = 1024 * 1024;
const STACK: usize = 512 * 1024;

impl Writer {
    /// Starts the thread and opens the database. The thread ends when all clones of the writer are
    /// dropped; then the returned receiver is disconnected.
    pub(super) async fn start(
        location: DatabaseLocation,
    ) -> Result<(Self, Arc<HandleState>, Receiver<()>)> {
        let (work, queue) = mpsc::unbounded_channel();
        let (opened, open) = oneshot::channel();
        let (end, ended) = std::sync::mpsc::channel();
        let locked = Error::Locked {
            path: location.path(),
            secs: LOCK_TIMEOUT.as_secs(),
            holder: String::new(),
        };
        thread::Builder::new()
            .name("sqlite".into())
            .stack_size(STACK)
            .spawn(move || {
                match open::open(location) {
                    Ok((shared, connection)) => {
                        let shared = Arc::new(shared);
                        let writer = DbWriter::new(Arc::clone(&shared), connection);
                        let _ = opened.send(Ok(shared));
                        writer.run(queue);
                    }
                    Err(error) => drop(opened.send(Err(error))),
                }
                drop(end);
            })
            .map_err(|error| Error::no_thread(&error))?;
        let opened = tokio::time::timeout(LOCK_TIMEOUT, open)
            .await
            .map_err(|_| locked)?;
        Ok((Self(work), opened.unwrap_or(Err(Error::Closed))?, ended))
    }

    /// Runs `job` in the next write group.
    pub(super) fn write<T, F>(&self, durability: Durability, job: F) -> oneshot::Receiver<Result<T>>
    where
        T: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> Result<T, TxError> + Send + 'static,
    {
        self.write_and_deliver(durability, job, |value| value)
    }

    /// Like [`write`](Self::write), but maps the result with `deliver` after the commit.
    pub(super) fn write_and_deliver<T, U, F, G>(
        &self,
        durability: Durability,
        job: F,
        deliver: G,
    ) -> oneshot::Receiver<Result<U>>
    where
        T: Send + 'static,
        U: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> Result<T, TxError> + Send + 'static,
        G: FnOnce(T) -> U + Send + 'static,
    {
        let (reply, receiver) = oneshot::channel();
        self.send(WriterRequest::Write(Box::new(WriteCall {
            durability,
            work: Some(job),
            outcome: None,
            deliver,
            reply: Some(reply),
        })));
        receiver
    }

    /// Runs `job` in the next write group without a caller that waits. `deliver` gets the result
    /// after the commit.
    pub(super) fn write_detached<T, F, G>(&self, job: F, deliver: G)
    where
        T: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> Result<T, TxError> + Send + 'static,
        G: FnOnce(T) + Send + 'static,
    {
        let durability = Durability::Process;
        self.send(WriterRequest::Write(Box::new(WriteCall {
            durability,
            work: Some(job),
            outcome: None,
            deliver,
            reply: None,
        })));
    }

    pub(super) fn downgrade(&self) -> WeakWriter {
        WeakWriter(self.0.downgrade())
    }

    /// Runs `query` between two write groups, on one snapshot of the database.
    pub(super) fn read<T, F>(&self, query: F) -> oneshot::Receiver<Result<T>>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, TxError> + Send + 'static,
    {
        let (reply, receiver) = oneshot::channel();
        self.send(WriterRequest::Other(Box::new(
            move |DbWriter {
                      shared, connection, ..
                  }| {
                if !reply.is_closed() {
                    let _ = reply.send(shared.read_snapshot(connection, query));
                }
            },
        )));
        receiver
    }

    fn send(&self, work: WriterRequest) {
        // If the thread is gone, the request is dropped with its reply sender, and the caller gets
        // `Error::Closed`.
        let _ = self.0.send(work);
    }
}

impl<T, U, F, G> WriteJob for WriteCall<T, U, F, G>
where
    T: Send,
    U: Send,
    F: FnOnce(&mut Tx<'_>) -> Result<T, TxError> + Send,
    G: FnOnce(T) -> U + Send,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn is_wanted(&self) -> bool {
        self.reply.as_ref().is_none_or(|reply| !reply.is_closed())
    }

    fn apply(&mut self, tx: &mut Tx<'_>) -> rusqlite::Result<()> {
        let work = self.work.take().expect("a job is applied once");
        self.outcome = Some(match work(tx) {
            Ok(value) => Ok(value),
            Err(TxError::Caller(error)) => Err(error),
            Err(TxError::Store(error)) => return Err(error),
        });
        Ok(())
    }

    fn reply(self: Box<Self>, committed: Result<()>) {
        let Self {
            outcome,
            deliver,
            reply,
            ..
        } = *self;
        let done = committed
            .and_then(|()| outcome.unwrap_or(Err(Error::Closed)))
            .map(deliver);
        match (reply, done) {
            (Some(reply), done) => drop(reply.send(done)),
            // Callers log a full disk. This write is repeated with every lease renewal.
            (None, Err(error)) if error.is_out_of_space() => {
                tracing::debug!(%error, "a write without a caller failed")
            }
            (None, Err(error)) => tracing::warn!(%error, "a write without a caller failed"),
            (None, Ok(_)) => {}
        }
    }
}

impl WeakWriter {
    /// The writer, unless its handle is gone.
    pub(super) fn upgrade(&self) -> Option<Writer> {
        self.0.upgrade().map(Writer)
    }
}

/// The state of the writer thread.
pub(super) struct DbWriter {
    connection: Connection,
    shared: Arc<HandleState>,
    cache: TxCache,
    rollups: RollupBuffer,
    /// The durability for which `PRAGMA synchronous` is set.
    synchronous: Option<Durability>,
}

impl DbWriter {
    fn new(shared: Arc<HandleState>, connection: Connection) -> Self {
        Self {
            connection,
            shared,
            cache: TxCache::default(),
            rollups: RollupBuffer::default(),
            synchronous: None,
        }
    }

    fn run(mut self, mut queue: mpsc::UnboundedReceiver<WriterRequest>) {
        while let Some(work) = self.next_request(&mut queue) {
            // Callers often issue several writes back to back, and batching them saves a
            // transaction.
            thread::yield_now();
            self.perform(work, &mut queue);
        }
    }

    /// Waits for the next request. Counts of outcomes are stored when none comes for a while, and
    /// before the end.
    fn next_request(
        &mut self,
        queue: &mut mpsc::UnboundedReceiver<WriterRequest>,
    ) -> Option<WriterRequest> {
        if self.rollups.is_empty() {
            return queue.blocking_recv();
        }
        let received = recv_within(queue, FLUSH_AFTER);
        if let Some(Some(work)) = received {
            return Some(work);
        }
        if let Err(error) = self.store_rollups() {
            tracing::debug!(%error, "statistics could not be stored");
        }
        received.unwrap_or_else(|| queue.blocking_recv())
    }

    /// Stores counts of outcomes. They are dropped if that fails: they are statistics.
    fn store_rollups(&mut self) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        self.rollups.make_due();
        shared.check_writable()?;
        let _lock = shared.lock_for_writing()?;
        self.transact(&mut [])
            .map_err(|e| shared.commit_error(&e))?;
        Ok(())
    }

    /// Runs one request; a write takes further requests from the queue along.
    fn perform(&mut self, work: WriterRequest, queue: &mut mpsc::UnboundedReceiver<WriterRequest>) {
        let mut others: Vec<DetachedJob> = Vec::new();
        match work {
            WriterRequest::Other(other) => others.push(other),
            WriterRequest::Write(job) => self.write(job, queue, &mut others),
        }
        others.into_iter().for_each(|other| other(self));
    }

    fn write(
        &mut self,
        first: Box<dyn WriteJob>,
        queue: &mut mpsc::UnboundedReceiver<WriterRequest>,
        others: &mut Vec<DetachedJob>,
    ) {
        let mut group = vec![first];
        loop {
            match self.commit(&mut group, queue, others) {
                Ok((topics, done)) => {
                    self.shared.notifier.notify(topics);
                    group.drain(..done).for_each(|job| job.reply(Ok(())));
                }
                Err(error) => {
                    // The cache may contain rows of the rolled-back transaction.
                    self.cache = TxCache::default();
                    group
                        .drain(..)
                        .for_each(|job| job.reply(Err(error.clone())));
                }
            }
            if group.is_empty() {
                return;
            }
            // `flock` has woken a waiting process, which gets the lock only if this thread lets it
            // run first.
            thread::yield_now();
        }
    }

    /// Commits the first jobs of a group, and returns how many.
    fn commit(
        &mut self,
        group: &mut Vec<Box<dyn WriteJob>>,
        queue: &mut mpsc::UnboundedReceiver<WriterRequest>,
        others: &mut Vec<DetachedJob>,
    ) -> Result<(Topics, usize)> {
        let shared = Arc::clone(&self.shared);
        shared.check_writable()?;
        let _lock = shared.lock_for_writing()?;
        // Collect more jobs only now: some may have arrived while this thread waited for the lock.
        while group.len() < GROUP
            && let Ok(work) = queue.try_recv()
        {
            match work {
                WriterRequest::Write(job) => group.push(job),
                WriterRequest::Other(other) => others.push(other),
            }
        }
        group.retain(|job| job.is_wanted());
        if group.is_empty() {
            return Ok((Topics::default(), 0));
        }
        self.transact(group).map_err(|e| shared.commit_error(&e))
    }

    fn transact(&mut self, group: &mut [Box<dyn WriteJob>]) -> rusqlite::Result<(Topics, usize)> {
        self.choose_synchronous(group)?;
        let mut tx = Tx::begin(
            &self.connection,
            &mut self.cache,
            &mut self.rollups,
            &self.shared.leases,
        )?;
        let began = Instant::now();
        let mut done = 0;
        for job in group {
            job.apply(&mut tx)?;
            done += 1;
            if began.elapsed() >= LONGEST_GROUP {
                break;
            }
        }
        Ok((tx.commit()?, done))
    }

    /// Sets `PRAGMA synchronous` so that the WAL is synced if a job of this group must survive a
    /// power cut.
    fn choose_synchronous(&mut self, group: &[Box<dyn WriteJob>]) -> rusqlite::Result<()> {
        let wanted = group.iter().map(|job| job.durability()).max();
        if self.synchronous != wanted {
            let mode = if wanted == Some(Durability::Power) {
                "FULL"
            } else {
                "NORMAL"
            };
            self.connection.pragma_update(None, "synchronous", mode)?;
            self.synchronous = wanted;
        }
        Ok(())
    }
}

/// The next request, if one comes within `limit`; inside, `None` if there will be none.
fn recv_within(
    queue: &mut mpsc::UnboundedReceiver<WriterRequest>,
    limit: Duration,
) -> Option<Option<WriterRequest>> {
    let deadline = Instant::now() + limit;
    let waker = Arc::new(ThreadWaker(thread::current())).into();
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(received) = queue.poll_recv(&mut context) {
            return Some(received);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

/// Wakes a thread that waits for a request.
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Checkpoints a long WAL. The first process that opens the database when no other has it open
/// replays the whole WAL, so a WAL that grows from run to run would make each start slower.
impl Drop for DbWriter {
    fn drop(&mut self) {
        let is_long = |log: std::fs::Metadata| log.len() > LONG_LOG_BYTES;
        if self.shared.poisoned.get().is_none()
            && std::fs::metadata(open::with_suffix(&self.shared.path, open::LOG)).is_ok_and(is_long)
        {
            // Another process may be checkpointing or reading; then it is not worth waiting.
            let _ = self.connection.busy_timeout(Duration::ZERO);
            let _ = self
                .connection
                .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use raddle_model::{CapSet, TaskSpec, worker::Heartbeat};

    use crate::Sqlite;
    use raddle_broker::{
        ClaimRequest, LeaseStatus, Leases, NewTask, Queries, Result, Tasks, conformance,
    };

    use super::*;

    #[tokio::test]
    async fn refuses_writes_after_a_failed_sync() {
        let directory = tempfile::tempdir().unwrap();
        let broker = Sqlite::open(&directory.path().join("broker.db"))
            .await
            .unwrap();
        // A worker with a task, and one that would reclaim it.
        let lost = broker
            .register(conformance::info("lost"), LEASE)
            .await
            .unwrap();
        let other = broker
            .register(conformance::info("other"), LEASE)
            .await
            .unwrap();
        let tid = broker
            .submit(vec![NewTask::new(TaskSpec::command(["true"]))])
            .await
            .unwrap()[0]
            .tid();
        let queues = vec!["default".into()];
        let request = ClaimRequest {
            owner: lost,
            caps: CapSet::new(),
            queues,
            only: None,
            max: 1,
            wait: Duration::ZERO,
        };
        assert_eq!(broker.claim(request).await.unwrap().len(), 1);
        let failed = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC);
        let unsynced = broker
            .shared
            .commit_error(&rusqlite::Error::SqliteFailure(failed, None));
        assert!(
            matches!(unsynced, Error::Unsynced { .. }) && !unsynced.is_retryable(),
            "{unsynced}"
        );

        // These writes would succeed: the kernel reports the error once.
        for durability in [Durability::Power, Durability::Process] {
            let error = broker.write(durability, |_| Ok(())).await.unwrap_err();
            assert!(
                matches!(error, Error::Io { .. }) && !error.is_retryable(),
                "{error}"
            );
            assert!(
                error
                    .to_string()
                    .contains("broker.db-wal: could not be synced"),
                "{error}"
            );
        }
        assert!(broker.acquire_liveness_lock(lost));
        broker.shared.leases.release_liveness_lock(lost);
        assert!(broker.shared.leases.may_reclaim());
        let status = broker
            .lease_renewer(other, LEASE)
            .renew(Heartbeat::default())
            .unwrap();
        assert!(
            matches!(&status, LeaseStatus::Alive(reclaimed) if reclaimed.is_empty()),
            "{status:?}"
        );
        assert_eq!(
            broker.task(tid).await.unwrap().unwrap().worker,
            Some(lost),
            "nothing is reclaimed either"
        );
    }

    const LEASE: Duration = Duration::from_secs(60);
    const JOB: Duration = Duration::from_millis(100);
    const JOBS: usize = 40;

    fn slow(broker: &Sqlite) -> oneshot::Receiver<Result<Instant>> {
        broker.writer().write(Durability::Process, |_| {
            thread::sleep(JOB);
            Ok(Instant::now())
        })
    }

    /// All jobs are queued before the lock is free, so without a limit they would be one
    /// transaction.
    #[tokio::test]
    async fn a_long_group_yields_to_other_processes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("broker.db");
        let (busy, other, third) = tokio::join!(
            Sqlite::open(&path),
            Sqlite::open(&path),
            Sqlite::open(&path)
        );
        let (busy, other, third) = (busy.unwrap(), other.unwrap(), third.unwrap());
        let lock = third.shared.lock_for_writing().unwrap();
        let group: Vec<_> = (0..JOBS).map(|_| slow(&busy)).collect();
        let one = slow(&other);
        tokio::time::sleep(JOB).await;
        drop(lock);
        let one = one.await.unwrap().unwrap();
        let mut last = one;
        for job in group {
            last = job.await.unwrap().unwrap();
        }
        assert!(one < last, "the other process waited for the whole group");
    }
}
