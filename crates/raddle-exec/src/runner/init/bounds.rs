//! The bounds of a container, as its control group tells of them: whether somebody was killed for want of memory, or refused a process.

use std::fs;

use raddle_core::{Exit, limits::LimitKind};

/// Where a container sees its own control group, of either version, and the word before the count.
const MEMORY: [(&str, &str); 2] =
    [("/sys/fs/cgroup/memory.events", "oom_kill"), ("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill")];
const PIDS: [(&str, &str); 2] = [("/sys/fs/cgroup/pids.events", "max"), ("/sys/fs/cgroup/pids/pids.events", "max")];

/// How an attempt ends that has run into one of its bounds.
pub(super) fn exceeded() -> Option<Exit> {
    if happened(&MEMORY) {
        return Some(Exit::OutOfMemory);
    }
    happened(&PIDS).then_some(Exit::Limit { limit: LimitKind::MaxProcs })
}

fn happened(places: &[(&str, &str)]) -> bool {
    places.iter().any(|(path, word)| fs::read_to_string(path).is_ok_and(|text| count(&text, word) > 0))
}

fn count(text: &str, word: &str) -> u64 {
    let of_line = |line: &str| line.split_once(' ').filter(|(name, _)| *name == word)?.1.trim().parse().ok();
    text.lines().find_map(of_line).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_by_their_whole_name() {
        let first = "oom_kill_disable 0\nunder_oom 1\noom_kill 2\n";
        assert_eq!((count(first, "oom_kill"), count(first, "max")), (2, 0));
        let second = "low 0\nhigh 0\nmax 31\noom 3\noom_kill 1\noom_group_kill 0\n";
        assert_eq!((count(second, "oom_kill"), count("max 0\n", "max"), count("", "max")), (1, 0, 0));
    }
}
