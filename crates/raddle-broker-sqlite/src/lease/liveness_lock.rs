//! Liveness locks: OFD locks that the kernel releases when the last process that holds them is
//! gone, which proves that a worker is dead.
//!
//! An OFD lock belongs to an open file description. A worker's runners inherit it and close it in
//! their commands. So the lock is free when the worker *and* all of its runners are gone, and
//! others need not wait for the lease to expire.

use std::{
    fs::File,
    os::fd::{AsRawFd, OwnedFd},
};

use raddle_model::Tid;
use rustix::io::{FdFlags, fcntl_setfd};

/// Takes a worker's lock on a file that was opened for it alone. `None` if the file system has no
/// OFD locks.
pub(crate) fn acquire_liveness_lock(file: File, worker: Tid) -> Option<OwnedFd> {
    let mut lock = byte_of(worker);
    // SAFETY: the descriptor is open, and the call may read `lock`.
    let taken = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) } == 0;
    // Clear FD_CLOEXEC: children inherit the lock.
    (taken && fcntl_setfd(&file, FdFlags::empty()).is_ok()).then(|| file.into())
}

/// Whether a worker's lock is free. `file` must be another open file description than the one that
/// holds it.
pub(crate) fn is_free(file: &File, worker: Tid) -> bool {
    let mut lock = byte_of(worker);
    // SAFETY: the descriptor is open, and the call may write to `lock`.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } == 0;
    asked && lock.l_type == libc::F_UNLCK as libc::c_short
}

/// The byte range of a worker: one byte far behind the end of the file, different for every worker
/// id.
fn byte_of(worker: Tid) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: worker.as_i64(),
        l_len: 1,
        l_pid: 0,
    }
}
