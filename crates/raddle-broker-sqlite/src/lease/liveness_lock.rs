//! A lock that the kernel lets go of when the last process that holds it is gone: proof of a worker's death.
//!
//! It belongs to an open file, which a worker's runners inherit, and keep from their commands by their own care. So it is free when the
//! worker *and* all of its runners are gone, and what they ran is over: nobody has to wait for the end of a lease to be sure of that.

use std::{
    fs::File,
    os::fd::{AsRawFd, OwnedFd},
};

use raddle_model::Tid;
use rustix::io::{FdFlags, fcntl_setfd};

/// Takes the lock of a worker on a file that was opened for it alone. `None` where the file system has no such locks.
pub(crate) fn acquire_liveness_lock(file: File, worker: Tid) -> Option<OwnedFd> {
    let mut lock = byte_of(worker);
    // SAFETY: the descriptor is open, and the lock is one that the call may read.
    let taken = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) } == 0;
    // Children are to inherit it.
    (taken && fcntl_setfd(&file, FdFlags::empty()).is_ok()).then(|| file.into())
}

/// Whether nobody holds the lock of a worker. `file` must be another opening than the one that it was taken on.
pub(crate) fn is_free(file: &File, worker: Tid) -> bool {
    let mut lock = byte_of(worker);
    // SAFETY: the descriptor is open, and the lock is one that the call may write to.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } == 0;
    asked && lock.l_type == libc::F_UNLCK as libc::c_short
}

/// One byte far behind the end of the file, a different one for every worker that there will ever be.
fn byte_of(worker: Tid) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: worker.as_i64(),
        l_len: 1,
        l_pid: 0,
    }
}
