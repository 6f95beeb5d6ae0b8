//! What is written down now, and what counts of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, Metadata},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;

use super::entry::{self, LONGEST, MOST};
use crate::{WorkerMetadata, stamp::Stamp};

/// What the name of an entry ends with, in a folder.
pub(super) const ENDING: &str = ".json";
/// So many files of a folder are looked at: each has a worker in it.
const MOST_FILES: usize = MOST;

/// Reads what is written down, and remembers it for when it cannot be read.
pub(super) struct Reader {
    path: PathBuf,
    files: BTreeMap<PathBuf, Seen>,
    /// What was said of all of it the last time, so that it is not said every few seconds.
    complaint: Option<String>,
    is_open_to_all: bool,
}

/// A file, as it was when it was last read.
#[derive(Default)]
struct Seen {
    /// None if it has to be read again whatever it looks like.
    stamp: Option<Stamp>,
    /// Those of the last time that it could be read.
    workers: Vec<WorkerMetadata>,
    complaint: Option<String>,
}

impl Reader {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, files: BTreeMap::new(), complaint: None, is_open_to_all: false }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The workers that are written down now. An error says that nobody can tell; what was known before stays.
    pub(super) fn look(&mut self) -> io::Result<()> {
        let files = match list(&self.path) {
            Ok(Listed { files, is_open_to_all }) => {
                if is_open_to_all && !self.is_open_to_all {
                    tracing::warn!(path = %self.path.display(), "everybody may write down workers there");
                }
                self.is_open_to_all = is_open_to_all;
                files
            }
            Err(error) if is_absence(&error) => BTreeSet::new(),
            Err(error) => return Err(error),
        };
        self.files.retain(|path, _| files.contains(path));
        let mut room = MOST;
        for path in files {
            let seen = self.files.entry(path.clone()).or_default();
            if seen.look(&path) {
                seen.keep(room);
                room -= seen.workers.len();
            } else {
                self.files.remove(&path);
            }
        }
        Ok(())
    }

    /// The same, for whoever goes on with what was known. What is wrong is said once.
    pub(super) fn look_again(&mut self) {
        match self.look() {
            Ok(()) => self.complaint = None,
            Err(error) => complain(&mut self.complaint, &self.path, error.to_string()),
        }
    }

    /// The workers that count. One that is written down twice is what the first file says, in the order of names.
    pub(super) fn workers(&self) -> Vec<WorkerMetadata> {
        let mut known = BTreeSet::new();
        let all = self.files.values().flat_map(|seen| &seen.workers);
        all.filter(|worker| known.insert(worker.uid)).take(MOST).cloned().collect()
    }
}

impl Seen {
    /// Keeps no more than there is room for. There may be more the next time.
    fn keep(&mut self, room: usize) {
        if self.workers.len() > room {
            self.workers.truncate(room);
            self.stamp = None;
        }
    }

    /// Looks at a file. Returns whether it is there.
    fn look(&mut self, path: &Path) -> bool {
        match fs::metadata(path) {
            Ok(file) if self.stamp == Some(Stamp::of(&file)) => return true,
            Ok(_) => {}
            Err(error) if is_absence(&error) => return false,
            Err(error) => {
                complain(&mut self.complaint, path, error.to_string());
                return true;
            }
        }
        match read(path) {
            Ok((stamp, text)) => {
                self.stamp = stamp.is_settled().then_some(stamp);
                match entry::read(&text) {
                    Ok(workers) => (self.workers, self.complaint) = (workers, None),
                    Err(error) => complain(&mut self.complaint, path, error.to_string()),
                }
            }
            Err(error) if is_absence(&error) => return false,
            Err(error) => complain(&mut self.complaint, path, error.to_string()),
        }
        true
    }
}

/// What there is to read.
struct Listed {
    files: BTreeSet<PathBuf>,
    is_open_to_all: bool,
}

fn list(path: &Path) -> io::Result<Listed> {
    let found = fs::metadata(path)?;
    let files = if found.is_dir() { entries(path)? } else { BTreeSet::from([path.to_owned()]) };
    Ok(Listed { files, is_open_to_all: found.mode() & 0o002 != 0 })
}

/// The files of a folder that are named like entries.
pub(super) fn entries(folder: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let mut files = BTreeSet::new();
    for file in fs::read_dir(folder)? {
        let file = file?;
        if is_entry(file.file_name().as_encoded_bytes()) {
            files.insert(file.path());
        }
        if files.len() > MOST_FILES {
            files.pop_last();
        }
    }
    Ok(files)
}

/// Whether a file is to be read, and not one that is being written, or of those who bring others here.
pub(super) fn is_entry(name: &[u8]) -> bool {
    !name.starts_with(b".") && name.ends_with(ENDING.as_bytes())
}

/// Reads a file, wherever a symbolic link may lead: it is the folder that is trusted, or not.
pub(super) fn read(path: &Path) -> io::Result<(Stamp, Vec<u8>)> {
    // What is no file would have us wait for somebody to write.
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(nonblocking).open(path)?;
    let found: Metadata = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a folder"));
    }
    let mut text = Vec::new();
    file.take(LONGEST as u64 + 1).read_to_end(&mut text)?;
    if text.len() > LONGEST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {LONGEST} bytes")));
    }
    // From before it was read: what was written meanwhile will be seen the next time.
    Ok((Stamp::of(&found), text))
}

/// It is not there, which is no trouble.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn complain(complaint: &mut Option<String>, path: &Path, reason: String) {
    if complaint.as_ref() != Some(&reason) {
        tracing::warn!(path = %path.display(), reason, "cannot tell who the workers are: what was last read counts");
        *complaint = Some(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_workers_are_kept_than_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = |file: usize| folder.path().join(format!("{file}.json"));
        for file in 0..3 {
            let entries: Vec<_> = (0..2000).map(|n| format!("{{\"address\": \"10.0.{file}.1:{}\"}}", n + 1)).collect();
            fs::write(path(file), format!("[{}]", entries.join(","))).unwrap();
        }
        let mut reader = Reader::new(folder.path().to_owned());
        reader.look().unwrap();
        let kept: usize = reader.files.values().map(|seen| seen.workers.len()).sum();
        assert_eq!((kept, reader.workers().len()), (MOST, MOST));
        fs::remove_file(path(0)).unwrap();
        reader.look().unwrap();
        assert_eq!(reader.workers().len(), 4000, "there is room for all");
    }
}
