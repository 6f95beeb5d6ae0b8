//! The state file beside the database that every process maps: notification counters (`notify.rs`)
//! and leases (`lease.rs`).
//!
//! All of it is atomics, so a process that is stopped or killed at any point blocks no other. The
//! file is not synced and may be deleted: nothing that was accepted depends on it.

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
    open::{file_error, with_suffix},
};
use raddle_broker::{Error, Result};

/// The start of the file.
#[repr(C, align(64))]
pub(super) struct StateHeader {
    /// Counts all notifications; the futex word.
    pub(super) notifications: AtomicU32,
    /// Counts the notifications of each topic.
    pub(super) counters: [AtomicU32; TOPICS],
    /// The process that holds, or last held, the write lock.
    pub(super) holder: AtomicU32,
    /// The number of slots; 0 in a new file, which has [`INITIAL_SLOTS`].
    room: AtomicU32,
    /// The boot id to which the slots belong.
    boot: AtomicI64,
    /// When the file was first opened in that boot, on the monotonic clock.
    created_at: AtomicI64,
}

/// A worker's lease and its last heartbeat.
#[repr(C, align(64))]
#[derive(Default)]
pub(super) struct WorkerSlot {
    /// The owner; 0 if the slot is free.
    pub(super) worker: AtomicI64,
    /// The end of the lease, on the monotonic clock; 0 if it is not set yet.
    pub(super) until: AtomicI64,
    pub(super) spawned: AtomicU64,
    pub(super) busy: AtomicU32,
    pub(super) status: AtomicU32,
    /// Not 0 if the worker holds a liveness lock, whose absence proves that its processes are gone.
    /// Different for each acquisition.
    pub(super) lock_token: AtomicU32,
}

pub(super) const TOPICS: usize = 4;
const IN_MEMORY: &str = "mem://";
/// A new file is one page: `raddle run` pays for no more.
const INITIAL_BYTES: usize = 4096;
/// The size of the mapping. The file grows on demand; pages beyond its end are not touched.
const MAPPED_BYTES: usize = 1024 * 1024;
/// No file system has smaller blocks.
const SMALLEST_BLOCK: u64 = 512;
/// [`reserve`] writes to the last byte of slots and of the header, which must be padding.
const _: () = assert!(
    offset_of!(WorkerSlot, lock_token) + 4 < size_of::<WorkerSlot>()
        && offset_of!(StateHeader, created_at) + 8 < size_of::<StateHeader>()
);
const INITIAL_SLOTS: usize = slots_in(INITIAL_BYTES);
const MAX_SLOTS: usize = slots_in(MAPPED_BYTES);

const fn slots_in(bytes: usize) -> usize {
    (bytes - size_of::<StateHeader>()) / size_of::<WorkerSlot>()
}

const fn bytes_for(slots: usize) -> u64 {
    (size_of::<StateHeader>() + slots * size_of::<WorkerSlot>()) as u64
}

pub(super) struct SharedState {
    /// Its name, if it has one.
    path: Option<PathBuf>,
    file: File,
    /// Device and inode of the file: another file may get its name later.
    identity: (u64, u64),
    head: NonNull<StateHeader>,
    /// The boot id of the machine.
    boot: i64,
}

// SAFETY: the memory is only accessed through atomics, and stays mapped until the last reference is
// dropped.
unsafe impl Send for SharedState {}
// SAFETY: as above.
unsafe impl Sync for SharedState {}

impl SharedState {
    /// Opens the file beside `database`, and creates it if it does not exist.
    pub(super) fn open(database: &Path, boot: i64) -> Result<Self> {
        let path = with_suffix(database, "-state");
        let io = |e: io::Error| match e.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                file_error(&path, &e)
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
        if found.len() < INITIAL_BYTES as u64 {
            reserve(&file, INITIAL_BYTES as u64).map_err(io)?;
        }
        Self::map(file, Some(path.clone()), boot).map_err(io)
    }

