//! File discovery: workers in a file that lists them, or in a directory with a file for each.
//!
//! Any program on any machine that shares the disk can publish a worker by writing a file. So an
//! entry is all that is known of a worker: no process is watched, because the pid may be that of
//! another machine. **An entry stays until it is removed.** A dead worker whose entry remains costs
//! callers a refused connection now and then: balancers eject the worker, and one call a second
//! tries it.
//!
//! A file is used completely or not at all: if it is incomplete or invalid, its last valid contents
//! count. The format is in [`entry`].

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
    entry::{self, SUFFIX},
    watch::DirectoryWatch,
};
use crate::{Address, WorkerMetadata};

/// Polling interval, for changes that the kernel does not report: writes by other machines, and
/// behind symbolic links.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest polling interval.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Workers in a file that lists them, or in a directory with a file `*.json` for each.
///
/// Whether it is a file or a directory is detected, and may change; until it exists, there are no
/// workers. An entry is an object:
///
/// ```json
/// {"address": "10.0.0.7:7070", "uid": "01890a5d-ac96-774b-bcce-b302099a8057", "pid": 4711, "version": "1.4.0",
///  "tags": ["gpu"], "extra": {"zone": "b"}, "secure": true}
/// ```
///
/// Only `address` is required. A file has one entry or a list. Entries stay until they are removed:
/// processes are not watched.
///
/// Anyone who can write there decides which workers are called: use credentials, unless all of them
/// are trusted.
#[derive(Clone, Debug)]
pub struct FileDiscovery {
    path: PathBuf,
    poll_interval: Duration,
}

impl FileDiscovery {
    /// A discovery of the workers in this file or directory.
    pub fn new(path: impl AsRef<Path>) -> Result<Self, DiscoveryError> {
        let path = path.as_ref();
        // Absolute, because the working directory may change.
        let absolute =
            std::path::absolute(path).map_err(DiscoveryError::wrap_path("invalid path", path))?;
        Ok(Self {
            path: absolute,
            poll_interval: POLL_INTERVAL,
        })
    }

    /// Sets the polling interval. Default: 1 s.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval.max(MIN_POLL_INTERVAL);
        self
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Publishes in a directory only, which is created if missing: a list belongs to its author.
#[async_trait]
impl Publisher for FileDiscovery {
    async fn publish(&self, event: DiscoveryEvent) -> Result<(), DiscoveryError> {
        let this = self.clone();
        // On a blocking thread, because the disk may be remote.
        let writing = spawn_blocking(move || match event {
            DiscoveryEvent::Added(worker) | DiscoveryEvent::Updated(worker) => {
                this.write_entry(&worker)
            }
            DiscoveryEvent::Dropped(worker) => entry::remove_file(&this.entry_path(&worker)),
        });
        let written = writing
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)));
        written.map_err(DiscoveryError::wrap_path(
            "cannot publish a worker",
            &self.path,
        ))
    }

    fn withdraw(&self, worker: &WorkerMetadata) {
        if let Err(error) = entry::remove_file(&self.entry_path(worker)) {
            tracing::warn!(directory = %self.path.display(), worker = %worker.uid, %error, "cannot remove the entry of a worker");
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
        let first = spawn_blocking(move || reader.read().map(|workers| (workers, reader)));
        let first = first
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)));
        let (first, mut reader) = first.map_err(DiscoveryError::wrap_path(
            "cannot read the list of workers",
            &self.path,
        ))?;
        let later = watch.snapshots(self.poll_interval, move || reader.try_read());
        Ok(Subscription::from_snapshots(filter, first, later))
    }

    fn is_unauthenticated(&self) -> bool {
        true
    }
}

impl FileDiscovery {
    fn entry_path(&self, worker: &WorkerMetadata) -> PathBuf {
        self.path.join(format!("{}{SUFFIX}", worker.uid))
    }

    /// Writes the entry of a worker, and removes entries of killed workers with the same address.
    fn write_entry(&self, worker: &WorkerMetadata) -> io::Result<()> {
        worker
            .validate()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        match fs::create_dir(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ if !self.path.is_dir() => {
                let message = "it is a file: name a directory to publish workers in";
                return Err(io::Error::new(io::ErrorKind::NotADirectory, message));
            }
            _ => {}
        }
        // Mode 0644: other users may read it.
        entry::write_worker(
            &self.path,
            &format!("{}{SUFFIX}", worker.uid),
            worker,
            0o644,
            false,
        )?;
        if !worker
            .address
            .parse::<Address>()
            .is_ok_and(|address| address.is_global())
        {
            return Ok(());
        }
        for path in entry::list_files(&self.path)?
            .into_iter()
            .filter(|path| *path != self.entry_path(worker))
        {
            let existing = entry::open_file(&path).and_then(entry::read_workers);
            if existing.is_ok_and(
                |workers| matches!(workers.as_slice(), [other] if other.address == worker.address),
            ) {
                tracing::info!(entry = %path.display(), worker = %worker.uid, "removed the entry of a former worker at the same address");
                entry::remove_file(&path)?;
            }
        }
        Ok(())
    }
}
