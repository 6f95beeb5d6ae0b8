//! The user that a command in a sandbox is. Inside it is an ordinary one. Outside it is the worker's own, which has no power over anything that
//! is to be seen inside; or `nobody`, where the worker is root.

use std::{fs, io, os::fd::AsFd};

use rustix::{
    fs::{FileType, fchown, fstat},
    process::{Gid, Uid, getegid, geteuid},
    thread::{self, CapabilitySet, CapabilitySets},
};

use crate::sys;

/// Its number inside. No other is there.
pub(super) const INSIDE: u32 = 1000;
/// What root's commands are outside.
pub const NOBODY: u32 = 65534;

/// Names the user of a user namespace that `pid` has just entered. It is named from outside: whoever is to name itself must let others of its
/// user look into it, and what it still has in memory is the worker's.
pub(super) fn name(pid: u32) -> io::Result<()> {
    let (mut user, mut group) = (geteuid().as_raw(), getegid().as_raw());
    if sys::is_root() {
        (user, group) = (NOBODY, NOBODY);
    } else {
        // The system asks for it: whoever drops a group that keeps him out of something would be let in.
        fs::write(format!("/proc/{pid}/setgroups"), "deny")?;
    }
    fs::write(format!("/proc/{pid}/uid_map"), format!("{INSIDE} {user} 1"))?;
    fs::write(
        format!("/proc/{pid}/gid_map"),
        format!("{INSIDE} {group} 1"),
    )
}

/// Becomes that user. Root leaves its other groups, too; others cannot.
///
/// The calling thread alone does. The C library would have every thread do so, and wait for one that is making a network.
pub(super) fn become_it(is_root: bool) -> io::Result<()> {
    become_user(INSIDE, is_root)
}

/// Becomes `nobody`, as root, where there is no user namespace to be another in.
pub(super) fn become_nobody() -> io::Result<()> {
    become_user(NOBODY, true)
}

fn become_user(id: u32, leaves_groups: bool) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
    if leaves_groups {
        thread::set_thread_groups(&[])?;
    }
    thread::set_thread_res_gid(group, group, group)?;
    Ok(thread::set_thread_res_uid(user, user, user)?)
}

/// Whether a file that belongs to this user was made by a command of this process, or by the process itself.
pub(super) fn is_ours(user: u32) -> bool {
    user == geteuid().as_raw() || (sys::is_root() && user == NOBODY)
}

/// Gives what root has made for a command to its user, who may want to open it by its name.
pub(super) fn hand_over(fds: impl IntoIterator<Item = impl AsFd>) {
    if sys::is_root() {
        for fd in fds {
            // A device, as the empty input is, is the host's own: its owner may take it away from all others.
            if fstat(&fd).is_ok_and(|found| {
                FileType::from_raw_mode(found.st_mode) != FileType::CharacterDevice
            }) {
                let _ = fchown(
                    &fd,
                    Some(Uid::from_raw(NOBODY)),
                    Some(Gid::from_raw(NOBODY)),
                );
            }
        }
    }
}

/// Bounds what any program can ever get to nothing. That takes a capability itself, so it must be done before anything is given up, and
/// before root is somebody else. Whoever has not got that one gets none by a program either, once it has given up its privileges.
pub(super) fn bound_capabilities() {
    let all = (0..u64::BITS).map(|number| CapabilitySet::from_bits_retain(1 << number));
    // Until the kernel has none of that number.
    all.map(thread::remove_capability_from_bounding_set)
        .take_while(Result::is_ok)
        .for_each(drop);
}

/// Gives up every capability, and the means to get one.
pub(super) fn give_up_privileges() -> io::Result<()> {
    let none = CapabilitySet::empty();
    thread::set_no_new_privs(true)?;
    Ok(thread::set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )?)
}
