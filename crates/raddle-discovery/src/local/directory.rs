//! The directory of the entries, in the user's runtime directory.

use std::{
    collections::BTreeSet,
    env,
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use crate::entry;

/// A directory that only this user can write to.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// The directory or an ancestor. Every directory from here down must belong to this user.
    root: PathBuf,
}

impl Directory {
    /// The user's directory of pools by name.
    pub(super) fn for_pools() -> Self {
        Self::in_runtime_directory("pools")
    }

    /// The user's directory of pool members by pool id.
    pub(super) fn for_pool_members() -> Self {
        Self::in_runtime_directory("members")
    }

    fn in_runtime_directory(what: &str) -> Self {
        let user = rustix::process::geteuid().as_raw();
        // The variable may belong to another user, as after `su`.
        let from_env = env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute());
        let candidates = from_env
            .into_iter()
            .chain([format!("/run/user/{user}").into()]);
        let root = candidates
            .into_iter()
            .find(|path| check_owner(path).is_ok());
        let root = root.unwrap_or_else(|| format!("/tmp/raddle-{user}").into());
        Self {
            path: root.join("raddle").join(what),
            root,
        }
    }

    /// Another directory.
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            root: path.clone(),
            path,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the directory if it is missing, for this user only.
    pub(super) fn make(&self) -> io::Result<()> {
        for path in self.owned_paths() {
            match DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => check_owner(path)?,
            }
        }
        Ok(())
    }

    /// The entries. An error if other users can write to the directory, because its contents may be
    /// forged.
    pub(super) fn list(&self) -> io::Result<BTreeSet<PathBuf>> {
        let checked = self.owned_paths().into_iter().try_for_each(check_owner);
        match checked.and_then(|()| entry::list_files(&self.path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            listed => listed,
        }
    }

    /// The directories that must belong to this user, the outermost first.
    fn owned_paths(&self) -> Vec<&Path> {
        let mut own: Vec<_> = self
            .path
            .ancestors()
            .take_while(|path| path.starts_with(&self.root))
            .collect();
        own.reverse();
        own
    }
}

/// Checks that no other user can write to the directory.
fn check_owner(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    let reason = if !found.is_dir() {
        "it is not a directory"
    } else if found.uid() != rustix::process::geteuid().as_raw() {
        "it belongs to another user"
    } else if found.mode() & 0o022 != 0 {
        "others may write there: use `chmod go-w`"
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

/// Whether the path still leads to this file.
pub(super) fn is_same_file(file: &File, path: &Path) -> bool {
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    let (file, current) = (
        file.metadata().map(identity),
        fs::symlink_metadata(path).map(identity),
    );
    matches!((file, current), (Ok(file), Ok(current)) if file == current)
}
