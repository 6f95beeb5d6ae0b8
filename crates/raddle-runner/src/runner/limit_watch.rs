//! `LimitWatch`: the limits of an attempt. The kernel enforces what it can; the rest is sampled.
//!
//! An attempt without limits has no [`LimitWatch`], and nothing is sampled.

use std::{
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use raddle_model::{ExitStatus, Limits, limits::LimitKind};
use rustix::param::{clock_ticks_per_second, page_size};

use super::{child::Resource, sandbox::SandboxedChild, throttle::Throttle};
use crate::{
    cgroup::{AttemptCgroup, CgroupDelegation, Controllers},
    sys,
    tree::{self, TreeRoot},
};

/// Sampling interval. A tree that writes memory as fast as it can grows by some tens of MiB in this
/// time.
const INTERVAL: Duration = Duration::from_millis(10);
/// Margin of `RLIMIT_NPROC`, which counts all processes of a user, above the current count and the
/// task's limit.
const NPROC_MARGIN: u64 = 64;
/// Maximum number of threads of a sandbox itself.
const SANDBOX_THREADS: u64 = 256;
const MIB: u64 = 1 << 20;

/// Result of a sample.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LimitVerdict {
    /// The tree may run.
    Run,
    /// The tree has used up its CPU time for now and must be stopped.
    Hold,
    /// The tree exceeds a limit.
    Over(ExitStatus),
}

/// The limits of one attempt.
pub(crate) struct LimitWatch {
    /// Limit in bytes, if memory must be sampled.
    memory: Option<u64>,
    procs: Option<u64>,
    throttle: Option<Throttle>,
    cgroup: Option<AttemptCgroup>,
    next: Option<Duration>,
    peak_rss: u64,
}

impl LimitWatch {
    /// `None` if no limit needs a cgroup or samples.
    pub(crate) fn new(
        limits: &Limits,
        cgroup: Option<AttemptCgroup>,
        now: Duration,
    ) -> Option<Self> {
        let enforced_by_cgroup = cgroup
            .as_ref()
            .map(AttemptCgroup::controllers)
            .unwrap_or_default();
        let mut watch = Self {
            memory: limits
                .memory_mb
                .filter(|_| !enforced_by_cgroup.memory)
                .map(|mb| mb.saturating_mul(MIB)),
            procs: limits.max_procs,
            throttle: limits
                .cpu_percent
                .filter(|_| !enforced_by_cgroup.cpu)
                .map(|percent| Throttle::new(percent, now)),
            cgroup,
            next: None,
            peak_rss: 0,
        };
        let sampled = watch.memory.is_some() || watch.procs.is_some() || watch.throttle.is_some();
        watch.next = sampled.then_some(now + INTERVAL);
        (sampled || watch.cgroup.is_some()).then_some(watch)
    }

