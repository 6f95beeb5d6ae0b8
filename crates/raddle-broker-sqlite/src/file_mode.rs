//! Files and directories for their owner alone, whatever the umask says: specs hold what people put into environments, and output what they did
//! not think of.

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

/// How files are made. A umask can take from this, which [`keep`] makes good.
pub(super) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE);
    options
}

/// Makes a directory.
pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIRECTORY).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(DIRECTORY))
}

/// Makes a file that was made just now what it is to be. `found` is what is known of it.
pub(super) fn keep(file: &File, found: &Metadata) -> io::Result<()> {
    if found.mode() & MODE_BITS == FILE {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(FILE))
}

/// Gives what root has made beside a database to its owner, who could not use it otherwise. The engine does so with its own files.
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

/// Why somebody may not, if it is because something belongs to somebody else.
pub(super) fn whose(path: &Path) -> Option<String> {
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
