//! This program, as containers can see it: its own file, unless that is not what runs here or cannot be run by everybody.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// A file that is this program.
#[derive(Debug)]
pub(super) enum ProgramFile {
    /// Its own.
    Own(PathBuf),
    /// A copy, which is removed with this. A container that has begun does not need it any more.
    Copy(PathBuf),
}

const SELF: &str = "/proc/self/exe";
const PREFIX: &str = "raddle-init-";
const FOR_ALL: u32 = 0o755;
const BY_OTHERS: u32 = 0o001;

impl ProgramFile {
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
        let mut to = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(FOR_ALL)
            .open(copy.path())?;
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

/// The shared libraries of this process, its dynamic loader among them. A statically linked program has none.
pub(super) fn loaded_libraries() -> io::Result<Vec<PathBuf>> {
    Ok(parse_maps(
        &fs::read_to_string("/proc/self/maps")?,
        &fs::read_link(SELF)?,
    ))
}

/// Reads `ADDRESSES PERMS OFFSET DEV INODE PATH`, one mapping a line: executable files other than the program are libraries.
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

/// Removes the copies of leashes that were killed.
pub(super) fn sweep_copies() {
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
            // Another user's cannot be removed, and is not ours to remove.
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_libraries_among_the_mappings() {
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
