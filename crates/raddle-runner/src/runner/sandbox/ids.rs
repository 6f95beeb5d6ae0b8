//! User ids of a sandboxed command. Inside it is an ordinary user. Outside it is the worker's user,
//! who has no power over anything that is visible inside; or uid 65534 (`nobody`) if the worker is
//! root.

use std::{fs, io, os::fd::AsFd};

use rustix::{
    fs::{FileType, fchown, fstat},
    process::{Gid, Uid, getegid, geteuid},
    thread::{self, CapabilitySet, CapabilitySets},
};

use crate::sys;

/// Uid and gid inside. No others exist there.
pub(super) const INSIDE: u32 = 1000;
/// Uid of root's commands outside.
pub const OVERFLOW_UID: u32 = 65534;

/// Maps the ids of the user namespace that `pid` has just entered. This is done from outside: to
/// map its own ids, the shim would have to be dumpable for its user, while its memory still holds
/// the worker's data.
pub(super) fn map_ids(pid: u32) -> io::Result<()> {
    let (mut user, mut group) = (geteuid().as_raw(), getegid().as_raw());
    if sys::is_root() {
        (user, group) = (OVERFLOW_UID, OVERFLOW_UID);
    } else {
        // Required by the kernel: dropping a group that denies access could otherwise grant access.
        fs::write(format!("/proc/{pid}/setgroups"), "deny")?;
    }
    fs::write(format!("/proc/{pid}/uid_map"), format!("{INSIDE} {user} 1"))?;
    fs::write(
        format!("/proc/{pid}/gid_map"),
        format!("{INSIDE} {group} 1"),
    )
}

/// Changes to the inside user. Root also drops its supplementary groups; others cannot.
///
/// Changes only the calling thread. The C library would change every thread, and wait for one that
/// is creating a network namespace.
pub(super) fn become_inside_user(is_root: bool) -> io::Result<()> {
    become_user(INSIDE, is_root)
}

/// Changes root to uid 65534, where there is no user namespace.
pub(super) fn become_overflow_user() -> io::Result<()> {
    become_user(OVERFLOW_UID, true)
}

fn become_user(id: u32, leaves_groups: bool) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
    if leaves_groups {
        thread::set_thread_groups(&[])?;
    }
    thread::set_thread_res_gid(group, group, group)?;
    Ok(thread::set_thread_res_uid(user, user, user)?)
}

/// Whether a file of this user was created by this process or by one of its commands.
pub(super) fn is_ours(user: u32) -> bool {
    user == geteuid().as_raw() || (sys::is_root() && user == OVERFLOW_UID)
}

/// Gives files that root has created for a command to the command's user, who may open them by
/// name.
pub(super) fn give_to_command_user(fds: impl IntoIterator<Item = impl AsFd>) {
    if sys::is_root() {
        for fd in fds {
            // A device, such as the empty input, belongs to the host: its new owner could deny it
            // to all others.
            if fstat(&fd).is_ok_and(|found| {
                FileType::from_raw_mode(found.st_mode) != FileType::CharacterDevice
            }) {
                let _ = fchown(
                    &fd,
                    Some(Uid::from_raw(OVERFLOW_UID)),
                    Some(Gid::from_raw(OVERFLOW_UID)),
                );
            }
        }
    }
}

/// Empties the capability bounding set, so that no program can gain capabilities. This needs
/// CAP_SETPCAP, so it must come before privileges are dropped and before root changes its user. A
/// process without CAP_SETPCAP cannot gain capabilities from programs either, once it has dropped
/// its privileges.
pub(super) fn bound_capabilities() {
    let all = (0..u64::BITS).map(|number| CapabilitySet::from_bits_retain(1 << number));
    // Until the kernel knows no capability of that number.
    all.map(thread::remove_capability_from_bounding_set)
        .take_while(Result::is_ok)
        .for_each(drop);
}

/// Drops every capability, and sets no_new_privs so that none can be gained.
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
