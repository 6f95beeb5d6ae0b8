//! The writable directory of a sandbox without its own root. It is on the host's disk, so it must
//! be removed.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::ids;
use crate::sys;

const PREFIX: &str = "raddle-scratch-";
/// Names to try before giving up.
const MAX_TRIES: u32 = 100;

/// A directory for one attempt. It is removed on drop.
#[derive(Debug)]
pub(in super::super) struct ScratchDir {
    path: PathBuf,
    /// Locked as long as the runner lives: an unlocked directory was left by a runner that was
    /// killed.
    _lock: File,
}

impl ScratchDir {
    /// Creates a directory among the temporary files, after removing those that killed runners
    /// left.
    pub(super) fn new() -> io::Result<Self> {
        Self::create_in(&std::env::temp_dir())
    }

    fn create_in(directory: &Path) -> io::Result<Self> {
        sweep(directory);
        for number in 0..MAX_TRIES {
            let path = directory.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            let lock = open(&path)?;
            // A sweep may have run before the lock was taken: the directory is then gone, or about
            // to be removed.
            if lock.try_lock().is_ok() && lock.metadata()?.nlink() > 0 && path.exists() {
                ids::give_to_command_user([&lock]);
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

/// Removes directories of killed runners among the temporary files.
pub(crate) fn sweep_scratch() {
    sweep(&std::env::temp_dir());
}

/// Removes directories of killed runners.
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

/// Removes a directory, even if its owner made parts of it unreadable.
fn remove(path: &Path) {
    // Root needs no permissions, and must not be tricked into changing any.
    if fs::remove_dir_all(path).is_err() && !sys::is_root() {
        make_accessible(path);
        let _ = fs::remove_dir_all(path);
    }
}

/// Makes all directories accessible to their owner. Does not follow links.
fn make_accessible(directory: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o700));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_accessible(&entry.path());
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

    fn count_entries(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn removes_the_directory_with_any_content() {
        let directory = tempfile::tempdir().unwrap();
        let first = ScratchDir::create_in(directory.path()).unwrap();
        let second = ScratchDir::create_in(directory.path()).unwrap();
        assert_ne!(first.path(), second.path());
        fs::create_dir_all(first.path().join("a/b")).unwrap();
        fs::write(first.path().join("a/b/c"), "").unwrap();
        fs::set_permissions(
            first.path().join("a/b"),
            std::os::unix::fs::PermissionsExt::from_mode(0o000),
        )
        .unwrap();
        drop(first);
        assert_eq!(count_entries(directory.path()), 1);
        drop(second);
        assert_eq!(count_entries(directory.path()), 0);
    }

    #[test]
    fn removes_directories_of_killed_runners() {
        let directory = tempfile::tempdir().unwrap();
        let orphan = directory.path().join("raddle-scratch-1-0");
        fs::create_dir_all(orphan.join("a")).unwrap();
        let unrelated = directory.path().join("raddle-other");
        fs::create_dir(&unrelated).unwrap();
        std::os::unix::fs::symlink(&unrelated, directory.path().join("raddle-scratch-2-0"))
            .unwrap();
        let kept = ScratchDir::create_in(directory.path()).unwrap();
        assert!(!orphan.exists() && unrelated.exists() && kept.path().exists());
        assert_eq!(count_entries(directory.path()), 3);
    }
}
