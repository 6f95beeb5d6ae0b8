//! Checks the owner of project files.
//!
//! A project file decides which commands run. In a directory that other users can write to, such as
//! `/tmp`, any of them could have created it. A path that the user names with `--queue-url` is not
//! checked.

use std::{
    env,
    fs::{self, File, Metadata},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use rustix::{fs::OFlags, process::geteuid};

use crate::error::{Failure, Outcome};

/// The largest project file to read.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
const ROOT: u32 = 0;
/// The mode bits that let the group or other users write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Reads a file that this user owns. Returns `None` if it does not exist.
pub(crate) fn read(path: &Path) -> Outcome<Option<String>> {
    let unreadable = |error: &dyn std::fmt::Display| {
        Failure::Usage(format!("cannot read {}: {error}", path.display()))
    };
    if check(path)?.is_none() {
        return Ok(None);
    }
    // `O_NONBLOCK`: opening a FIFO would wait for its writer.
    let open = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path);
    let file = open.map_err(|e| unreadable(&e))?;
    let found = file.metadata().map_err(|e| unreadable(&e))?;
    if !found.is_file() {
        return Err(unreadable(&"it is not a file"));
    }
    check_owner(path, &found)?;
    if found.len() > MAX_FILE_BYTES {
        return Err(unreadable(&"it is too large for a project file"));
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES)
        .read_to_string(&mut text)
        .map_err(|e| unreadable(&e))?;
    Ok(Some(text))
}

/// Whether other users can create entries in a directory.
pub(crate) enum DirectoryAccess {
    /// Other users can.
    Open,
    /// Only this user and root can.
    Closed,
}

/// Refuses a path that belongs to another user, or a link to one. Returns `None` if it does not
/// exist.
pub(crate) fn check(path: &Path) -> Outcome<Option<DirectoryAccess>> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        // Opening the file reports the error.
        Err(_) => return Ok(Some(DirectoryAccess::Open)),
    };
    check_owner(path, &found)?;
    if found.is_symlink()
        && let Ok(found) = fs::metadata(path)
    {
        check_owner(path, &found)?;
    }
    let is_closed = found.is_dir() && found.mode() & WRITABLE_BY_OTHERS == 0;
    Ok(Some(if is_closed {
        DirectoryAccess::Closed
    } else {
        DirectoryAccess::Open
    }))
}

fn check_owner(path: &Path, found: &Metadata) -> Outcome<()> {
    let owner = found.uid();
    if owner == ROOT {
        return Ok(());
    }
    let me = geteuid().as_raw();
    let caller = || env::var("SUDO_UID").ok()?.parse::<u32>().ok();
    if is_trusted(owner, me, caller) {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{} belongs to user {owner}, and its commands would run as you (user {me}): if you trust it, name the database with \
         --queue-url sqlite:PATH; if not, create a raddle.toml in your own directory",
        path.display()
    )))
}

/// Whether `me` may act on a file of `owner`. Root may act on files of the user that called `sudo`.
fn is_trusted(owner: u32, me: u32, caller: impl FnOnce() -> Option<u32>) -> bool {
    owner == me || owner == ROOT || (me == ROOT && caller() == Some(owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trusts_the_user_root_and_under_sudo_the_caller() {
        assert!(is_trusted(1000, 1000, || None));
        assert!(is_trusted(0, 1000, || None));
        assert!(
            !is_trusted(1001, 1000, || Some(1001)),
            "SUDO_UID counts only under root"
        );
        assert!(!is_trusted(1000, 0, || None));
        assert!(is_trusted(1000, 0, || Some(1000)));
        assert!(!is_trusted(1001, 0, || Some(1000)));
    }
}
