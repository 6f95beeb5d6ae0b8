//! What a command in a sandbox may use if its task does not say: nobody trusts it, so it does not get the whole machine.

use std::{cell::OnceCell, fs::File, os::unix::fs::OpenOptionsExt};

use raddle_model::Limits;

use super::{super::child::Resource, SCRATCH};

/// Memory, what it keeps in `/scratch` and `/tmp` included.
const MEMORY_MB: u64 = 1024;
/// Processes and threads.
const PROCS: u64 = 256;
/// Open files of each process.
const FDS: u64 = 1024;
/// The largest file, in bytes: as large as `/scratch`, and for those too that are in no directory.
const FILE: u64 = 256 << 20;

/// Files in memory, which no process has in its own.
#[derive(Debug)]
pub(in super::super) struct MemoryFiles {
    /// The directories that they are in, looked for when somebody first asks: most tasks are over before.
    directories: OnceCell<Vec<File>>,
    /// There are none where there is no root of its own.
    are_there: bool,
}

/// The limits of a task, and where it names none those of a sandbox.
pub(in super::super) fn bounded(limits: &Limits) -> Limits {
    Limits {
        memory_mb: limits.memory_mb.or(Some(MEMORY_MB)),
        cpu_percent: limits.cpu_percent,
        max_fds: limits.max_fds.or(Some(FDS)),
        max_procs: limits.max_procs.or(Some(PROCS)),
    }
}

/// The same for a task that is not trusted with its own limits: it may lower them, and not raise them.
pub fn capped(limits: &Limits) -> Limits {
    let least = |own: Option<u64>, usual: u64| Some(own.map_or(usual, |own| own.min(usual)));
    Limits {
        memory_mb: least(limits.memory_mb, MEMORY_MB),
        cpu_percent: limits.cpu_percent,
        max_fds: least(limits.max_fds, FDS),
        max_procs: least(limits.max_procs, PROCS),
    }
}

/// What each process holds by itself, besides what all attempts do: the size of files, and that nothing is left of one that crashes.
pub(in super::super) fn rlimits() -> [(Resource, u64); 2] {
    [(Resource::Fsize, FILE), (Resource::Core, 0)]
}

impl MemoryFiles {
    pub(super) fn new(are_there: bool) -> Self {
        Self {
            directories: OnceCell::new(),
            are_there,
        }
    }

    /// How much memory they take, as a process inside sees them.
    pub(in super::super) fn bytes(&self, inside: Option<u32>) -> u64 {
        let Some(pid) = inside.filter(|_| self.are_there) else {
            return 0;
        };
        // A process that ends meanwhile shows nothing; the next that is looked at will.
        if self.directories.get().is_none()
            && let Some(directories) = open(pid)
        {
            let _ = self.directories.set(directories);
        }
        self.directories
            .get()
            .map_or(0, |directories| directories.iter().map(used).sum())
    }
}

/// The directories as this process sees them. It cannot have put others in their place: its root cannot be written.
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

fn used(directory: &File) -> u64 {
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
    fn what_a_task_says_goes_before() {
        let said = Limits {
            memory_mb: Some(2000),
            cpu_percent: Some(50),
            max_fds: None,
            max_procs: Some(5),
        };
        let all = Limits {
            max_fds: Some(1024),
            ..said.clone()
        };
        assert_eq!(bounded(&said), all);
        assert_eq!(bounded(&Limits::default()).cpu_percent, None);
    }
}
