//! Reads the entries, and keeps the last valid contents of each file.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{
    WorkerMetadata,
    entry::{self, MAX_WORKERS, is_missing},
};

/// Reads the entries, and keeps the last valid contents of each file.
pub(super) struct Reader {
    path: PathBuf,
    /// The workers of each file, as last read successfully.
    files: BTreeMap<PathBuf, Vec<WorkerMetadata>>,
    /// The last error logged for each path, so that it is not logged at every poll.
    last_errors: BTreeMap<PathBuf, String>,
    is_world_writable: bool,
}

impl Reader {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            files: BTreeMap::new(),
            last_errors: BTreeMap::new(),
            is_world_writable: false,
        }
    }

    /// Reads the workers. If several files have the same worker, the first in name order wins. For
    /// a file that cannot be read, its last valid contents count.
    pub(super) fn read(&mut self) -> io::Result<Vec<WorkerMetadata>> {
        let listed = self.list()?;
        let (mut previous, mut room) = (std::mem::take(&mut self.files), MAX_WORKERS);
        for path in listed {
            let mut workers = match entry::open_file(&path).and_then(entry::read_workers) {
                Ok(workers) => {
                    self.last_errors.remove(&path);
                    workers
                }
                Err(error) if is_missing(&error) => continue,
                Err(error) => {
                    self.log_error_once(&path, error.to_string());
                    previous.remove(&path).unwrap_or_default()
                }
            };
            workers.truncate(room);
            room -= workers.len();
            self.files.insert(path, workers);
        }
        let mut known = BTreeSet::new();
        let all = self.files.values().flatten();
        Ok(all
            .filter(|worker| known.insert(worker.uid))
            .cloned()
            .collect())
    }

    /// Reads the workers for a subscriber. `None` if the directory cannot be read: the known
    /// workers stay.
    pub(super) fn try_read(&mut self) -> Option<Vec<WorkerMetadata>> {
        let path = self.path.clone();
        self.read()
            .inspect_err(|error| self.log_error_once(&path, error.to_string()))
            .ok()
    }

    /// The files to read.
    fn list(&mut self) -> io::Result<BTreeSet<PathBuf>> {
        let found = match fs::metadata(&self.path) {
            Err(error) if is_missing(&error) => return Ok(BTreeSet::new()),
            found => found?,
        };
        let was_world_writable =
            std::mem::replace(&mut self.is_world_writable, found.mode() & 0o002 != 0);
        if self.is_world_writable && !was_world_writable {
            tracing::warn!(path = %self.path.display(), "world-writable: any user can publish workers there");
        }
        if found.is_dir() {
            entry::list_files(&self.path)
        } else {
            Ok(BTreeSet::from([self.path.clone()]))
        }
    }

    fn log_error_once(&mut self, path: &Path, reason: String) {
        if self.last_errors.get(path) != Some(&reason) {
            tracing::warn!(path = %path.display(), reason, "cannot read workers; keeping the last valid contents");
            self.last_errors.insert(path.to_owned(), reason);
        }
    }
}
