//! The one interface of a network of its own, by which programs talk to themselves. It is there, and down.

use std::{
    io, mem,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use crate::sys;

/// Takes it up. The process is in a network of its own, and has not given up its privileges.
pub(super) fn raise() -> io::Result<()> {
    // SAFETY: a new descriptor, which nobody else owns.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        OwnedFd::from_raw_fd(sys::check(fd)?)
    };
    // SAFETY: plain data, for which zeros are a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the structure that this request takes, which outlives the call.
    sys::check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) }).map(drop)
}
