//! A directory to write in, for a sandbox that has no root of its own. Unlike the usual one it is on the host's disk, and so it has to be removed.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::ids;
use crate::sys;

const PREFIX: &str = "raddle-scratch-";
/// Names that are tried before somebody is taken to be in the way.
const TRIES: u32 = 100;

/// A directory for one attempt. Dropping it removes it.
#[derive(Debug)]
pub(in super::super) struct ScratchDir {
    path: PathBuf,
    /// Held by the runner as long as it lives: what nobody holds was left by one that was killed.
    _lock: File,
}

impl ScratchDir {
    /// Makes one among temporary files, where those are removed that nobody holds any more.
    pub(super) fn new() -> io::Result<Self> {
        Self::among(&std::env::temp_dir())
    }

    fn among(directory: &Path) -> io::Result<Self> {
        sweep(directory);
        for number in 0..TRIES {
            let path = directory.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            let lock = open(&path)?;
            // Somebody who sweeps may have come before the lock: then it is gone, or about to be.
            if lock.try_lock().is_ok() && lock.metadata()?.nlink() > 0 && path.exists() {
                ids::hand_over([&lock]);
                return Ok(Self { path, _lock: lock });
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes what runners have left that were killed, among temporary files.
pub(crate) fn sweep_scratch() {
    sweep(&std::env::temp_dir());
}

/// Removes what runners have left that were killed.
fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_ours = |found: fs::Metadata| found.is_dir() && ids::is_ours(found.uid());
        if entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(is_ours)
            && open(&entry.path()).is_ok_and(|lock| lock.try_lock().is_ok())
        {
            remove(&entry.path());
        }
    }
}

/// Removes a directory, also what its owner has made unreadable.
fn remove(path: &Path) {
    // Root needs no permission, and must not be led to give one.
    if fs::remove_dir_all(path).is_err() && !sys::is_root() {
        open_up(path);
        let _ = fs::remove_dir_all(path);
    }
}

/// Gives its directories back to their owner. Links are not followed.
fn open_up(directory: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o700));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn it_is_gone_with_its_attempt_whatever_is_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let first = ScratchDir::among(directory.path()).unwrap();
        let second = ScratchDir::among(directory.path()).unwrap();
        assert_ne!(first.path(), second.path());
        fs::create_dir_all(first.path().join("a/b")).unwrap();
        fs::write(first.path().join("a/b/c"), "").unwrap();
        fs::set_permissions(
            first.path().join("a/b"),
            std::os::unix::fs::PermissionsExt::from_mode(0o000),
        )
        .unwrap();
        drop(first);
        assert_eq!(left(directory.path()), 1);
        drop(second);
        assert_eq!(left(directory.path()), 0);
    }

    #[test]
    fn what_a_killed_runner_has_left_is_removed_by_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let orphan = directory.path().join("raddle-scratch-1-0");
        fs::create_dir_all(orphan.join("a")).unwrap();
        let stranger = directory.path().join("raddle-other");
        fs::create_dir(&stranger).unwrap();
        std::os::unix::fs::symlink(&stranger, directory.path().join("raddle-scratch-2-0")).unwrap();
        let held = ScratchDir::among(directory.path()).unwrap();
        assert!(!orphan.exists() && stranger.exists() && held.path().exists());
        assert_eq!(left(directory.path()), 3);
    }
}
