//! The folder of a namespace: entries are written, listed, read and removed here.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, Stat},
    io::Errno,
};

use super::{
    entry::{self, LONGEST, Name, Unreadable},
    pools::Pools,
    process::{Life, Process},
};
use crate::{Uid, WorkerMetadata};

/// Whoever removes the last entry removes the folder, and so it may be gone again as soon as it is made. Nobody is that unlucky so often.
const TRIES: usize = 20;

/// The folder of a namespace. It is there while it has entries.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    pools: Arc<Pools>,
    path: PathBuf,
    namespace: String,
}

/// Tells two states of a file apart. The later one is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp {
    changed: (i64, i64),
    inode: u64,
    size: i64,
}

impl Folder {
    pub(super) fn new(pools: &Arc<Pools>, namespace: &str) -> Self {
        let path = pools.path().join(namespace);
        Self { pools: Arc::clone(pools), path, namespace: namespace.to_owned() }
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(super) fn pools(&self) -> &Arc<Pools> {
        &self.pools
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the entry of a worker, in place of any that there is.
    pub(super) fn write(&self, worker: &WorkerMetadata, process: Process) -> io::Result<()> {
        let text = entry::write(worker)?;
        if text.len() > LONGEST {
            let message = format!("what is said of the worker is longer than {LONGEST} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let name = Name { uid: worker.uid, process };
        let mut tries = 1;
        while let Err(error) = self.put(name, &text) {
            if error.kind() != io::ErrorKind::NotFound || tries == TRIES {
                return Err(error);
            }
            tries += 1;
        }
        self.remove(worker.uid, Some(name));
        // Whoever removes what is left of the dead may have been here before.
        if process.is_gone() {
            self.remove_entry(name);
        }
        Ok(())
    }

    fn put(&self, name: Name, text: &[u8]) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        self.pools.make()?;
        let folder = own_folder(&self.path)?;
        let writer = Process::find(std::process::id())?.ok_or(io::ErrorKind::Unsupported)?;
        let draft = entry::draft_name(writer, COUNT.fetch_add(1, Ordering::Relaxed));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, &draft, flags, Mode::RUSR | Mode::WUSR)?;
        let written = File::from(file).write_all(text);
        let put = written.and_then(|()| Ok(rustix::fs::renameat(&folder, &draft, &folder, name.to_string())?));
        if put.is_err() {
            let _ = rustix::fs::unlinkat(&folder, &draft, AtFlags::empty());
        }
        put
    }

    /// All files that are named like entries, as they are now. None if there is no folder, or it is not to be trusted.
    pub(super) fn list(&self) -> BTreeMap<Name, Stamp> {
        let Some(folder) = self.open() else { return BTreeMap::new() };
        let names = names(&folder).into_iter().filter_map(|name| name.parse::<Name>().ok());
        let stamped = names.filter_map(|name| {
            let stat = rustix::fs::statat(&folder, name.to_string(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some((name, Stamp::of(&stat)))
        });
        stamped.collect()
    }

    /// Reads an entry, which is this user's own and nobody else's.
    pub(super) fn read(&self, name: Name) -> Result<(Stamp, WorkerMetadata), Unreadable> {
        let io = |error: io::Error| Unreadable::Io(error.kind());
        // What is no file would have us wait for somebody to write.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let path = self.path.join(name.to_string());
        let file = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|error| io(error.into()))?;
        let stat = rustix::fs::fstat(&file).map_err(|error| io(error.into()))?;
        if FileType::from_raw_mode(stat.st_mode as RawMode) != FileType::RegularFile {
            return Err(Unreadable::Foreign("no file"));
        }
        check_owner(&stat).map_err(Unreadable::Foreign)?;
        let mut text = Vec::new();
        File::from(file).take(LONGEST as u64 + 1).read_to_end(&mut text).map_err(io)?;
        if text.len() > LONGEST {
            return Err(Unreadable::Foreign("longer than any entry"));
        }
        Ok((Stamp::of(&stat), entry::read(name, &text)?))
    }

    /// Removes all entries of a worker, but for this one.
    pub(super) fn remove(&self, uid: Uid, but: Option<Name>) {
        for name in self.list().into_keys().filter(|name| name.uid == uid && Some(*name) != but) {
            self.remove_entry(name);
        }
    }

    /// Removes an entry; and the folder, if it was the last one.
    pub(super) fn remove_entry(&self, name: Name) {
        // Others may do the same at the same time.
        let _ = fs::remove_file(self.path.join(name.to_string()));
        let _ = fs::remove_dir(&self.path);
    }

    /// Removes what processes have left behind that are gone.
    pub(super) fn sweep(&self) {
        let Some(folder) = self.open() else { return };
        for name in names(&folder) {
            let owner = name.parse::<Name>().ok().map(|name| name.process).or_else(|| entry::draft_writer(&name));
            if owner.is_some_and(Process::is_gone) {
                let _ = rustix::fs::unlinkat(&folder, &name, AtFlags::empty());
            }
        }
        let _ = fs::remove_dir(&self.path);
    }

    /// The workers whose processes are there.
    pub(super) fn workers(&self) -> Vec<WorkerMetadata> {
        self.sweep();
        let mut latest = BTreeMap::new();
        for name in self.list().into_keys().filter(|name| matches!(name.process.watch(), Life::Alive(_))) {
            if let Ok((stamp, worker)) = self.read(name) {
                keep_latest(&mut latest, stamp, worker);
            }
        }
        latest.into_values().map(|(_, worker)| worker).collect()
    }

    fn open(&self) -> Option<OwnedFd> {
        match self.pools.open().and_then(|_| open_own(&self.path)) {
            Ok(folder) => Some(folder),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::debug!(folder = %self.path.display(), %error, "no folder of workers");
                None
            }
        }
    }
}

/// A worker that was started anew may have two entries for a moment.
pub(super) fn keep_latest<W>(latest: &mut BTreeMap<Uid, (Stamp, W)>, stamp: Stamp, worker: W)
where
    W: std::borrow::Borrow<WorkerMetadata>,
{
    let uid = worker.borrow().uid;
    if latest.get(&uid).is_none_or(|(known, _)| *known < stamp) {
        latest.insert(uid, (stamp, worker));
    }
}

impl Stamp {
    fn of(stat: &Stat) -> Self {
        let changed = (stat.st_mtime, stat.st_mtime_nsec as i64);
        Self { changed, inode: stat.st_ino, size: stat.st_size }
    }
}

/// Makes a folder for this user alone, or sees that it is one.
pub(super) fn own_folder(path: &Path) -> io::Result<OwnedFd> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => open_own(path),
        Err(error) => Err(error.into()),
    }
}

/// Opens a folder that nobody but this user can have written to.
pub(super) fn open_own(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    check_owner(&rustix::fs::fstat(&folder)?).map_err(|why| io::Error::new(io::ErrorKind::PermissionDenied, why))?;
    Ok(folder)
}

/// Whether nobody but this user can have written there.
fn check_owner(stat: &Stat) -> Result<(), &'static str> {
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err("it belongs to another user");
    }
    let writable_by_others = Mode::WGRP | Mode::WOTH;
    if Mode::from_raw_mode(stat.st_mode as RawMode).intersects(writable_by_others) {
        return Err("others may write there: use `chmod go-w`");
    }
    Ok(())
}

/// What is in a folder.
pub(super) fn names(folder: &impl AsFd) -> Vec<String> {
    let Ok(listing) = Dir::read_from(folder) else { return Vec::new() };
    let names = listing.filter_map(|found| String::from_utf8(found.ok()?.file_name().to_bytes().to_vec()).ok());
    names.filter(|name| name != "." && name != "..").collect()
}