    /// A private copy of the file beside `database`, for a read-only file system. Locks are taken
    /// on the original file. Without one, no worker counts as alive.
    pub(super) fn copy(database: &Path, boot: i64) -> Result<Self> {
        let path = with_suffix(database, "-state");
        let copied = || {
            let memory = File::from(memfd_create("raddle-page", MemfdFlags::CLOEXEC)?);
            // As long as the mapping, so that access to a truncated file does not raise SIGBUS.
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
                None => page.head().created_at.store(0, Ordering::SeqCst),
            }
            Ok(page)
        };
        copied().map_err(|e| Error::io(&path, &e))
    }

    /// The state of a private database.
    pub(super) fn in_memory(boot: i64) -> Result<Self> {
        let made = || {
            let file = File::from(memfd_create("raddle-page", MemfdFlags::CLOEXEC)?);
            reserve(&file, INITIAL_BYTES as u64)?;
            Self::map(file, None, boot)
        };
        made().map_err(|e| Error::io(Path::new(IN_MEMORY), &e))
    }

    fn map(file: File, path: Option<PathBuf>, boot: i64) -> io::Result<Self> {
        let found = file.metadata()?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new shared mapping without other references.
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
        page.init_if_new();
        Ok(page)
    }

    /// Resets a file that is new, belongs to another boot, or was truncated.
    fn init_if_new(&self) {
        if self.head().boot.load(Ordering::Acquire) != self.boot {
            self.reset(self.boot);
        }
    }

    /// Clears the slots of another boot. Two processes that do this at once may clear a slot of
    /// this boot too; its worker has then lost it like one whose file was deleted, and registers
    /// again.
    fn reset(&self, boot: i64) {
        self.head()
            .created_at
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

    /// Opens the file again, for locks that are independent of [`file`](Self::file). `None` if
    /// another file has its name.
    pub(super) fn reopen(&self) -> Option<File> {
        let file = open(self.path.as_deref()?, false).ok()?;
        let found = file.metadata().ok()?;
        (self.identity == (found.dev(), found.ino())).then_some(file)
    }

    /// Whether the file still has its name.
    pub(super) fn is_current(&self) -> bool {
        let is_it = |found: std::fs::Metadata| self.identity == (found.dev(), found.ino());
        self.path
            .as_ref()
            .is_none_or(|path| path.symlink_metadata().is_ok_and(is_it))
    }

    pub(super) fn head(&self) -> &StateHeader {
        self.ensure_length(INITIAL_BYTES as u64);
        // SAFETY: mapped for as long as `self` lives, large enough for a `StateHeader`, and
        // page-aligned.
        unsafe { self.head.as_ref() }
    }

    /// When the file was first opened in this boot, or found truncated: workers must register again
    /// from then on.
    pub(super) fn created_at(&self) -> i64 {
        self.init_if_new();
        self.head().created_at.load(Ordering::Acquire)
    }

    pub(super) fn slots(&self) -> &[WorkerSlot] {
        let room =
            (self.head().room.load(Ordering::Acquire) as usize).clamp(INITIAL_SLOTS, MAX_SLOTS);
        self.ensure_length(bytes_for(room));
        // SAFETY: mapped for as long as `self` lives. The file has that many slots: their number is
        // stored after they are allocated. Slots follow the header, whose size is a multiple of
        // their alignment.
        unsafe { std::slice::from_raw_parts(self.head.add(1).cast().as_ptr(), room) }
    }

    /// Extends a file that was truncated: access to a mapped page beyond the end of the file raises
    /// SIGBUS. The new part is zeros, as in a new file. Every access to the mapping checks this
    /// first; a truncation between check and access is not caught.
    fn ensure_length(&self, bytes: u64) {
        if self.file.metadata().is_ok_and(|found| found.len() < bytes) {
            let _ = reserve(&self.file, bytes);
        }
    }

    /// Adds slots. Safe to be called concurrently.
    pub(super) fn grow(&self) -> Result<()> {
        let more = self.slots().len() + INITIAL_BYTES / size_of::<WorkerSlot>();
        let path = || self.path.clone().unwrap_or_else(|| IN_MEMORY.into());
        if more > MAX_SLOTS {
            let reason =
                format!("there are {MAX_SLOTS} workers already, the maximum: stop some workers");
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
        // SAFETY: the last reference is gone, so no code accesses the memory any more.
        let _ = unsafe { munmap(self.head.as_ptr().cast(), MAPPED_BYTES) };
    }
}

fn open(path: &Path, create: bool) -> io::Result<File> {
    file_mode::options()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        // Do not follow a symbolic link, which could redirect writes to another file.
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(path)
}

/// Allocates disk blocks now, so that a full disk is an error here and not a SIGBUS at the first
/// write.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        // For example ext2. Then write one byte to each block, in padding: another process may have
        // mapped the file already.
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
