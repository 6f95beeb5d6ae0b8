//! The thread for reads, with a connection of its own.
//!
//! In WAL mode a reader blocks no writer, but a long read on the writer's thread would: so lists,
//! searches and counts run here, and wait for no commit. The thread starts with the first read; a
//! process that only writes has none. `memdb` has no WAL, so a database in memory is read on the
//! writer's thread.

use std::{
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::{
    CLOSE_TIMEOUT, HandleState,
    open::{self, DatabaseLocation},
    tx::TxError,
};
use raddle_broker::Result;

/// A read. It gets no connection if none could be opened.
type ReadJob = Box<dyn FnOnce(&Result<Connection>) + Send>;

const STACK: usize = 512 * 1024;

/// Sends reads to the reader thread.
pub(super) struct Reader {
    shared: Arc<HandleState>,
    thread: Mutex<Option<ReaderThread>>,
}

struct ReaderThread {
    /// The reads, one after the other. Each caller waits for its own, so the channel needs no
    /// bound.
    jobs: mpsc::Sender<ReadJob>,
    /// Disconnected when the thread ends.
    ended: mpsc::Receiver<()>,
}

impl Reader {
    pub(super) fn new(shared: Arc<HandleState>) -> Self {
        Self {
            shared,
            thread: Mutex::default(),
        }
    }

    /// Runs `query` on one snapshot of the database. Gives it back if there is no reader thread:
    /// for a database in memory, or if the system provides no thread.
    pub(super) fn read<T, F>(&self, query: F) -> Result<oneshot::Receiver<Result<T>>, F>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, TxError> + Send + 'static,
    {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            *thread = start(&self.shared);
        }
        let Some(thread) = &*thread else {
            return Err(query);
        };
        let (reply, receiver) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        let job: ReadJob = Box::new(move |connection| {
            if reply.is_closed() {
                return;
            }
            let found = connection
                .as_ref()
                .map_err(Clone::clone)
                .and_then(|connection| shared.read_snapshot(connection, query));
            let _ = reply.send(found);
        });
        // If the thread is gone, the job is dropped with its reply sender, and the caller gets
        // `Error::Closed`.
        let _ = thread.jobs.send(job);
        Ok(receiver)
    }
}

fn start(shared: &HandleState) -> Option<ReaderThread> {
    let location = match &shared.location {
        DatabaseLocation::File(_) => shared.location.clone(),
        DatabaseLocation::Memory(_) => return None,
    };
    let (jobs, queue) = mpsc::channel::<ReadJob>();
    let (end, ended) = mpsc::channel();
    thread::Builder::new()
        .name("sqlite-reader".into())
        .stack_size(STACK)
        .spawn(move || {
            let mut connection = open::reader(&location);
            for job in queue {
                if connection.is_err() {
                    // There may be a free descriptor by now.
                    connection = open::reader(&location);
                }
                job(&connection);
            }
            drop(connection);
            drop(end);
        })
        .ok()?;
    Some(ReaderThread { jobs, ended })
}

/// Waits for the thread, which closes its connection.
impl Drop for Reader {
    fn drop(&mut self) {
        let thread = self
            .thread
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(ReaderThread { jobs, ended }) = thread.take() {
            drop(jobs);
            let _ = ended.recv_timeout(CLOSE_TIMEOUT);
        }
    }
}
