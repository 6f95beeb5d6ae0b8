//! The limits of a container, from inside: reads the events of its cgroup for out-of-memory kills
//! and refused forks.

use std::path::Path;

use raddle_model::{ExitStatus, limits::LimitKind};

use crate::cgroup::count_events;

/// Event files of a container's own cgroup, for cgroup v2 and v1, and the key of the count.
const MEMORY: [(&str, &str); 2] = [
    ("/sys/fs/cgroup/memory.events", "oom_kill"),
    ("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill"),
];
const PIDS: [(&str, &str); 2] = [
    ("/sys/fs/cgroup/pids.events", "max"),
    ("/sys/fs/cgroup/pids/pids.events", "max"),
];

/// Number of out-of-memory kills in the cgroup that is mounted here, which in a container is its
/// own.
pub(in super::super) fn oom_kills() -> u64 {
    MEMORY
        .iter()
        .map(|(path, word)| count_events(Path::new(path), word))
        .max()
        .unwrap_or(0)
}

/// The exit status of an attempt that has exceeded a limit of its container.
pub(in super::super) fn exceeded() -> Option<ExitStatus> {
    if any_event(&MEMORY) {
        return Some(ExitStatus::OutOfMemory);
    }
    any_event(&PIDS).then_some(ExitStatus::Limit {
        limit: LimitKind::MaxProcs,
    })
}

fn any_event(files: &[(&str, &str)]) -> bool {
    files
        .iter()
        .any(|(path, word)| count_events(Path::new(path), word) > 0)
}
