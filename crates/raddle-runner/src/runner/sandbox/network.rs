//! The network namespace of a sandbox: one loopback interface.

use std::{io, os::fd::AsRawFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::sys;

/// The loopback interface that each network namespace has.
const INTERFACE: &str = "lo";

/// Brings the loopback interface up. The process must be privileged in its own network namespace.
pub(super) fn set_up() -> io::Result<()> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: plain data, for which zeros are valid. It is the structure that this ioctl takes, and
    // it outlives the call.
    let done = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(INTERFACE.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS as _,
            &raw const request,
        )
    };
    sys::check(done).map(drop)
}
