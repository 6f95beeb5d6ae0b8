//! Permissions: files and directories are private to their owner whatever the umask is, because
//! specs contain environment variables and output may contain secrets.

use std::{
    fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions},
    io,
    os::{
        fd::AsFd,
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::Path,
};

use rustix::process::{Gid, Uid, geteuid};

const FILE: u32 = 0o600;
const DIRECTORY: u32 = 0o700;
const MODE_BITS: u32 = 0o7777;

/// Options to open files with our mode. A umask can remove bits, which [`keep`] restores.
pub(super) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE);
    options
}

/// Creates a directory with our mode.
pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIRECTORY).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(DIRECTORY))
}

/// Sets the mode of a file that was just created. `found` is its metadata.
pub(super) fn keep(file: &File, found: &Metadata) -> io::Result<()> {
    if found.mode() & MODE_BITS == FILE {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(FILE))
}

/// Gives a file that root has created beside a database to the owner of the database, as SQLite
/// does with its own files.
pub(super) fn give(made: impl AsFd, database: &Path) -> io::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    match fs::metadata(database) {
        Ok(found) if found.uid() != 0 => Ok(rustix::fs::fchown(
            made,
            Some(Uid::from_raw(found.uid())),
            Some(Gid::from_raw(found.gid())),
        )?),
        _ => Ok(()),
    }
}

/// The reason why access is denied, if a file or its directory belongs to another user.
pub(super) fn foreign_owner(path: &Path) -> Option<String> {
    let me = geteuid();
    path.ancestors().take(2).find_map(|path| {
        let owner = fs::symlink_metadata(path).ok()?.uid();
        let belongs = format!(
            "{} belongs to user {owner}, and you are user {}",
            path.display(),
            me.as_raw()
        );
        (owner != me.as_raw())
            .then(|| format!("{belongs}: work as that user, or name a database of your own"))
    })
}
