//! The user that a command in a sandbox is. Inside it is an ordinary one. Outside it is the worker's own, which has no power over anything that
//! is to be seen inside; or `nobody`, where the worker is root.

use std::{fs, io, os::fd::RawFd, ptr};

use crate::sys;

/// Its number inside. No other is there.
pub(super) const INSIDE: u32 = 1000;
/// What root's commands are outside.
const NOBODY: u32 = 65534;

/// Names the user of a user namespace that `pid` has just entered. It is named from outside: whoever is to name itself must let others of its
/// user look into it, and what it still has in memory is the worker's.
pub(super) fn name(pid: u32) -> io::Result<()> {
    // SAFETY: these cannot fail.
    let (mut user, mut group) = unsafe { (libc::geteuid(), libc::getegid()) };
    if sys::is_root() {
        (user, group) = (NOBODY, NOBODY);
    } else {
        // The system asks for it: whoever drops a group that keeps him out of something would be let in.
        fs::write(format!("/proc/{pid}/setgroups"), "deny")?;
    }
    fs::write(format!("/proc/{pid}/uid_map"), format!("{INSIDE} {user} 1"))?;
    fs::write(format!("/proc/{pid}/gid_map"), format!("{INSIDE} {group} 1"))
}

/// Becomes that user. Root leaves its other groups, too; others cannot.
///
/// The calling thread alone does. The C library would have every thread do so, and wait for one that is making a network.
pub(super) fn become_it(is_root: bool) -> io::Result<()> {
    // SAFETY: plain integers, and an empty list.
    unsafe {
        if is_root {
            sys::check(libc::syscall(libc::SYS_setgroups, 0, ptr::null::<libc::gid_t>()) as i32)?;
        }
        sys::check(libc::syscall(libc::SYS_setresgid, INSIDE, INSIDE, INSIDE) as i32)?;
        sys::check(libc::syscall(libc::SYS_setresuid, INSIDE, INSIDE, INSIDE) as i32).map(drop)
    }
}

/// Becomes `nobody`, as root, where there is no user namespace to be another in.
pub(super) fn become_nobody() -> io::Result<()> {
    // SAFETY: plain integers, and an empty list.
    unsafe {
        sys::check(libc::setgroups(0, ptr::null()))?;
        sys::check(libc::setresgid(NOBODY, NOBODY, NOBODY))?;
        sys::check(libc::setresuid(NOBODY, NOBODY, NOBODY)).map(drop)
    }
}

/// Whether a file that belongs to this user was made by a command of this process, or by the process itself.
pub(super) fn is_ours(user: u32) -> bool {
    // SAFETY: this cannot fail.
    user == unsafe { libc::geteuid() } || (sys::is_root() && user == NOBODY)
}

/// Gives what root has made for a command to its user, who may want to open it by its name.
pub(super) fn hand_over(fds: impl Iterator<Item = RawFd>) {
    if sys::is_root() {
        for fd in fds {
            // SAFETY: plain data, for which zeros are a value, and a place for the result.
            let kind = unsafe {
                let mut found: libc::stat = std::mem::zeroed();
                if libc::fstat(fd, &raw mut found) == 0 { found.st_mode & libc::S_IFMT } else { 0 }
            };
            // A device, as the empty input is, is the host's own: its owner may take it away from all others.
            if kind != libc::S_IFCHR {
                // SAFETY: plain integers.
                unsafe { libc::fchown(fd, NOBODY, NOBODY) };
            }
        }
    }
}

/// Bounds what any program can ever get to nothing. That takes a capability itself, so it must be done before anything is given up, and
/// before root is somebody else. Whoever has not got that one gets none by a program either, once it has given up its privileges.
pub(super) fn bound_capabilities() {
    let mut capability = 0;
    // Until there is none of that number.
    // SAFETY: plain integers.
    while unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } == 0 {
        capability += 1;
    }
}

/// Gives up every capability, and the means to get one.
pub(super) fn give_up_privileges() -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    /// The structure that has 64 bits.
    const VERSION: u32 = 0x2008_0522;
    // SAFETY: plain integers, and structures as the kernel has them.
    unsafe {
        sys::check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        let (header, none) = (Header { version: VERSION, pid: 0 }, [0u32; 6]);
        sys::check(libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) as i32)?;
    }
    Ok(())
}
