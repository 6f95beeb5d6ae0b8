//! What a command in a sandbox may use if its task does not say: nobody trusts it, so it does not get the whole machine.

use std::os::fd::{AsRawFd, OwnedFd};

use raddle_core::Limits;

use super::super::child::Resource;

/// Memory, what it keeps in `/scratch` and `/tmp` included.
const MEMORY_MB: u64 = 1024;
/// Processes and threads.
const PROCS: u64 = 256;
/// Open files of each process.
const FDS: u64 = 1024;
/// The largest file, in bytes: as large as `/scratch`, and for those too that are in no folder.
const FILE: u64 = 256 << 20;

/// Files in memory, which no process has in its own.
#[derive(Debug, Default)]
pub(in super::super) struct Files(pub(super) Vec<OwnedFd>);

/// The limits of a task, and where it names none those of a sandbox.
pub(in super::super) fn bounded(limits: &Limits) -> Limits {
    Limits {
        memory_mb: limits.memory_mb.or(Some(MEMORY_MB)),
        cpu_percent: limits.cpu_percent,
        max_fds: limits.max_fds.or(Some(FDS)),
        max_procs: limits.max_procs.or(Some(PROCS)),
    }
}

/// What each process holds by itself, besides what all attempts do: the size of files, and that nothing is left of one that crashes.
pub(in super::super) fn rlimits() -> [(Resource, u64); 2] {
    [(libc::RLIMIT_FSIZE, FILE), (libc::RLIMIT_CORE, 0)]
}

impl Files {
    /// How much memory they take.
    pub(in super::super) fn bytes(&self) -> u64 {
        self.0.iter().map(used).sum()
    }
}

fn used(folder: &OwnedFd) -> u64 {
    // SAFETY: plain data, for which zeros are a value, and a place for the result.
    let (done, found) = unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(folder.as_raw_fd(), &raw mut found), found)
    };
    if done == 0 { found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(found.f_bsize as u64) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_task_says_goes_before() {
        let said = Limits { memory_mb: Some(2000), cpu_percent: Some(50), max_fds: None, max_procs: Some(5) };
        let all = Limits { max_fds: Some(1024), ..said.clone() };
        assert_eq!(bounded(&said), all);
        assert_eq!(bounded(&Limits::default()).cpu_percent, None);
    }
}
