//! The user that a command in a sandbox is. Inside it is an ordinary one. Outside it is the worker's own, which has no power over anything that
//! is to be seen inside; or `nobody`, where the worker is root.

use std::{fs, io, ptr};

use crate::sys;

/// Its number inside. No other is there.
pub(super) const INSIDE: u32 = 1000;
/// What root's commands are outside.
const NOBODY: u32 = 65534;

/// Becomes that user in a user namespace that was just entered: whoever enters one may name himself in it.
pub(super) fn name_myself(user: u32, group: u32) -> io::Result<()> {
    // Whoever cannot change groups cannot drop one that keeps him out of something.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{INSIDE} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{INSIDE} {group} 1"))
}

/// Leaves root behind, for good, and enters a user namespace.
pub(super) fn leave_root() -> io::Result<()> {
    // SAFETY: plain integers, and an empty list.
    unsafe {
        sys::check(libc::setgroups(0, ptr::null()))?;
        sys::check(libc::setresgid(NOBODY, NOBODY, NOBODY))?;
        sys::check(libc::setresuid(NOBODY, NOBODY, NOBODY))?;
        // A process that has changed its user may not look at itself, and could not name itself.
        sys::check(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0))?;
        sys::check(libc::unshare(libc::CLONE_NEWUSER))?;
    }
    name_myself(NOBODY, NOBODY)
}

/// Who owns what is made for the command: by its number where that is made.
pub(super) fn owner(is_root: bool) -> u32 {
    if is_root { NOBODY } else { INSIDE }
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
        // Until there is none of that number.
        let mut capability = 0;
        while libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) == 0 {
            capability += 1;
        }
        let (header, none) = (Header { version: VERSION, pid: 0 }, [0u32; 6]);
        sys::check(libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) as i32)?;
    }
    Ok(())
}
