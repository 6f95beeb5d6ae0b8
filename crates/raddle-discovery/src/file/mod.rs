//! Workers that are written down: in a file that lists them, or in a directory that has a file for each.
//!
//! Whoever can write a file can publish a worker, in whatever language and on whatever machine that shares the disk. So nothing is known of it but
//! what is written there: no process is watched, for the number in an entry may be that of a process elsewhere. **What is written stays until it is
//! removed.** A worker that is gone and whose entry is not costs callers a refused connection now and then: balancers leave it alone for longer
//! and longer.
//!
//! A file is taken whole or not at all: one that is torn, or wrong in one place, counts for what it was before. The form of an entry is in [`entry`].

mod reader;
#[cfg(test)]
mod tests;

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use tokio::task::spawn_blocking;

use self::reader::Reader;
use super::{
    Discovery, DiscoveryError, DiscoveryEvent, Publisher, Subscription, WorkerFilter,
    entry::{self, ENDING},
    watch::DirectoryWatch,
};
use crate::{Address, WorkerMetadata};

/// How long it takes at most until something is noticed that the kernel does not report: what another machine has written, or what is behind a
/// symbolic link.
const EVERY: Duration = Duration::from_secs(1);
/// The shortest interval that can be asked for.
const MOST_OFTEN: Duration = Duration::from_millis(100);

/// Workers that are written down: in a file that lists them, or in a directory that has a file `*.json` for each.
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
/// Whoever may write there decides who is called. Use credentials where that are not only those whom you trust.
#[derive(Clone, Debug)]
pub struct FileDiscovery {
    path: PathBuf,
    every: Duration,
}

impl FileDiscovery {
    /// One of the workers that are written down there.
    pub fn new(path: impl AsRef<Path>) -> Result<Self, DiscoveryError> {
        let path = path.as_ref();
        // The directory that this process is in may change.
        let absolute =
            std::path::absolute(path).map_err(DiscoveryError::at("no place for workers", path))?;
        Ok(Self {
            path: absolute,
            every: EVERY,
        })
    }

    /// How often to look where the kernel says nothing. Every second, if nothing is said.
    pub fn every(mut self, pause: Duration) -> Self {
        self.every = pause.max(MOST_OFTEN);
        self
    }

    /// Where they are written down.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Only of a directory, which is made if it is not there: a list belongs to whoever wrote it.
#[async_trait]
impl Publisher for FileDiscovery {
    async fn publish(&self, event: DiscoveryEvent) -> Result<(), DiscoveryError> {
        let this = self.clone();
        // It may be a disk on another machine.
        let writing = spawn_blocking(move || match event {
            DiscoveryEvent::Added(worker) | DiscoveryEvent::Updated(worker) => this.put(&worker),
            DiscoveryEvent::Dropped(worker) => entry::remove(&this.entry_of(&worker)),
        });
        let written = writing
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)));
        written.map_err(DiscoveryError::at("cannot publish a worker", &self.path))
    }

    fn withdraw(&self, worker: &WorkerMetadata) {
        if let Err(error) = entry::remove(&self.entry_of(worker)) {
            tracing::warn!(directory = %self.path.display(), worker = %worker.uid, %error, "the entry of a worker stays behind");
        }
    }
}

#[async_trait]
impl Discovery for FileDiscovery {
    async fn subscribe(
        &self,
        filter: Option<WorkerFilter>,
    ) -> Result<Subscription, DiscoveryError> {
        let watch = DirectoryWatch::new(
            [
                self.path.as_path(),
                self.path.parent().unwrap_or(&self.path),
            ]
            .map(Path::to_owned),
        );
        let mut reader = Reader::new(self.path.clone());
        let first = spawn_blocking(move || reader.look().map(|workers| (workers, reader)));
        let first = first
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)));
        let (first, mut reader) = first.map_err(DiscoveryError::at(
            "cannot read who the workers are",
            &self.path,
        ))?;
        let later = watch.snapshots(self.every, move || reader.look_again());
        Ok(Subscription::from_snapshots(filter, first, later))
    }

    fn is_unauthenticated(&self) -> bool {
        true
    }
}

impl FileDiscovery {
    fn entry_of(&self, worker: &WorkerMetadata) -> PathBuf {
        self.path.join(format!("{}{ENDING}", worker.uid))
    }

    /// Writes the entry of a worker, in place of any that there is, and of those that were left by workers that were killed where this one serves now.
    fn put(&self, worker: &WorkerMetadata) -> io::Result<()> {
        worker
            .check()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        match fs::create_dir(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ if !self.path.is_dir() => {
                let message = "it is a file: name a directory to publish workers in";
                return Err(io::Error::new(io::ErrorKind::NotADirectory, message));
            }
            _ => {}
        }
        // Others are to read it.
        entry::write(
            &self.path,
            &format!("{}{ENDING}", worker.uid),
            worker,
            0o644,
            false,
        )?;
        if !worker
            .address
            .parse::<Address>()
            .is_ok_and(|address| address.is_the_same_everywhere())
        {
            return Ok(());
        }
        for path in entry::list(&self.path)?
            .into_iter()
            .filter(|path| *path != self.entry_of(worker))
        {
            let there = entry::open(&path).and_then(entry::read);
            if there.is_ok_and(
                |there| matches!(there.as_slice(), [other] if other.address == worker.address),
            ) {
                tracing::info!(entry = %path.display(), worker = %worker.uid, "replaced: another worker serves there now");
                entry::remove(&path)?;
            }
        }
        Ok(())
    }
}
