//! Whose project files are acted on. What is found in a folder decides what is run, and as whom: in one that others can write to, such as
//! `/tmp`, anybody could have left it there. What is named with `--queue-url` was not found, and is not looked at.

use std::{
    env,
    fs::{self, File, Metadata},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use rustix::{fs::OFlags, process::geteuid};

use crate::error::{Failure, Outcome};

/// No project file is nearly as long.
const LONGEST: u64 = 1024 * 1024;
const ROOT: u32 = 0;
/// Whether a group or everybody may write.
const OTHERS_WRITE: u32 = 0o022;

/// The text of a file that is one's own, or `None` if there is none.
pub(crate) fn read(path: &Path) -> Outcome<Option<String>> {
    let unreadable = |error: &dyn std::fmt::Display| Failure::Usage(format!("cannot read {}: {error}", path.display()));
    if check(path)?.is_none() {
        return Ok(None);
    }
    // Without waiting for whoever is to write to a FIFO.
    let open = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path);
    let file = open.map_err(|e| unreadable(&e))?;
    let found = file.metadata().map_err(|e| unreadable(&e))?;
    if !found.is_file() {
        return Err(unreadable(&"it is not a file"));
    }
    check_owner(path, &found)?;
    if found.len() > LONGEST {
        return Err(unreadable(&"it is too long for a project file"));
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).map_err(|e| unreadable(&e))?;
    Ok(Some(text))
}

/// What is found somewhere.
pub(crate) enum Found {
    /// Something that strangers can put things into.
    Open,
    /// Something that they cannot.
    Closed,
}

/// Refuses what belongs to a stranger, links included: both the link, and what it leads to. Says what is there, if anything is.
pub(crate) fn check(path: &Path) -> Outcome<Option<Found>> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        // Whoever opens it finds out.
        Err(_) => return Ok(Some(Found::Open)),
    };
    check_owner(path, &found)?;
    if found.is_symlink()
        && let Ok(found) = fs::metadata(path)
    {
        check_owner(path, &found)?;
    }
    let is_closed = found.is_dir() && found.mode() & OTHERS_WRITE == 0;
    Ok(Some(if is_closed { Found::Closed } else { Found::Open }))
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
        "{} belongs to user {owner}, and what is found there would be done as you (user {me}): if you trust it, name the database with \
         --queue-url sqlite:PATH; if not, have a raddle.toml of your own in your folder",
        path.display()
    )))
}

/// Whether `me` may act on what `owner` has written. Root may act for whoever has called it with sudo.
fn is_trusted(owner: u32, me: u32, caller: impl FnOnce() -> Option<u32>) -> bool {
    owner == me || owner == ROOT || (me == ROOT && caller() == Some(owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_trusts_oneself_and_root_and_root_its_caller() {
        assert!(is_trusted(1000, 1000, || None));
        assert!(is_trusted(0, 1000, || None));
        assert!(!is_trusted(1001, 1000, || Some(1001)), "who is not root was not called by anybody");
        assert!(!is_trusted(1000, 0, || None));
        assert!(is_trusted(1000, 0, || Some(1000)));
        assert!(!is_trusted(1001, 0, || Some(1000)));
    }
}
