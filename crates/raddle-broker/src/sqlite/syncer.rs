//! Making commits survive a power cut: syncing the log, and telling those who wait for it.
//!
//! While others wait to write, this happens on a thread of its own: one group is synced and the next is written meanwhile, and all that was
//! committed by then shares the sync after it. When nobody waits, the switch to another thread would be all that is gained.

use std::{
    fs::File,
    io,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use super::{Shared, bell::Topics, open, writer::Job};
use crate::{Error, Result};

/// Syncs commits, on the thread that makes them or beside it.
pub(super) struct Syncer {
    log: Log,
    beside: Option<Beside>,
}

/// A thread that syncs. It ends with this.
struct Beside {
    tell: Option<mpsc::Sender<Committed>>,
    thread: Option<JoinHandle<()>>,
}

/// A group that is committed, and what is to be done when that lasts.
pub(super) struct Committed {
    pub(super) topics: Topics,
    pub(super) jobs: Vec<Box<dyn Job>>,
}

/// The database's log.
struct Log {
    shared: Arc<Shared>,
    /// Opened when it is first synced. It is there as long as the connection is.
    file: Option<File>,
    sync: SyncFile,
}

/// What makes a file's contents last. Tests have one that fails.
type SyncFile = fn(&File) -> io::Result<()>;

const STACK: usize = 128 * 1024;

impl Committed {
    /// Says so to all.
    pub(super) fn tell(self, shared: &Shared, lasts: &Result<()>) {
        // It is there for others to see, whether it lasts or not.
        shared.bell.ring(self.topics);
        self.jobs.into_iter().for_each(|job| job.reply(lasts.clone()));
    }
}

impl Log {
    /// Makes durable what has been committed. Where it fails, nothing is undone.
    fn sync(&mut self) -> Result<()> {
        let lasts = match self.shared.hole.get() {
            Some(reason) => Err(reason.clone()),
            None => self.sync_log(),
        };
        lasts.map_err(|reason| Error::Unsynced { path: self.shared.path.clone(), reason })
    }

    /// This is what SQLite does in its mode FULL, with two differences: it happens after the write lock was given back, and with
    /// `fdatasync`, which leaves out the file's times and costs half as much.
    fn sync_log(&mut self) -> Result<(), String> {
        let file = match self.file.take() {
            Some(file) => file,
            // Nothing is lost by that: the next sync is of all that there is.
            None => File::open(open::with_suffix(&self.shared.path, open::LOG)).map_err(|e| e.to_string())?,
        };
        (self.sync)(&file).map_err(|error| self.shared.hole.get_or_init(|| error.to_string()).clone())?;
        self.file = Some(file);
        Ok(())
    }

    fn settle(&mut self, groups: Vec<Committed>) {
        let lasts = self.sync();
        groups.into_iter().for_each(|group| group.tell(&self.shared, &lasts));
    }

    fn run(mut self, queue: &mpsc::Receiver<Committed>) {
        while let Ok(first) = queue.recv() {
            let groups = std::iter::once(first).chain(queue.try_iter()).collect();
            self.settle(groups);
        }
    }
}

impl Syncer {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self::with(shared, File::sync_data)
    }

    pub(super) fn with(shared: Arc<Shared>, sync: SyncFile) -> Self {
        Self { log: Log { shared, file: None, sync }, beside: None }
    }

    /// Has the group synced, and those told who wait for it. It is not waited for if others `wait` to write.
    pub(super) fn settle(&mut self, group: Committed, others_wait: bool) {
        if others_wait && self.beside.is_none() {
            // Without a thread for it the others wait for the sync, and no more.
            let started = Beside::start(Arc::clone(&self.log.shared), self.log.sync);
            self.beside = started.inspect_err(|error| tracing::warn!(%error, "the system gives no thread")).ok();
        }
        match &self.beside {
            Some(beside) if others_wait => beside.settle(group),
            _ => self.log.settle(vec![group]),
        }
    }
}

impl Beside {
    fn start(shared: Arc<Shared>, sync: SyncFile) -> io::Result<Self> {
        let (tell, queue) = mpsc::channel();
        let log = Log { shared, file: None, sync };
        let thread = thread::Builder::new().name("sync".into()).stack_size(STACK).spawn(move || log.run(&queue))?;
        Ok(Self { tell: Some(tell), thread: Some(thread) })
    }

    fn settle(&self, group: Committed) {
        if let Some(Err(mpsc::SendError(group))) = self.tell.as_ref().map(|tell| tell.send(group)) {
            group.jobs.into_iter().for_each(|job| job.reply(Err(Error::Closed)));
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        drop(self.tell.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
