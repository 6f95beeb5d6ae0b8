//! What is written down now, and what counts of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{
    WorkerMetadata,
    entry::{self, MOST, is_absence},
};

/// Reads what is written down, and remembers it for when it cannot be read.
pub(super) struct Reader {
    path: PathBuf,
    /// The workers of each file, as of the last time that it could be read.
    files: BTreeMap<PathBuf, Vec<WorkerMetadata>>,
    /// What was last logged of each path, so that it is not logged at every look.
    complaints: BTreeMap<PathBuf, String>,
    is_open_to_all: bool,
}

impl Reader {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            files: BTreeMap::new(),
            complaints: BTreeMap::new(),
            is_open_to_all: false,
        }
    }

    /// The workers that are written down now. One that is written down twice is what the first file says, in the order of names. What cannot be
    /// read counts for what it was before.
    pub(super) fn look(&mut self) -> io::Result<Vec<WorkerMetadata>> {
        let listed = self.list()?;
        let (mut before, mut room) = (std::mem::take(&mut self.files), MOST);
        for path in listed {
            let mut workers = match entry::open(&path).and_then(entry::read) {
                Ok(workers) => {
                    self.complaints.remove(&path);
                    workers
                }
                Err(error) if is_absence(&error) => continue,
                Err(error) => {
                    self.complain(&path, error.to_string());
                    before.remove(&path).unwrap_or_default()
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

    /// The same for a subscriber: `None` if the workers that are known stay, because it cannot be told which there are.
    pub(super) fn look_again(&mut self) -> Option<Vec<WorkerMetadata>> {
        let path = self.path.clone();
        self.look()
            .inspect_err(|error| self.complain(&path, error.to_string()))
            .ok()
    }

    /// The files that there are to read.
    fn list(&mut self) -> io::Result<BTreeSet<PathBuf>> {
        let found = match fs::metadata(&self.path) {
            Err(error) if is_absence(&error) => return Ok(BTreeSet::new()),
            found => found?,
        };
        let was_open_to_all =
            std::mem::replace(&mut self.is_open_to_all, found.mode() & 0o002 != 0);
        if self.is_open_to_all && !was_open_to_all {
            tracing::warn!(path = %self.path.display(), "everybody may write down workers there");
        }
        if found.is_dir() {
            entry::list(&self.path)
        } else {
            Ok(BTreeSet::from([self.path.clone()]))
        }
    }

    fn complain(&mut self, path: &Path, reason: String) {
        if self.complaints.get(path) != Some(&reason) {
            tracing::warn!(path = %path.display(), reason, "cannot tell who the workers are: what was last read counts");
            self.complaints.insert(path.to_owned(), reason);
        }
    }
}
