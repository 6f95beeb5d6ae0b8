//! Making commits survive a power cut: syncing the log, and telling those who wait for it.
//!
//! Where the owner of the database has a thread of its own, so has this: while one group is being synced the next is written, and all that
//! was committed by then shares the sync after it.

use std::{
    fs::File,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use super::{Shared, bell::Topics, open, writer::Job};
use crate::{Error, Result};

/// Syncs commits, on this thread or another.
pub(super) enum Syncer {
    Here(Log),
    Thread { tell: Option<mpsc::Sender<Committed>>, thread: Option<JoinHandle<()>> },
}

/// A group that is committed, and what is to be done when that lasts.
pub(super) struct Committed {
    pub(super) topics: Topics,
    pub(super) jobs: Vec<Box<dyn Job>>,
}

/// The database's log.
pub(super) struct Log {
    shared: Arc<Shared>,
    /// Opened when it is first synced. It is there as long as the connection is.
    file: Option<File>,
}

const STACK: usize = 128 * 1024;

impl Committed {
    /// Says so to all.
    pub(super) fn tell(self, shared: &Shared, lasts: &Result<()>) {
        if lasts.is_ok() {
            shared.bell.ring(self.topics);
        }
        self.jobs.into_iter().for_each(|job| job.reply(lasts.clone()));
    }
}

impl Log {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, file: None }
    }

    /// Makes durable what has been committed.
    ///
    /// This is what SQLite does in its mode FULL, with two differences: it happens after the write lock was given back, and with
    /// `fdatasync`, which leaves out the file's times and costs half as much.
    fn sync(&mut self) -> Result<()> {
        let path = || open::with_suffix(&self.shared.path, "-wal");
        let file = match self.file.take() {
            Some(file) => file,
            None => File::open(path()).map_err(|e| open::unusable(&path(), &e))?,
        };
        file.sync_data().map_err(|e| open::unusable(&path(), &e))?;
        self.file = Some(file);
        self.shared.sync_folder()
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
    /// One with a thread of its own, which ends with it.
    pub(super) fn start(log: Log) -> Self {
        let (tell, queue) = mpsc::channel();
        let thread = thread::Builder::new().name("sync".into()).stack_size(STACK).spawn(move || log.run(&queue));
        Self::Thread { tell: Some(tell), thread: Some(thread.expect("the system gives this process a thread")) }
    }

    /// Has the group synced, and those told who wait for it.
    pub(super) fn settle(&mut self, group: Committed) {
        match self {
            Self::Here(log) => log.settle(vec![group]),
            Self::Thread { tell, .. } => {
                let refused = match tell.as_ref().map(|tell| tell.send(group)) {
                    Some(Ok(())) => return,
                    Some(Err(mpsc::SendError(group))) => group,
                    None => return,
                };
                refused.jobs.into_iter().for_each(|job| job.reply(Err(Error::Closed)));
            }
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        if let Self::Thread { tell, thread } = self {
            drop(tell.take());
            if let Some(thread) = thread.take() {
                let _ = thread.join();
            }
        }
    }
}
