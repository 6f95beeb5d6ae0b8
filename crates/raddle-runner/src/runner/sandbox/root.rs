//! The file system of a sandboxed command: the operating system's directories, read-only;
//! `/scratch` and `/tmp` in memory, which vanish with the sandbox; a few devices; its own
//! processes; and the mounts of its task.

use std::{
    ffi::CString,
    fs::{self, File},
    io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::symlink},
    },
    path::{Path, PathBuf},
};

use raddle_model::spec::{Mount, NetworkPolicy};
use rustix::{
    fs::{CWD, FileType, Mode, fstat},
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
        mount_bind_recursive, mount_change, move_mount, open_tree, unmount,
    },
    process::{pivot_root, umask},
};

use super::{super::child::ChildStep, Layer, SCRATCH, StartError, ids};
use crate::{HANDLER, message::SandboxConfig, sys};

/// Where the new root is assembled. The host's files there are not visible inside anyway.
const STAGE: &str = "/tmp";
/// The operating system's directories. Some may be links to others.
const SYSTEM: [&str; 7] = [
    "/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32",
];
/// Files of `/etc` that programs need and that reveal nothing about the host.
const SETTINGS: [&str; 3] = ["/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs"];
/// Files that host name lookups need in addition.
const NAMES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];
/// Each device costs a mount, so only those are here that programs cannot do without.
const DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/urandom"];
const LINKS: [(&str, &str); 6] = [
    ("urandom", "dev/random"),
    ("/proc/self/fd", "dev/fd"),
    ("/proc/self/fd/0", "dev/stdin"),
    ("/proc/self/fd/1", "dev/stdout"),
    ("/proc/self/fd/2", "dev/stderr"),
    ("/tmp", "dev/shm"),
];

/// Mount options. The root itself is small; the writable directories are larger, and bounded
/// because they are memory.
const OF_ROOT: &str = "size=1m,nr_inodes=512,mode=0755";
const OF_SCRATCH: &str = "size=256m,nr_inodes=65536,mode=0700";
const OF_TMP: &str = "size=64m,nr_inodes=16384,mode=1777";

const READ_ONLY: u64 = 0x1;
const NO_SUID: u64 = 0x2;
const NO_DEVICES: u64 = 0x4;

/// Whether a program at this path is visible inside. Checked against the host's files before the
/// root exists, so paths with `.` or `..` do not count.
pub(in super::super) fn is_visible(path: &[u8]) -> bool {
    let is_straight = path
        .split(|b| *b == b'/')
        .skip(1)
        .all(|part| !matches!(part, b"" | b"." | b".."));
    is_straight
        && SYSTEM.iter().any(|directory| {
            path.strip_prefix(directory.as_bytes())
                .is_some_and(|rest| rest.starts_with(b"/"))
        })
}

/// The readable and the writable paths for a sandbox without its own root: as close to that root as
/// the host's files come. `/proc` is not included, because the worker's environment could be read
/// there.
pub(super) fn accessible_paths<'a>(
    sandbox: &'a SandboxConfig,
    scratch: &'a str,
) -> (Vec<&'a str>, Vec<&'a str>) {
    let names = if sandbox.network == NetworkPolicy::Host {
        &NAMES[..]
    } else {
        &[]
    };
    let common = ["/etc/passwd", "/etc/group", "/etc/nsswitch.conf"];
    let readable = SYSTEM
        .into_iter()
        .chain(SETTINGS)
        .chain(common)
        .chain(names.iter().copied());
    let readable = readable.chain(sandbox.directory.as_deref()).collect();
    (
        readable,
        DEVICES
            .into_iter()
            .chain(["/dev/random", scratch])
            .collect(),
    )
}

/// Builds the root and enters it. The process must be in its own namespaces.
pub(super) fn enter_root(sandbox: &SandboxConfig) -> Result<(), StartError> {
    if let Some(directory) = &sandbox.directory {
        // Enter the directory now: the new root may be assembled on top of it. From here on the
        // directory is reachable as ".".
        std::env::set_current_dir(directory)
            .map_err(|error| StartError::Step(ChildStep::Chdir, error))?;
    }
    let stage = Path::new(STAGE);
    let at = |path: &str| within(stage, path);
    // Files created here are for another user, whatever the worker's umask is.
    umask(Mode::from_raw_mode(0o022));
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    step(
        "keep mounts to itself",
        mount_change("/", private).map_err(Into::into),
    )?;
    // Open the mounts before the new root is assembled, which may hide them.
    let mounts = sandbox
        .mounts
        .iter()
        .map(open_mount)
        .collect::<Result<Vec<_>, _>>()?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let in_memory = |at: &Path, options: &str| {
        Ok(mount(
            "tmpfs",
            at,
            "tmpfs",
            flags,
            CString::new(options)?.as_c_str(),
        )?)
    };
    step("a directory in memory", in_memory(stage, OF_ROOT))?;
    step("directories", mount_points_and_links(stage))?;
    step("the system's directories", system_directories(stage))?;
    step("/etc", etc(stage, sandbox.network == NetworkPolicy::Host))?;
    if sandbox.directory.is_some() {
        step(
            HANDLER,
            fs::create_dir(at(HANDLER)).and_then(|()| bind_mount(".", &at(HANDLER))),
        )?;
    }
    for (mount, tree) in &mounts {
        step(&mount.path, make_mount_point(tree, &at(&mount.path)))?;
        if !mount.writable {
            step(&mount.path, attach(tree, &at(&mount.path)))?;
        }
    }
    // Make everything read-only at once, before anything writable is mounted.
    step(
        "a root that cannot be written",
        set_attributes(
            stage,
            libc::AT_RECURSIVE as u32,
            READ_ONLY | NO_SUID | NO_DEVICES,
        ),
    )?;
    for path in DEVICES {
        step(path, bind_mount(path, &at(path)))?;
    }
    for (mount, tree) in mounts.iter().filter(|(mount, _)| mount.writable) {
        let at = at(&mount.path);
        step(&mount.path, attach(tree, &at))?;
        step(
            &mount.path,
            set_attributes(&at, libc::AT_RECURSIVE as u32, NO_SUID | NO_DEVICES),
        )?;
    }
    let owner = ids::INSIDE;
    for (path, options) in [
        (SCRATCH, format!("{OF_SCRATCH},uid={owner},gid={owner}")),
        ("/tmp", OF_TMP.to_owned()),
    ] {
        step(path, in_memory(&at(path), &options))?;
    }
    let flags = flags | MountFlags::NOEXEC;
    let processes = mount(
        "proc",
        at("/proc"),
        "proc",
        flags,
        c"subset=pid,hidepid=invisible",
    );
    step("/proc", processes.map_err(Into::into))?;
    step("change the root", change_root(stage))?;
    let begin = if sandbox.directory.is_some() {
        HANDLER
    } else {
        SCRATCH
    };
    step(begin, std::env::set_current_dir(begin))
}

