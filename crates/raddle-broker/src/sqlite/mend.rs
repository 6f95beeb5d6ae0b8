//! A mapped file that somebody cuts short: to touch what it no longer has is a SIGBUS, which would end the process without a word.
//!
//! The file is made longer again, in the signal's handler, and the touch repeated. What is found there then is zeros, as in a new file, and
//! whoever reads them knows that (`page`). A fault of any other kind is left to whoever was there before.

use std::{
    fs::File,
    mem,
    os::fd::AsRawFd,
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicI32, AtomicUsize, Ordering},
    },
};

use libc::{c_int, c_void, siginfo_t};

/// A mapping that is mended. Dropped before the mapping and its file are.
#[derive(Debug)]
pub(super) struct Mended(Option<&'static Entry>);

#[derive(Debug)]
struct Entry {
    /// Its address; 0 if there is none.
    start: AtomicUsize,
    bytes: AtomicUsize,
    file: AtomicI32,
}

/// A process has one or two: more of them are as they would be without this.
static ENTRIES: [Entry; 32] =
    [const { Entry { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0), file: AtomicI32::new(-1) } }; 32];
/// What was done about SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
/// Stands for the address of an entry that is being filled in.
const TAKEN: usize = 1;
const BLOCK: usize = 4096;

/// Has a mapping of `file` mended from now on.
pub(super) fn mend(start: *const u8, bytes: usize, file: &File) -> Mended {
    BEFORE.get_or_init(install);
    let free = |entry: &&Entry| entry.start.compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let entry = ENTRIES.iter().find(free);
    if let Some(entry) = entry {
        entry.bytes.store(bytes, Ordering::Relaxed);
        entry.file.store(file.as_raw_fd(), Ordering::Relaxed);
        entry.start.store(start.addr(), Ordering::Release);
    }
    Mended(entry)
}

impl Drop for Mended {
    fn drop(&mut self) {
        if let Some(entry) = self.0 {
            entry.start.store(0, Ordering::Release);
        }
    }
}

fn install() -> libc::sigaction {
    // SAFETY: zeros are a value of this plain structure. The handler makes system calls on integers alone, and touches atomics and what was
    // written before it was installed or is not read until then.
    unsafe {
        let mut before: libc::sigaction = mem::zeroed();
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_fault as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
        // On the other stack, if there is one: this one may be what is at fault.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before);
        before
    }
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid structure, which of a fault has an address. What is interrupted must not find another errno.
    unsafe {
        let errno = *libc::__errno_location();
        let is_mended = make_longer((*info).si_addr().addr());
        *libc::__errno_location() = errno;
        if !is_mended {
            // The fault repeats itself, and is theirs then.
            let before = BEFORE.get().map_or(ptr::null(), ptr::from_ref);
            let default: libc::sigaction = mem::zeroed();
            let action = if before.is_null() { &raw const default } else { before };
            libc::sigaction(signal, action, ptr::null_mut());
        }
    }
}

/// Makes the file longer that is mapped at `address`, if it ends before that.
fn make_longer(address: usize) -> bool {
    let holds = |entry: &&Entry| {
        let start = entry.start.load(Ordering::Acquire);
        start > TAKEN && (start..start + entry.bytes.load(Ordering::Relaxed)).contains(&address)
    };
    let Some(entry) = ENTRIES.iter().find(holds) else { return false };
    let file = entry.file.load(Ordering::Relaxed);
    let offset = address - entry.start.load(Ordering::Relaxed);
    let wanted = ((offset / BLOCK + 1) * BLOCK) as libc::off_t;
    // SAFETY: system calls on a descriptor that is open as long as the entry is there, and on a structure for which zeros are a value.
    unsafe {
        let mut found: libc::stat = mem::zeroed();
        // A file that is long enough has another fault, which would come again and again.
        libc::fstat(file, &raw mut found) == 0 && found.st_size < wanted && libc::fallocate(file, 0, 0, wanted) == 0
    }
}
