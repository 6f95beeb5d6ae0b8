//! The file of this program that containers mount: the original, unless it was replaced or others
//! may not execute it.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// A file with this program.
#[derive(Debug)]
pub(super) enum ProgramFile {
    /// The original.
    Own(PathBuf),
    /// A copy that is removed on drop. A started container does not need it any more.
    Copy(PathBuf),
}

const SELF: &str = "/proc/self/exe";
const PREFIX: &str = "raddle-init-";
const MODE: u32 = 0o755;
const OTHERS_EXECUTE: u32 = 0o001;

impl ProgramFile {
    /// Finds the original, or makes a copy in the temporary directory.
    pub(super) fn locate() -> io::Result<Self> {
        let (path, own) = (fs::read_link(SELF)?, fs::metadata(SELF)?);
        // The file may have been replaced on disk.
        let is_it = |found: fs::Metadata| (found.dev(), found.ino()) == (own.dev(), own.ino());
        if fs::metadata(&path).is_ok_and(is_it) && own.mode() & OTHERS_EXECUTE != 0 {
            return Ok(Self::Own(path));
        }
        let copy = Self::Copy(std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id())));
        // A copy that an earlier process with this PID has left.
        let _ = fs::remove_file(copy.path());
        let mut to = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(MODE)
            .open(copy.path())?;
        io::copy(&mut fs::File::open(SELF)?, &mut to)?;
        // `mode` is subject to the umask.
        to.set_permissions(fs::Permissions::from_mode(MODE))?;
        Ok(copy)
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Own(path) | Self::Copy(path) => path,
        }
    }
}

/// The shared libraries of this process and its dynamic loader. A static program has none.
pub(super) fn loaded_libraries() -> io::Result<Vec<PathBuf>> {
    Ok(parse_maps(
        &fs::read_to_string("/proc/self/maps")?,
        &fs::read_link(SELF)?,
    ))
}

/// Parses `/proc/PID/maps`: `ADDRESSES PERMS OFFSET DEV INODE PATH`. Executable files other than
/// the program are libraries.
fn parse_maps(maps: &str, program: &Path) -> Vec<PathBuf> {
    let mut libraries: Vec<PathBuf> = maps
        .lines()
        .filter_map(|line| {
            let permissions = line.split_ascii_whitespace().nth(1)?;
            let path = &line[line.find('/')?..];
            permissions.contains('x').then(|| PathBuf::from(path))
        })
        .filter(|path| path != program)
        .collect();
    libraries.sort();
    libraries.dedup();
    libraries
}

impl Drop for ProgramFile {
    fn drop(&mut self) {
        if let Self::Copy(path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

/// Removes copies of supervisors that were killed.
pub(super) fn remove_orphan_copies() {
    for entry in fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Fails for copies of other users.
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_libraries_in_the_mappings() {
        let maps = "\
55d0c8a00000-55d0c8b00000 r-xp 00000000 fe:00 1 /opt/my tools/raddle
7f5a10000000-7f5a10028000 r--p 00000000 fe:00 2 /usr/lib/libc.so.6
7f5a10028000-7f5a101b0000 r-xp 00028000 fe:00 2 /usr/lib/libc.so.6
7f5a10300000-7f5a10326000 r-xp 00001000 fe:00 3 /usr/lib/ld-linux-x86-64.so.2
7f5a10400000-7f5a10401000 rw-s 00000000 fe:00 4 /home/me/.raddle/raddle.db-shm
7ffc5a7f2000-7ffc5a7f4000 r-xp 00000000 00:00 0 [vdso]
";
        let found = parse_maps(maps, Path::new("/opt/my tools/raddle"));
        assert_eq!(
            found,
            ["/usr/lib/ld-linux-x86-64.so.2", "/usr/lib/libc.so.6"].map(PathBuf::from)
        );
    }
}
