//! What a process is doing, for the log, before it is killed. Of what cannot be read nothing is said.

use std::{fmt, fs};

/// What is known of a process at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Evidence {
    /// Its state, as `S (sleeping)`.
    state: String,
    /// What its first thread waits for in the kernel.
    wchan: String,
    /// The system call that it is in.
    syscall: String,
    /// Where it is in the kernel, if that may be seen.
    stack: Vec<String>,
    /// What the processes below it say that they are: runners say which task they run.
    below: Vec<String>,
}

/// How much is said of each thing.
const LONGEST: usize = 16;

impl Evidence {
    /// Looks at a process.
    pub(super) fn of(pid: u32) -> Self {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let status = read("status");
        let state = status.lines().find_map(|line| line.strip_prefix("State:"));
        let children = read(&format!("task/{pid}/children"));
        Self {
            state: state.unwrap_or_default().trim().to_owned(),
            wchan: read("wchan"),
            syscall: read("syscall").split_whitespace().next().unwrap_or_default().to_owned(),
            stack: read("stack").lines().take(LONGEST).map(frame).collect(),
            below: children.split_whitespace().take(LONGEST).map(title).filter(|title| !title.is_empty()).collect(),
        }
    }
}

/// `[<0>] do_epoll_wait+0x5c/0x90` says `do_epoll_wait`.
fn frame(line: &str) -> String {
    let name = line.split_once("] ").map_or(line, |(_, name)| name);
    name.split('+').next().unwrap_or(name).to_owned()
}

/// The title of a process, as `ps` shows it.
fn title(pid: &str) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    line.split('\0').next().unwrap_or_default().chars().filter(|letter| !letter.is_control()).take(100).collect()
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, wchan, syscall, stack, below } = self;
        let parts = [
            ("state", state.clone()),
            ("waits in", if wchan == "0" { String::new() } else { wchan.clone() }),
            ("system call", syscall.clone()),
            ("stack", stack.join(" < ")),
            ("runs", below.join(", ")),
        ];
        let said: Vec<String> =
            parts.iter().filter(|(_, what)| !what.is_empty()).map(|(name, what)| format!("{name} {what}")).collect();
        f.write_str(if said.is_empty() { "it is gone" } else { "" })?;
        f.write_str(&said.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_there_is_seen_and_one_that_is_not_is_gone() {
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let seen = Evidence::of(std::process::id());
        assert!(seen.to_string().starts_with("state "), "{seen}");
        assert!(seen.below.is_empty() || seen.below.contains(&"sleep".to_owned()), "{seen}");
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(Evidence::of(u32::MAX).to_string(), "it is gone");
        assert_eq!(frame("[<0>] do_epoll_wait+0x5c/0x90"), "do_epoll_wait");
    }
}
