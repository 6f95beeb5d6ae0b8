//! Landlock: what is written to files may be written below a few folders alone. A second lock on a door that the root has closed already, and
//! the only one where there is no root.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

use crate::sys;

/// Rights to files, as the kernel numbers them.
const EXECUTE: u64 = 1;
const READ_FILE: u64 = 1 << 2;
const READ_FOLDER: u64 = 1 << 3;
/// What can be said of a file that is no folder.
const OF_FILES: u64 = EXECUTE | (1 << 1) | READ_FILE | (1 << 14) | (1 << 15);
/// All that the first version knows: to write, remove and make.
const OF_FIRST: u64 = (1 << 13) - 1;
/// What later versions added: to move between folders, to truncate, and to talk to devices.
const ADDED: [(u32, u64); 3] = [(2, 1 << 13), (3, 1 << 14), (5, 1 << 15)];
/// From this version on, sockets and signals can be kept inside.
const SCOPES: u32 = 6;
const ABSTRACT_SOCKETS: u64 = 1;
const SIGNALS: u64 = 2;

/// Asks for the version.
const VERSION: u32 = 1;
/// A rule for all below a folder.
const BENEATH: u32 = 1;

#[repr(C)]
struct Ruleset {
    files: u64,
    network: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct Rule {
    allowed: u64,
    folder: i32,
}

/// Puts this process, and all that it will start, under rules: what it may read and run, and what it may write besides, as far as that is
/// there, and a program that it may run although it is nowhere. It must have given up its privileges.
pub(super) fn restrict(readable: &[&str], writable: &[&str], program: Option<RawFd>) -> io::Result<()> {
    let nothing = ptr::null::<Ruleset>();
    // SAFETY: asks for a number.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0usize, VERSION) };
    let version = sys::check(version as i32)? as u32;
    let handled = ADDED.iter().filter(|(since, _)| *since <= version).fold(OF_FIRST, |all, (_, right)| all | right);
    let scoped = if version >= SCOPES { ABSTRACT_SOCKETS | SIGNALS } else { 0 };
    let rules = Ruleset { files: handled, network: 0, scoped };
    // An older kernel takes no more than it knows of.
    let size = if version >= SCOPES { size_of::<Ruleset>() } else { size_of::<u64>() };
    // SAFETY: a structure that outlives the call; the descriptor is owned by nobody else.
    let ruleset = unsafe {
        let fd = libc::syscall(libc::SYS_landlock_create_ruleset, &raw const rules, size, 0u32);
        OwnedFd::from_raw_fd(sys::check(fd as i32)?)
    };
    readable.iter().try_for_each(|path| allow_at(&ruleset, path, EXECUTE | READ_FILE | READ_FOLDER))?;
    writable.iter().try_for_each(|path| allow_at(&ruleset, path, handled))?;
    program.map_or(Ok(()), |program| allow(&ruleset, program, EXECUTE | READ_FILE))?;
    // SAFETY: plain integers.
    sys::check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) } as i32).map(drop)
}

fn allow_at(ruleset: &OwnedFd, path: &str, allowed: u64) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let found = match std::fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let allowed = if found.metadata()?.is_dir() { allowed } else { allowed & OF_FILES };
    allow(ruleset, found.as_raw_fd(), allowed)
}

fn allow(ruleset: &OwnedFd, folder: RawFd, allowed: u64) -> io::Result<()> {
    let rule = Rule { allowed, folder };
    // SAFETY: a structure that outlives the call.
    let added =
        unsafe { libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), BENEATH, &raw const rule, 0u32) };
    sys::check(added as i32).map(drop)
}
