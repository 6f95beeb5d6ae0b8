//! Default limits of a sandboxed command: untrusted code must not get the whole machine.

use std::{cell::OnceCell, fs::File, os::unix::fs::OpenOptionsExt};

use raddle_model::Limits;

use super::{super::child::Resource, SCRATCH};

/// Memory, including files in `/scratch` and `/tmp`.
const MEMORY_MB: u64 = 1024;
/// Processes and threads.
const PROCS: u64 = 256;
/// Open files of each process.
const FDS: u64 = 1024;
/// Largest file in bytes: the size of `/scratch`. Also applies to files that are in no directory.
const FILE: u64 = 256 << 20;

/// The sandbox's files in memory (tmpfs), which no process's RSS contains.
#[derive(Debug)]
pub(in super::super) struct MemoryFiles {
    /// The tmpfs directories, opened on first use: most tasks end before.
    directories: OnceCell<Vec<File>>,
    /// Whether the sandbox has them. It has none without its own root.
    has_tmpfs: bool,
}

/// The limits of a task, with the sandbox's defaults for those that it does not set.
pub(in super::super) fn with_default_limits(limits: &Limits) -> Limits {
    Limits {
        memory_mb: limits.memory_mb.or(Some(MEMORY_MB)),
        cpu_percent: limits.cpu_percent,
        max_fds: limits.max_fds.or(Some(FDS)),
        max_procs: limits.max_procs.or(Some(PROCS)),
    }
}

/// As `with_default_limits`, for a task that is not trusted with its own limits: it may lower the
/// defaults, but not raise them.
pub fn cap_limits(limits: &Limits) -> Limits {
    let cap = |own: Option<u64>, usual: u64| Some(own.map_or(usual, |own| own.min(usual)));
    Limits {
        memory_mb: cap(limits.memory_mb, MEMORY_MB),
        cpu_percent: limits.cpu_percent,
        max_fds: cap(limits.max_fds, FDS),
        max_procs: cap(limits.max_procs, PROCS),
    }
}

/// Rlimits of each process, in addition to those of all attempts: file size, and no core dump.
pub(in super::super) fn rlimits() -> [(Resource, u64); 2] {
    [(Resource::Fsize, FILE), (Resource::Core, 0)]
}

impl MemoryFiles {
    pub(super) fn new(has_tmpfs: bool) -> Self {
        Self {
            directories: OnceCell::new(),
            has_tmpfs,
        }
    }

    /// Memory that the files use, as seen by a process inside.
    pub(in super::super) fn bytes(&self, pid_inside: Option<u32>) -> u64 {
        let Some(pid) = pid_inside.filter(|_| self.has_tmpfs) else {
            return 0;
        };
        // A process that exits meanwhile cannot be read. The next sample tries another.
        if self.directories.get().is_none()
            && let Some(directories) = open(pid)
        {
            let _ = self.directories.set(directories);
        }
        self.directories
            .get()
            .map_or(0, |directories| directories.iter().map(used_bytes).sum())
    }
}

/// Opens the directories as this process sees them. It cannot have replaced them, because its root
/// is read-only.
fn open(pid: u32) -> Option<Vec<File>> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let open = |path: &str| {
        File::options()
            .read(true)
            .custom_flags(flags)
            .open(format!("/proc/{pid}/root{path}"))
            .ok()
    };
    Some(vec![open(SCRATCH)?, open("/tmp")?])
}

fn used_bytes(directory: &File) -> u64 {
    rustix::fs::fstatfs(directory).map_or(0, |found| {
        found
            .f_blocks
            .saturating_sub(found.f_bfree)
            .saturating_mul(found.f_bsize as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_a_task_override_the_defaults() {
        let requested = Limits {
            memory_mb: Some(2000),
            cpu_percent: Some(50),
            max_fds: None,
            max_procs: Some(5),
        };
        let all = Limits {
            max_fds: Some(1024),
            ..requested.clone()
        };
        assert_eq!(with_default_limits(&requested), all);
        assert_eq!(with_default_limits(&Limits::default()).cpu_percent, None);
    }
}
