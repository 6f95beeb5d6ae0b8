//! The one thread of this process that writes: group commit.
//!
//! Jobs that have come in while the last group was committed form the next one. They share a transaction, and one `fsync` if
//! any of them needs it; replies go out after the commit. Calls wait for their replies, so the queue of jobs is never longer
//! than the number of callers, and the channel needs no bound of its own.

use std::{sync::Arc, thread};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::{
    Shared,
    bell::Topics,
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

#[derive(Clone)]
pub(super) struct Writer {
    jobs: mpsc::UnboundedSender<Box<dyn Job>>,
}

/// One call's part of a transaction.
trait Job: Send {
    fn durability(&self) -> Durability;
    fn is_wanted(&self) -> bool;
    fn apply(&mut self, tx: &mut Tx<'_>) -> rusqlite::Result<()>;
    fn reply(self: Box<Self>, committed: Result<()>);
}

struct Call<T, F> {
    durability: Durability,
    work: Option<F>,
    outcome: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

/// Enough to amortise an `fsync` to nothing, and few enough that nobody waits long for the others.
const GROUP: usize = 256;
const STACK: usize = 512 * 1024;

impl Writer {
    pub(super) fn start(shared: Arc<Shared>, connection: Connection) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        thread::Builder::new()
            .name("writer".into())
            .stack_size(STACK)
            .spawn(move || Scribe { shared, connection, cache: Cache::default(), synchronous: None }.run(queue))
            .expect("the system gives this process a thread");
        Self { jobs }
    }

    pub(super) fn submit<T, F>(&self, durability: Durability, work: F) -> oneshot::Receiver<Result<T>>
    where
        T: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> Result<T, Fail> + Send + 'static,
    {
        let (reply, receiver) = oneshot::channel();
        // When the thread is gone the job is dropped with its sender, which the receiver reports as closed.
        let _ = self.jobs.send(Box::new(Call { durability, work: Some(work), outcome: None, reply }));
        receiver
    }

    /// As [`submit`](Self::submit), for what has to be done when nobody is left to wait for it.
    pub(super) fn submit_unattended<F>(&self, durability: Durability, work: F)
    where
        F: FnOnce(&mut Tx<'_>) -> Result<(), Fail> + Send + 'static,
    {
        let _ = self.jobs.send(Box::new(Errand { durability, work: Some(work) }));
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

impl<T, F> Job for Call<T, F>
where
    T: Send,
    F: FnOnce(&mut Tx<'_>) -> Result<T, Fail> + Send,
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
        let Self { outcome, reply, .. } = *self;
        let _ = reply.send(committed.and_then(|()| outcome.unwrap_or(Err(Error::Closed))));
    }
}

/// The thread's own state.
struct Scribe {
    shared: Arc<Shared>,
    connection: Connection,
    cache: Cache,
    /// What the connection is set to.
    synchronous: Option<Durability>,
}

impl Scribe {
    fn run(mut self, mut queue: mpsc::UnboundedReceiver<Box<dyn Job>>) {
        while let Some(first) = queue.blocking_recv() {
            let mut group = vec![first];
            match self.commit(&mut group, &mut queue) {
                Ok(topics) => {
                    self.shared.bell.ring(topics);
                    group.into_iter().for_each(|job| job.reply(Ok(())));
                }
                Err(error) => {
                    // What a rolled-back transaction had put into the cache may not exist.
                    self.cache = Cache::default();
                    group.into_iter().for_each(|job| job.reply(Err(error.clone())));
                }
            }
        }
    }

    fn commit(
        &mut self,
        group: &mut Vec<Box<dyn Job>>,
        queue: &mut mpsc::UnboundedReceiver<Box<dyn Job>>,
    ) -> Result<Topics> {
        let shared = Arc::clone(&self.shared);
        let _lock = shared.lock()?;
        // The group is closed only now: others may have come while this one waited for the lock.
        while group.len() < GROUP
            && let Ok(job) = queue.try_recv()
        {
            group.push(job);
        }
        group.retain(|job| job.is_wanted());
        match group.iter().map(|job| job.durability()).max() {
            Some(durability) => self.transact(group, durability).map_err(|e| shared.error(&e)),
            None => Ok(Topics::default()),
        }
    }

    fn transact(&mut self, group: &mut [Box<dyn Job>], durability: Durability) -> rusqlite::Result<Topics> {
        if self.synchronous != Some(durability) {
            let level = if durability == Durability::Power { "FULL" } else { "NORMAL" };
            self.connection.pragma_update(None, "synchronous", level)?;
            self.synchronous = Some(durability);
        }
        let mut tx = Tx::begin(&mut self.connection, &mut self.cache, self.shared.boot)?;
        for job in group {
            job.apply(&mut tx)?;
        }
        tx.commit()
    }
}
