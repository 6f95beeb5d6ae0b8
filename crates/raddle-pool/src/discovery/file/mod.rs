//! Workers that are written down: in a file that lists them, or in a folder that has a file for each.
//!
//! Whoever can write a file can publish a worker, in whatever language and on whatever machine that shares the disk. So nothing is known of it but
//! what is written there: no process is watched, for the number in an entry may be that of a process elsewhere. **What is written stays until it is
//! removed.** A worker that is gone and whose entry is not costs callers a refused connection now and then: balancers leave it alone for longer
//! and longer.
//!
//! Readers look when the kernel says that there is something to see, and every few seconds besides, because it says nothing of what other machines
//! do to a shared disk. A file is taken whole or not at all: one that is torn, or wrong in one place, counts for what it was before.
//! The form of an entry is in [`entry`].

mod entry;
mod look;
mod reader;
mod subscription;
#[cfg(test)]
mod tests;
mod trail;
mod write;

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;

use self::subscription::Files;
use super::{Discovery, DiscoveryError, Event, Filter, Publisher, Subscription};
use crate::WorkerMetadata;

/// How long it takes at most until something is noticed that the kernel does not tell of: what another machine has written, or what is behind a
/// symbolic link in the folder.
const EVERY: Duration = Duration::from_secs(5);
/// Nobody looks more often than that.
const MOST_OFTEN: Duration = Duration::from_millis(100);

/// Workers that are written down: in a file that lists them, or in a folder that has a file `*.json` for each.
///
/// Which of the two it is is seen from what is there, and may change. It may also come later: until then there are no workers. An entry is an object:
///
/// ```json
/// {"address": "10.0.0.7:7070", "uid": "01890a5d-ac96-774b-bcce-b302099a8057", "pid": 4711, "version": "1.4.0",
///  "tags": ["gpu"], "extra": {"zone": "b"}, "secure": true}
/// ```
///
/// `address` is all it takes. A file has one entry, or a list of them. Entries stay until they are removed: nobody watches the process.
///
/// Whoever may write there decides who is called. Use [credentials](crate::WorkerCredentials) where that are not only those whom you trust.
#[derive(Clone, Debug)]
pub struct FileDiscovery {
    path: PathBuf,
    every: Duration,
}

impl FileDiscovery {
    /// One of the workers that are written down there.
    pub fn new(path: impl AsRef<Path>) -> Result<Self, DiscoveryError> {
        let path = path.as_ref();
        // The folder that this process is in may change.
        let absolute = std::path::absolute(path).map_err(failed("no place for workers", path))?;
        Ok(Self { path: absolute, every: EVERY })
    }

    /// How often to look where the kernel says nothing. Every 5 s, if nothing is said.
    pub fn every(mut self, pause: Duration) -> Self {
        self.every = pause.max(MOST_OFTEN);
        self
    }

    /// Where they are written down.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Only of a folder, which is made if it is not there: a list belongs to whoever wrote it.
#[async_trait]
impl Publisher for FileDiscovery {
    async fn publish(&self, event: Event) -> Result<(), DiscoveryError> {
        let path = self.path.clone();
        // It may be a disk on another machine.
        let writing = tokio::task::spawn_blocking(move || match event {
            Event::Added(worker) | Event::Updated(worker) => write::put(&path, &worker),
            Event::Dropped(worker) => write::remove(&path, worker.uid),
        });
        let written = writing.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        written.map_err(failed("cannot publish a worker", &self.path))
    }

    fn withdraw(&self, worker: &WorkerMetadata) {
        if let Err(error) = write::remove(&self.path, worker.uid) {
            tracing::warn!(folder = %self.path.display(), worker = %worker.uid, %error, "the entry of a worker stays behind");
        }
    }
}

#[async_trait]
impl Discovery for FileDiscovery {
    async fn subscribe(&self, filter: Option<Filter>) -> Result<Box<dyn Subscription>, DiscoveryError> {
        let files = Files::start(&self.path, self.every, filter).await;
        Ok(Box::new(files.map_err(failed("cannot read who the workers are", &self.path))?))
    }

    fn is_hearsay(&self) -> bool {
        true
    }
}

fn failed(what: &str, path: &Path) -> impl FnOnce(io::Error) -> DiscoveryError {
    DiscoveryError::of(format!("{what} ({})", path.display()))
}
