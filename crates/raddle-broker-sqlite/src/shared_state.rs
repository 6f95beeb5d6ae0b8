//! The small file beside the database that every process maps: how they wake each other (`bell`), and until when workers live (`leases`).
//!
//! All of it is atomics, so that a process that is stopped or killed at any point holds up nobody. What it says can be lost: the file is
//! not synced, and may be deleted. Nothing that was accepted depends on it.

use std::{
    fs::File,
    io::{self, Read},
    mem::offset_of,
    os::{
        fd::AsFd,
        unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    ptr::NonNull,
    sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering},
};

use rustix::{
    fs::{FallocateFlags, MemfdFlags, OFlags, fallocate, memfd_create},
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

use super::{
    clock, file_mode,
    open::{unusable, with_suffix},
};
use raddle_broker::{Error, Result};

/// What begins the file.
#[repr(C, align(64))]
pub(super) struct StateHeader {
    /// Counts all rings; what waiters sleep on.
    pub(super) rings: AtomicU32,
    /// Counts the rings of each topic.
    pub(super) counters: [AtomicU32; TOPICS],
    /// The process that holds, or last held, the write lock.
    pub(super) holder: AtomicU32,
    /// How many slots there is room for; 0 in a new file, which has [`FIRST_SLOTS`].
    room: AtomicU32,
    /// The boot of the machine that the slots are of.
    boot: AtomicI64,
    /// When the file was first opened in that boot, on the machine's clock.
    made_at: AtomicI64,
}

/// What a worker says of itself, and how long it is to be believed.
#[repr(C, align(64))]
#[derive(Default)]
pub(super) struct WorkerSlot {
    /// Whose it is; 0 if nobody's.
    pub(super) worker: AtomicI64,
    /// The end of the lease, on the machine's clock; 0 if that was not said yet.
    pub(super) until: AtomicI64,
    pub(super) spawned: AtomicU64,
    pub(super) busy: AtomicU32,
    pub(super) status: AtomicU32,
    /// Not 0 if the worker's processes hold a lock, whose absence proves that they are gone. Another number each time.
    pub(super) tied: AtomicU32,
}

pub(super) const TOPICS: usize = 4;
const IN_MEMORY: &str = "mem://";
/// A new file is one page of memory, and `raddle run` pays for no more.
const FIRST_BYTES: usize = 4096;
/// So much is mapped. The file grows as it is needed; what it does not have yet is not touched.
const MAPPED_BYTES: usize = 1024 * 1024;
/// No file system has smaller blocks.
const SMALLEST_BLOCK: u64 = 512;
/// [`reserve`] writes to the last byte of slots and of the head.
const _: () = assert!(
    offset_of!(WorkerSlot, tied) + 4 < size_of::<WorkerSlot>()
        && offset_of!(StateHeader, made_at) + 8 < size_of::<StateHeader>()
);
const FIRST_SLOTS: usize = slots_in(FIRST_BYTES);
const MOST_SLOTS: usize = slots_in(MAPPED_BYTES);

const fn slots_in(bytes: usize) -> usize {
    (bytes - size_of::<StateHeader>()) / size_of::<WorkerSlot>()
}

const fn bytes_for(slots: usize) -> u64 {
    (size_of::<StateHeader>() + slots * size_of::<WorkerSlot>()) as u64
}

pub(super) struct SharedState {
    /// Its name, if other processes find it by one.
    path: Option<PathBuf>,
    file: File,
    /// Device and number of the file: another one may have its name by now.
    identity: (u64, u64),
    head: NonNull<StateHeader>,
    /// The boot of the machine that this process runs in.
    boot: i64,
}

// SAFETY: the memory is only touched through atomics, and stays mapped until the last reference is dropped.
unsafe impl Send for SharedState {}
// SAFETY: as above.
unsafe impl Sync for SharedState {}

impl SharedState {
    /// Opens the file beside `database`, or makes it.
    pub(super) fn open(database: &Path, boot: i64) -> Result<Self> {
        let path = with_suffix(database, "-bell");
        let io = |e: io::Error| match e.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                unusable(&path, &e)
            }
            _ => Error::io(&path, &e),
        };
        let file = open(&path, true).map_err(io)?;
        let found = file.metadata().map_err(io)?;
        if found.len() == 0 {
            file_mode::keep(&file, &found)
                .and_then(|()| file_mode::give(&file, database))
                .map_err(io)?;
        }
        if found.len() < FIRST_BYTES as u64 {
            reserve(&file, FIRST_BYTES as u64).map_err(io)?;
        }
        Self::map(file, Some(path.clone()), boot).map_err(io)
    }

    /// A copy of the file beside `database`, for a file system that is read-only. Locks are those of the file itself. Without that file no worker is
    /// taken to be alive.
    pub(super) fn copy(database: &Path, boot: i64) -> Result<Self> {
        let path = with_suffix(database, "-bell");
        let copied = || {
            let memory = File::from(memfd_create("raddle-page", MemfdFlags::CLOEXEC)?);
            // As long as what is mapped: a file that was cut short must not be a SIGBUS.
            memory.set_len(MAPPED_BYTES as u64)?;
            let found = file_mode::options()
                .read(true)
                .custom_flags(OFlags::NOFOLLOW.bits() as i32)
                .open(&path);
            let original = match found {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                found => Some(found?),
            };
            if let Some(original) = &original {
                let mut bytes = Vec::new();
                original.take(MAPPED_BYTES as u64).read_to_end(&mut bytes)?;
                memory.write_all_at(&bytes, 0)?;
            }
            let mut page = Self::map(memory, None, boot)?;
            match original {
                Some(original) => page.file = original,
                None => page.head().made_at.store(0, Ordering::SeqCst),
            }
            Ok(page)
        };
        copied().map_err(|e| Error::io(&path, &e))
    }

    /// The page of a database that no other process has.
    pub(super) fn in_memory(boot: i64) -> Result<Self> {
        let made = || {
            let file = File::from(memfd_create("raddle-page", MemfdFlags::CLOEXEC)?);
            reserve(&file, FIRST_BYTES as u64)?;
            Self::map(file, None, boot)
        };
        made().map_err(|e| Error::io(Path::new(IN_MEMORY), &e))
    }

    fn map(file: File, path: Option<PathBuf>, boot: i64) -> io::Result<Self> {
        let found = file.metadata()?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh shared mapping, to which nothing else refers.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                MAPPED_BYTES,
                protection,
                MapFlags::SHARED,
                file.as_fd(),
                0,
            )
        }?;
        let head = NonNull::new(address.cast()).expect("a mapping is never at address zero");
        let page = Self {
            identity: (found.dev(), found.ino()),
            file,
            head,
            boot,
            path,
        };
        page.begin_if_new();
        Ok(page)
    }

    /// Notices a file that is new, of another boot, or cut short since.
    fn begin_if_new(&self) {
        if self.head().boot.load(Ordering::Acquire) != self.boot {
            self.begin_anew(self.boot);
        }
    }

    /// Forgets the workers of another boot. Two who do that at once may forget one of this boot too: it has lost its slot with a file that
    /// has just been made, which is no harm.
    fn begin_anew(&self, boot: i64) {
        self.head()
            .made_at
            .store(clock::machine(), Ordering::SeqCst);
        for slot in self.slots() {
            slot.worker.store(0, Ordering::SeqCst);
            slot.until.store(0, Ordering::SeqCst);
        }
        self.head().boot.store(boot, Ordering::SeqCst);
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Opens the file once more, for locks that are not to be those of [`file`](Self::file). `None` if another file has its name.
    pub(super) fn open_again(&self) -> Option<File> {
        let file = open(self.path.as_deref()?, false).ok()?;
        let found = file.metadata().ok()?;
        (self.identity == (found.dev(), found.ino())).then_some(file)
    }

    /// Whether this is still the file that others find under its name.
    pub(super) fn is_current(&self) -> bool {
        let is_it = |found: std::fs::Metadata| self.identity == (found.dev(), found.ino());
        self.path
            .as_ref()
            .is_none_or(|path| path.symlink_metadata().is_ok_and(is_it))
    }

    pub(super) fn head(&self) -> &StateHeader {
        self.keep_length(FIRST_BYTES as u64);
        // SAFETY: mapped for as long as `self` lives, large enough for a `StateHeader`, and page-aligned.
        unsafe { self.head.as_ref() }
    }

    /// When the file was first opened in this boot, or found to be cut short: workers have to enter again then.
    pub(super) fn made_at(&self) -> i64 {
        self.begin_if_new();
        self.head().made_at.load(Ordering::Acquire)
    }

    pub(super) fn slots(&self) -> &[WorkerSlot] {
        let room =
            (self.head().room.load(Ordering::Acquire) as usize).clamp(FIRST_SLOTS, MOST_SLOTS);
        self.keep_length(bytes_for(room));
        // SAFETY: mapped for as long as `self` lives; the file has that much room, which was noted only after it was made. Slots follow
        // the head, whose size is a multiple of their alignment.
        unsafe { std::slice::from_raw_parts(self.head.add(1).cast().as_ptr(), room) }
    }

    /// Makes a file longer again that was cut short: to touch what is mapped and not there is a SIGBUS. What is found there then is zeros, as in a new file.
    /// Each use of the page looks first. What is cut off between that and the use is not caught.
    fn keep_length(&self, bytes: u64) {
        if self.file.metadata().is_ok_and(|found| found.len() < bytes) {
            let _ = reserve(&self.file, bytes);
        }
    }

    /// Makes room for more slots. Several may do so at once.
    pub(super) fn grow(&self) -> Result<()> {
        let more = self.slots().len() + FIRST_BYTES / size_of::<WorkerSlot>();
        let path = || self.path.clone().unwrap_or_else(|| IN_MEMORY.into());
        if more > MOST_SLOTS {
            let reason =
                format!("there are {MOST_SLOTS} workers already, which is as many as there can be");
            return Err(Error::Io {
                path: path(),
                reason,
            });
        }
        reserve(&self.file, bytes_for(more)).map_err(|e| Error::io(&path(), &e))?;
        self.head().room.fetch_max(more as u32, Ordering::AcqRel);
        Ok(())
    }
}

impl Drop for SharedState {
    fn drop(&mut self) {
        // SAFETY: the last reference is gone, so nobody reads the memory any more.
        let _ = unsafe { munmap(self.head.as_ptr().cast(), MAPPED_BYTES) };
    }
}

fn open(path: &Path, create: bool) -> io::Result<File> {
    file_mode::options()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        // A link here would have another file written to.
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(path)
}

/// Allocates blocks of the disk now: a full one must show here, and not as a SIGBUS when something is first written.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        // As on ext2. Then something is written to each block, at an offset that is padding of a slot: another process may have mapped the file by now.
        Err(Errno::OPNOTSUPP) => {
            let ends = (1..=bytes / SMALLEST_BLOCK)
                .map(|block| block * SMALLEST_BLOCK)
                .chain([bytes]);
            ends.into_iter()
                .try_for_each(|end| file.write_all_at(&[0], end - 1))
        }
        reserved => Ok(reserved?),
    }
}