    /// The `cgroup.procs` file of the attempt's cgroup, for the command to join.
    pub(crate) fn join(&self) -> Option<BorrowedFd<'_>> {
        self.cgroup.as_ref().map(|cgroup| cgroup.procs().as_fd())
    }

    /// Controllers that the cgroup enforces.
    pub(crate) fn enforced(&self) -> Controllers {
        self.cgroup
            .as_ref()
            .map(AttemptCgroup::controllers)
            .unwrap_or_default()
    }

    /// Time of the next sample.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.next
    }

    /// Samples the tree below `root`, whose reaped processes have used `reaped` CPU time.
    pub(crate) fn sample(
        &mut self,
        root: TreeRoot,
        sandboxed: Option<&SandboxedChild>,
        reaped: Duration,
    ) -> LimitVerdict {
        let max = self
            .procs
            .map_or(u64::MAX, |max| max.saturating_add(SANDBOX_THREADS));
        let tree = tree::descendants_up_to(root, max);
        let now = sys::now();
        self.next = Some(now + INTERVAL);
        // The processes of the sandbox itself do not count.
        let is_ours = |pid| {
            sandboxed.is_some_and(|sandboxed| sandboxed.pid == pid || sandboxed.proxy == Some(pid))
        };
        let own = || tree.iter().filter(|process| !is_ours(process.pid));
        let alive = || own().filter(|process| !process.zombie);

        let page = page_size() as u64;
        let rss = alive().map(|process| process.rss_pages).sum::<u64>() * page;
        let refused = self
            .cgroup
            .as_ref()
            .is_some_and(AttemptCgroup::has_refused_a_fork);
        if self
            .procs
            .is_some_and(|max| refused || own().map(|process| process.threads).sum::<u64>() > max)
        {
            return LimitVerdict::Over(ExitStatus::Limit {
                limit: LimitKind::MaxProcs,
            });
        }
        let pid_inside = alive().map(|process| process.pid).next();
        let files = sandboxed
            .filter(|_| self.memory.is_some())
            .map_or(0, |sandboxed| sandboxed.files.bytes(pid_inside));
        let mut used = rss + files;
        if let Some(max) = self.memory
            && used > max
        {
            // The sum counts shared pages once per process, which would punish a tree for forking.
            // The exact sum is expensive, and computed only if it matters.
            let exact =
                alive().map(|p| tree::proportional_bytes(p.pid).unwrap_or(p.rss_pages * page));
            used = exact.sum::<u64>() + files;
            if used > max {
                self.peak_rss = self.peak_rss.max(used);
                return LimitVerdict::Over(ExitStatus::OutOfMemory);
            }
        }
        self.peak_rss = self.peak_rss.max(used);
        let ticks: u64 = tree.iter().map(|process| process.cpu_ticks).sum();
        let cpu = reaped + Duration::from_secs(ticks) / clock_ticks_per_second() as u32;
        let hold = self
            .throttle
            .as_mut()
            .is_some_and(|throttle| throttle.must_stop(now, cpu));
        if hold {
            LimitVerdict::Hold
        } else {
            LimitVerdict::Run
        }
    }

    /// Whether the kernel has killed a process because of the memory limit.
    pub(crate) fn out_of_memory(&self) -> bool {
        self.cgroup
            .as_ref()
            .is_some_and(AttemptCgroup::has_killed_for_memory)
    }

    /// Largest memory seen, in bytes.
    pub(crate) fn peak_rss(&self) -> u64 {
        self.peak_rss.max(
            self.cgroup
                .as_ref()
                .and_then(AttemptCgroup::peak_memory)
                .unwrap_or(0),
        )
    }
}

/// Creates a cgroup for an attempt, if one can enforce any of its limits here.
pub(crate) fn cgroup(
    delegation: Option<&CgroupDelegation>,
    name: &str,
    limits: &Limits,
) -> Option<AttemptCgroup> {
    let wanted =
        limits.memory_mb.is_some() || limits.cpu_percent.is_some() || limits.max_procs.is_some();
    // If the cgroup cannot be created, the same limits are sampled instead of refusing the task.
    delegation
        .filter(|_| wanted)
        .and_then(|delegation| delegation.create_group(name, limits).ok())
}

/// Rlimits that each process of the attempt sets on itself. `enforced` are those of its cgroup.
pub(crate) fn rlimits(
    limits: &Limits,
    enforced: Controllers,
    sandboxed: bool,
) -> Vec<(Resource, u64)> {
    let mut own = Vec::new();
    if let Some(fds) = limits.max_fds {
        own.push((Resource::Nofile, fds));
    }
    if let Some(mb) = limits.memory_mb
        && !enforced.memory
    {
        // A backstop for growth between two samples. It is generous, because RLIMIT_DATA also
        // counts address space that is never touched.
        own.push((
            Resource::Data,
            mb.saturating_mul(2).saturating_add(256).saturating_mul(MIB),
        ));
    }
    if let Some(procs) = limits.max_procs
        && !enforced.pids
    {
        // A sandbox's user namespace has no other processes. Where the kernel does not count per
        // namespace, or for root, no base count is known.
        let others = match (sandboxed, sys::is_root()) {
            (true, _) => sys::counts_by_namespace().then_some(0),
            (false, false) => Some(tree::threads_of_user()),
            (false, true) => None,
        };
        own.extend(others.map(|others| {
            (
                Resource::Nproc,
                others.saturating_add(procs).saturating_add(NPROC_MARGIN),
            )
        }));
    }
    own
}