fn within(stage: &Path, path: &str) -> PathBuf {
    stage.join(path.trim_start_matches('/'))
}

fn step(what: &str, outcome: io::Result<()>) -> Result<(), StartError> {
    outcome.map_err(Layer::Root.refused(what))
}

/// Bind-mounts a directory or file of the host.
fn bind_mount(path: &str, at: &Path) -> io::Result<()> {
    Ok(mount_bind_recursive(path, at)?)
}

/// Opens files of the host, with all mounts below them, as a tree that can be attached elsewhere.
fn open_mount(mount: &Mount) -> Result<(&Mount, OwnedFd), StartError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, &*mount.host, flags).map_err(|error| {
        let what = format!("{} of the host", mount.host);
        Layer::Root.refused(what)(error.into())
    })?;
    Ok((mount, tree))
}

/// Creates a mount point for such a tree: a directory or an empty file.
fn make_mount_point(tree: &OwnedFd, at: &Path) -> io::Result<()> {
    if FileType::from_raw_mode(fstat(tree)?.st_mode) == FileType::Directory {
        return fs::create_dir_all(at);
    }
    at.parent().map_or(Ok(()), fs::create_dir_all)?;
    File::create_new(at).map(drop)
}

fn attach(tree: &OwnedFd, at: &Path) -> io::Result<()> {
    Ok(move_mount(
        tree,
        "",
        CWD,
        at,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )?)
}

/// Creates mount points and links.
fn mount_points_and_links(stage: &Path) -> io::Result<()> {
    for path in [SCRATCH, "/tmp", "/proc", "/dev", "/etc"] {
        fs::create_dir(within(stage, path))?;
    }
    DEVICES
        .iter()
        .try_for_each(|path| fs::write(within(stage, path), ""))?;
    LINKS
        .iter()
        .try_for_each(|(target, link)| symlink(target, stage.join(link)))
}

fn system_directories(stage: &Path) -> io::Result<()> {
    for path in SYSTEM {
        let at = within(stage, path);
        match fs::read_link(path) {
            Ok(link) => symlink(link, at)?,
            Err(_) if Path::new(path).is_dir() => {
                fs::create_dir(&at)?;
                bind_mount(path, &at)?;
            }
            Err(_) => {}
        }
    }
    Ok(())
}

fn etc(stage: &Path, has_host_names: bool) -> io::Result<()> {
    for path in SETTINGS
        .into_iter()
        .chain(NAMES.into_iter().filter(|_| has_host_names))
    {
        let at = within(stage, path);
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => fs::create_dir_all(&at)?,
            Ok(_) => fs::write(&at, "")?,
            Err(_) => continue,
        }
        bind_mount(path, &at)?;
    }
    let user = ids::INSIDE;
    let hosts =
        (!has_host_names).then(|| ("hosts", "127.0.0.1 localhost\n::1 localhost\n".to_owned()));
    let sources = if has_host_names { "files dns" } else { "files" };
    let own = [
        (
            "passwd",
            format!("sandbox:x:{user}:{user}::{SCRATCH}:/bin/sh\n"),
        ),
        ("group", format!("sandbox:x:{user}:\n")),
        (
            "nsswitch.conf",
            format!("passwd: files\ngroup: files\nhosts: {sources}\n"),
        ),
    ];
    own.into_iter()
        .chain(hosts)
        .try_for_each(|(name, text)| fs::write(stage.join("etc").join(name), text))
}

/// Makes `stage` the root, and detaches the old one.
fn change_root(stage: &Path) -> io::Result<()> {
    std::env::set_current_dir(stage)?;
    // pivot_root(".", ".") stacks the old root on the new one, where it can be unmounted without a
    // mount point for it.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    std::env::set_current_dir("/")
}

/// Sets attributes on a mount, and with AT_RECURSIVE on all mounts below it, in addition to those
/// they have.
fn set_attributes(at: &Path, flags: u32, set: u64) -> io::Result<()> {
    /// `struct mount_attr` of the kernel.
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }
    let attributes = Attributes {
        set,
        clear: 0,
        propagation: 0,
        user_namespace: 0,
    };
    let at = CString::new(at.as_os_str().as_bytes())?;
    // SAFETY: a C string and a structure that outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            at.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<Attributes>(),
        )
    };
    sys::check(done as i32).map(drop)
}
