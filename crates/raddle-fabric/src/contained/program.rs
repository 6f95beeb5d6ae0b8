//! This program, as containers can see it: its own file, unless that is not what runs here or cannot be run by everybody.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// A file that is this program.
#[derive(Debug)]
pub(super) enum Program {
    /// Its own.
    Own(PathBuf),
    /// A copy, which is removed with this. A container that has begun does not need it any more.
    Copy(PathBuf),
}

const SELF: &str = "/proc/self/exe";
const PREFIX: &str = "raddle-init-";
const FOR_ALL: u32 = 0o755;
const BY_OTHERS: u32 = 0o001;

impl Program {
    /// Finds it, or makes a copy among temporary files.
    pub(super) fn find() -> io::Result<Self> {
        let (path, own) = (fs::read_link(SELF)?, fs::metadata(SELF)?);
        // Another may have taken its place on the disk.
        let is_it = |found: fs::Metadata| (found.dev(), found.ino()) == (own.dev(), own.ino());
        if fs::metadata(&path).is_ok_and(is_it) && own.mode() & BY_OTHERS != 0 {
            return Ok(Self::Own(path));
        }
        let copy = Self::Copy(std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id())));
        // One that a process of the same number has left.
        let _ = fs::remove_file(copy.path());
        let mut to = fs::OpenOptions::new().write(true).create_new(true).mode(FOR_ALL).open(copy.path())?;
        io::copy(&mut fs::File::open(SELF)?, &mut to)?;
        // The umask has a say in what it is made with.
        to.set_permissions(fs::Permissions::from_mode(FOR_ALL))?;
        Ok(copy)
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Own(path) | Self::Copy(path) => path,
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Self::Copy(path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

/// Removes the copies of leashes that were killed.
pub(super) fn sweep_copies() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Another user's cannot be removed, and is not ours to remove.
            let _ = fs::remove_file(entry.path());
        }
    }
}
