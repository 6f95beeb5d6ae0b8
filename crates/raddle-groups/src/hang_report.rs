//! Describes a hanging process for the log, before it is killed. Unreadable details are left out.

use std::fs;

/// Most items of each kind.
const MAX_ITEMS: usize = 16;

/// The state of a process, the kernel stack of its main thread, and the titles of its children:
/// runners show their task.
pub(super) fn describe_process(pid: u32) -> String {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let status = read("status");
    let state = status
        .lines()
        .find_map(|line| line.strip_prefix("State:"))
        .unwrap_or_default();
    let stack: Vec<String> = read("stack")
        .lines()
        .take(MAX_ITEMS)
        .map(frame_name)
        .collect();
    let children = read(&format!("task/{pid}/children"));
    let children = children
        .split_whitespace()
        .take(MAX_ITEMS)
        .map(title)
        .filter(|title| !title.is_empty());
    let parts = [
        ("state", state.trim().to_owned()),
        (
            "waits in",
            Some(read("wchan"))
                .filter(|place| place != "0")
                .unwrap_or_default(),
        ),
        (
            "system call",
            read("syscall")
                .split_whitespace()
                .next()
                .unwrap_or_default()
                .to_owned(),
        ),
        ("stack", stack.join(" < ")),
        ("runs", children.collect::<Vec<_>>().join(", ")),
    ];
    let described = parts
        .iter()
        .filter(|(_, what)| !what.is_empty())
        .map(|(name, what)| format!("{name} {what}"));
    let described: Vec<String> = described.collect();
    if described.is_empty() {
        "it is gone".into()
    } else {
        described.join("; ")
    }
}

/// `do_epoll_wait` for `[<0>] do_epoll_wait+0x5c/0x90`.
fn frame_name(line: &str) -> String {
    let name = line.split_once("] ").map_or(line, |(_, name)| name);
    name.split('+').next().unwrap_or(name).to_owned()
}

/// The title of a process, as `ps` shows it.
fn title(pid: &str) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    line.split('\0')
        .next()
        .unwrap_or_default()
        .chars()
        .filter(|letter| !letter.is_control())
        .take(100)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describes_a_live_process_and_reports_a_missing_one() {
        let mut sleeper = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let seen = describe_process(sleeper.id());
        assert!(seen.starts_with("state "), "{seen}");
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(describe_process(u32::MAX), "it is gone");
        assert_eq!(frame_name("[<0>] do_epoll_wait+0x5c/0x90"), "do_epoll_wait");
    }
}
