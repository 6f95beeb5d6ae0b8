//! The directory of all entries: in the one that a user has for what lasts as long as a session.

use std::{
    collections::BTreeSet,
    env,
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use crate::entry;

/// A directory that only this user can write to, and in which directory that was made.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// It, or one above it. All from here on have to belong to this user.
    root: PathBuf,
}

impl Directory {
    /// That of this user, for pools by their names.
    pub(super) fn of_user() -> Self {
        Self::of_user_for("pools")
    }

    /// That of this user, for the workers that a pool has started, by its id.
    pub(super) fn of_pool_id() -> Self {
        Self::of_user_for("members")
    }

    fn of_user_for(what: &str) -> Self {
        let user = rustix::process::geteuid().as_raw();
        // The environment may be that of another user.
        let from_env = env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute());
        let known = from_env
            .into_iter()
            .chain([format!("/run/user/{user}").into()]);
        let root = known.into_iter().find(|path| check_owner(path).is_ok());
        let root = root.unwrap_or_else(|| format!("/tmp/raddle-{user}").into());
        Self {
            path: root.join("raddle").join(what),
            root,
        }
    }

    /// Another one.
    pub(super) fn at(path: PathBuf) -> Self {
        Self {
            root: path.clone(),
            path,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it, if it is not there, for this user alone.
    pub(super) fn make(&self) -> io::Result<()> {
        for path in self.own() {
            match DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => check_owner(path)?,
            }
        }
        Ok(())
    }

    /// The entries in it. What is in a directory that others can write to may be anything: it is an error.
    pub(super) fn list(&self) -> io::Result<BTreeSet<PathBuf>> {
        let checked = self.own().into_iter().try_for_each(check_owner);
        match checked.and_then(|()| entry::list(&self.path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            listed => listed,
        }
    }

    /// The directories that have to belong to this user, the outermost first.
    fn own(&self) -> Vec<&Path> {
        let mut own: Vec<_> = self
            .path
            .ancestors()
            .take_while(|path| path.starts_with(&self.root))
            .collect();
        own.reverse();
        own
    }
}

/// Whether no other user can have written there.
fn check_owner(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    let wrong = if !found.is_dir() {
        "it is no directory"
    } else if found.uid() != rustix::process::geteuid().as_raw() {
        "it belongs to another user"
    } else if found.mode() & 0o022 != 0 {
        "others may write there: use `chmod go-w`"
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, wrong))
}

/// Whether a path still leads to this file.
pub(super) fn is_still_at(file: &File, path: &Path) -> bool {
    let place = |found: fs::Metadata| (found.dev(), found.ino());
    let (file, there) = (
        file.metadata().map(place),
        fs::symlink_metadata(path).map(place),
    );
    matches!((file, there), (Ok(file), Ok(there)) if file == there)
}
