//! The bounds of a container, as its control group tells of them: whether somebody was killed for want of memory, or refused a process.

use std::path::Path;

use raddle_model::{ExitStatus, limits::LimitKind};

use crate::cgroup::count_events;

/// Where a container sees its own control group, of either version, and the word before the count.
const MEMORY: [(&str, &str); 2] = [
    ("/sys/fs/cgroup/memory.events", "oom_kill"),
    ("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill"),
];
const PIDS: [(&str, &str); 2] = [
    ("/sys/fs/cgroup/pids.events", "max"),
    ("/sys/fs/cgroup/pids/pids.events", "max"),
];

/// How often the kernel has killed a process of the control group that is mounted here for memory: in a container, that is its own.
pub(in super::super) fn memory_kills() -> u64 {
    MEMORY
        .iter()
        .map(|(path, word)| count_events(Path::new(path), word))
        .max()
        .unwrap_or(0)
}

/// How an attempt ends that has run into one of its bounds.
pub(in super::super) fn exceeded() -> Option<ExitStatus> {
    if happened(&MEMORY) {
        return Some(ExitStatus::OutOfMemory);
    }
    happened(&PIDS).then_some(ExitStatus::Limit {
        limit: LimitKind::MaxProcs,
    })
}

fn happened(places: &[(&str, &str)]) -> bool {
    places
        .iter()
        .any(|(path, word)| count_events(Path::new(path), word) > 0)
}
