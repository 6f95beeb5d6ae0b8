//! The limits of an attempt: which of them the kernel enforces, and what is sampled because it does not.
//!
//! Without limits there is no [`LimitWatch`], and nothing is sampled.

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

/// A tree that grows as fast as memory can be written grows by some tens of MiB in this time.
const INTERVAL: Duration = Duration::from_millis(10);
/// How far `RLIMIT_NPROC`, which counts all processes of a user, stays above what the user has and the task may.
const OTHERS: u64 = 64;
/// Threads that a sandbox has at most, besides those of its task.
const OF_SANDBOX: u64 = 256;
const MIB: u64 = 1 << 20;

/// What a sample asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LimitVerdict {
    /// The tree may run.
    Run,
    /// The tree has used up its processor time for the moment.
    Hold,
    /// The tree is over a limit.
    Over(ExitStatus),
}

/// The limits of one attempt.
pub(crate) struct LimitWatch {
    /// In bytes, if it has to be sampled.
    memory: Option<u64>,
    procs: Option<u64>,
    throttle: Option<Throttle>,
    group: Option<AttemptCgroup>,
    next: Option<Duration>,
    peak_rss: u64,
}

impl LimitWatch {
    /// `None` if nothing is limited that a process cannot hold by itself.
    pub(crate) fn new(
        limits: &Limits,
        group: Option<AttemptCgroup>,
        now: Duration,
    ) -> Option<Self> {
        let has = group
            .as_ref()
            .map(AttemptCgroup::controllers)
            .unwrap_or_default();
        let mut watch = Self {
            memory: limits
                .memory_mb
                .filter(|_| !has.memory)
                .map(|mb| mb.saturating_mul(MIB)),
            procs: limits.max_procs,
            throttle: limits
                .cpu_percent
                .filter(|_| !has.cpu)
                .map(|percent| Throttle::new(percent, now)),
            group,
            next: None,
            peak_rss: 0,
        };
        let sampled = watch.memory.is_some() || watch.procs.is_some() || watch.throttle.is_some();
        watch.next = sampled.then_some(now + INTERVAL);
        (sampled || watch.group.is_some()).then_some(watch)
    }

    /// The cgroup's `cgroup.procs`, for the command to join.
    pub(crate) fn join(&self) -> Option<BorrowedFd<'_>> {
        self.group.as_ref().map(|group| group.procs().as_fd())
    }

    /// What the cgroup limits.
    pub(crate) fn enforced(&self) -> Controllers {
        self.group
            .as_ref()
            .map(AttemptCgroup::controllers)
            .unwrap_or_default()
    }

    /// When the next sample is due.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.next
    }

    /// Looks at the tree below `root`, whose ended processes have used `reaped` processor time.
    pub(crate) fn sample(
        &mut self,
        root: TreeRoot,
        boxed: Option<&SandboxedChild>,
        reaped: Duration,
    ) -> LimitVerdict {
        let most = self
            .procs
            .map_or(u64::MAX, |most| most.saturating_add(OF_SANDBOX));
        let tree = tree::descendants_up_to(root, most);
        let now = sys::now();
        self.next = Some(now + INTERVAL);
        // What a sandbox is made of is nothing that the task has.
        let is_ours = |pid| boxed.is_some_and(|boxed| boxed.pid == pid || boxed.proxy == Some(pid));
        let own = || tree.iter().filter(|process| !is_ours(process.pid));
        let alive = || own().filter(|process| !process.zombie);

        let page = page_size() as u64;
        let rss = alive().map(|process| process.rss_pages).sum::<u64>() * page;
        let refused = self
            .group
            .as_ref()
            .is_some_and(AttemptCgroup::refused_a_process);
        if self
            .procs
            .is_some_and(|most| refused || own().map(|process| process.threads).sum::<u64>() > most)
        {
            return LimitVerdict::Over(ExitStatus::Limit {
                limit: LimitKind::MaxProcs,
            });
        }
        let inside = alive().map(|process| process.pid).next();
        let files = boxed
            .filter(|_| self.memory.is_some())
            .map_or(0, |boxed| boxed.files.bytes(inside));
        let mut used = rss + files;
        if let Some(most) = self.memory
            && used > most
        {
            // The sum counts shared pages once for each sharer, which would punish a tree for forking. The true sum is dearer to
            // come by, and asked for only when it matters.
            let held =
                alive().map(|p| tree::proportional_bytes(p.pid).unwrap_or(p.rss_pages * page));
            used = held.sum::<u64>() + files;
            if used > most {
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
            .is_some_and(|throttle| throttle.hold(now, cpu));
        if hold {
            LimitVerdict::Hold
        } else {
            LimitVerdict::Run
        }
    }

    /// Whether the kernel has killed for want of memory.
    pub(crate) fn out_of_memory(&self) -> bool {
        self.group
            .as_ref()
            .is_some_and(AttemptCgroup::killed_for_memory)
    }

    /// The largest memory seen, in bytes.
    pub(crate) fn peak_rss(&self) -> u64 {
        self.peak_rss.max(
            self.group
                .as_ref()
                .and_then(AttemptCgroup::peak_memory)
                .unwrap_or(0),
        )
    }
}

/// A cgroup for an attempt, if it has limits that one can enforce here.
pub(crate) fn group(
    delegation: Option<&CgroupDelegation>,
    name: &str,
    limits: &Limits,
) -> Option<AttemptCgroup> {
    let wanted =
        limits.memory_mb.is_some() || limits.cpu_percent.is_some() || limits.max_procs.is_some();
    // A group that cannot be made is no reason to refuse the task: the same limits are sampled instead.
    delegation
        .filter(|_| wanted)
        .and_then(|delegation| delegation.group(name, limits).ok())
}

/// The limits that each process of the attempt holds by itself. `enforced` are those of its cgroup.
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
        // A backstop for what grows between two samples. Generous: address space that is never touched is no memory.
        own.push((
            Resource::Data,
            mb.saturating_mul(2).saturating_add(256).saturating_mul(MIB),
        ));
    }
    if let Some(procs) = limits.max_procs
        && !enforced.pids
    {
        // A user of its own has none but its own; where the kernel does not see it so, nobody can say what to count from.
        let others = match (sandboxed, sys::is_root()) {
            (true, _) => sys::counts_by_namespace().then_some(0),
            (false, false) => Some(tree::threads_of_user()),
            (false, true) => None,
        };
        own.extend(others.map(|others| {
            (
                Resource::Nproc,
                others.saturating_add(procs).saturating_add(OTHERS),
            )
        }));
    }
    own
}
