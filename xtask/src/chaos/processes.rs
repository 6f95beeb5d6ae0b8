//! Processes as `/proc` shows them: parents, children, and which belong to a campaign.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::Path,
};

use rustix::{
    io::Errno,
    process::{self, Pid, PidfdFlags, Signal, WaitOptions},
};

use crate::task::MARKER;

/// A process that should have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Survivor {
    pub(crate) pid: u32,
    pub(crate) description: String,
}

/// The children of a process, sorted by pid.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let mut children: Vec<u32> = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| {
            list.split(' ')
                .filter_map(|pid| pid.trim().parse().ok())
                .collect::<Vec<_>>()
        })
        .collect();
    children.sort_unstable();
    children
}

/// The children of a process that run this program.
pub(crate) fn children_of_program(pid: u32, program: &Path) -> Vec<u32> {
    let mut children = children(pid);
    children.retain(|child| {
        fs::read_link(format!("/proc/{child}/exe")).is_ok_and(|exe| exe == program)
    });
    children
}

/// All descendants of a process that run this program, connected by processes that do.
pub(crate) fn descendants_of_program(pid: u32, program: &Path) -> Vec<u32> {
    let mut found = children_of_program(pid, program);
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        found.extend(children_of_program(pid, program));
        next += 1;
    }
    found
}

/// The processes of the campaign in this directory whose title contains `part`, with their parents.
pub(crate) fn find_by_title(directory: &Path, part: &str) -> Vec<(u32, u32)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_so = |pid: &u32| {
        let title = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        title.starts_with(b"raddle-")
            && String::from_utf8_lossy(&title).contains(part)
            && belongs_to_campaign(*pid, directory)
    };
    pids.filter(is_so)
        .filter_map(|pid| Some((pid, stat(pid)?.ppid)))
        .collect()
}

/// A pidfd: a signal through it never reaches another process that got the same pid.
pub(crate) struct PidHandle {
    pub(crate) pid: u32,
    pidfd: OwnedFd,
}

impl PidHandle {
    /// Opens a pidfd, if the process is still a child of `parent`.
    pub(crate) fn new(pid: u32, parent: u32) -> Option<Self> {
        let pidfd = process::pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()?;
        // The parent is read after the pidfd is open: a reused pid would have another parent.
        (stat(pid)?.ppid == parent).then_some(Self { pid, pidfd })
    }

    pub(crate) fn signal(&self, signal: i32) -> io::Result<()> {
        let signal = Signal::from_named_raw(signal).ok_or(Errno::INVAL)?;
        Ok(process::pidfd_send_signal(&self.pidfd, signal)?)
    }
}

struct Stat {
    name: String,
    state: char,
    ppid: u32,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses, and may contain parentheses.
    let (head, tail) = text.rsplit_once(") ")?;
    let mut fields = tail.split(' ');
    let state = fields.next()?.chars().next()?;
    Some(Stat {
        name: head.split_once('(')?.1.to_owned(),
        state,
        ppid: fields.next()?.parse().ok()?,
    })
}

/// The processes of the campaign in this directory, without this one.
///
/// A process belongs to the campaign if its executable or working directory is in the directory, or
/// if its environment has the campaign's marker. No single test is enough: a title overwrites the
/// environment, and a command may be any program.
pub(crate) fn list_campaign_processes(directory: &Path) -> Vec<Survivor> {
    let this = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found = Vec::new();
    for pid in pids.filter(|pid| *pid != this && belongs_to_campaign(*pid, directory)) {
        // A zombie holds nothing, and its parent reaps it.
        if let Some(stat) = stat(pid).filter(|stat| !matches!(stat.state, 'Z' | 'X')) {
            let description = format!(
                "{} (state {}, child of {})",
                stat.name, stat.state, stat.ppid
            );
            found.push(Survivor { pid, description });
        }
    }
    found
}

fn belongs_to_campaign(pid: u32, directory: &Path) -> bool {
    let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}"));
    let is_inside = |name: &str| link(name).is_ok_and(|path| path.starts_with(directory));
    let is_marked = || {
        let marker = [MARKER.as_bytes(), b"=", directory.as_os_str().as_bytes()].concat();
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == marker))
    };
    is_inside("exe") || is_inside("cwd") || is_marked()
}

/// Kills every process of the campaign, and those that they start meanwhile. Returns how many there
/// were at first.
pub(crate) fn kill_campaign(directory: &Path) -> usize {
    let mut first = None;
    for _ in 0..100 {
        let left = list_campaign_processes(directory);
        first.get_or_insert(left.len());
        if left.is_empty() {
            break;
        }
        for one in left {
            // The pid was read a moment ago and belongs to the campaign.
            kill(one.pid, libc::SIGKILL);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
        reap_adopted();
    }
    first.unwrap_or(0)
}

/// Reaps ended children, orphans that this process adopted included.
///
/// Only to be called when no `Child` handle is waited for any more.
fn reap_adopted() {
    while let Ok(Some(_)) = process::wait(WaitOptions::NOHANG) {}
}

/// Makes this process a subreaper: orphans below it become its children.
pub(crate) fn adopt_orphans() {
    let _ = process::set_child_subreaper(Some(process::getpid()));
}

/// Sends a signal. A process that has ended is not an error.
pub(crate) fn kill(pid: u32, signal: i32) {
    if let (Some(pid), Some(signal)) = (Pid::from_raw(pid as i32), Signal::from_named_raw(signal)) {
        let _ = process::kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn sleeper(directory: &Path, marked: bool) -> std::process::Child {
        let mut command = Command::new("sleep");
        command.arg("60").stdin(Stdio::null());
        if marked {
            command.env(MARKER, directory)
        } else {
            command.current_dir(directory)
        };
        command.spawn().unwrap()
    }

    #[test]
    fn finds_processes_of_a_campaign_by_marker_and_by_directory() {
        let (ours, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut children = [
            sleeper(ours.path(), true),
            sleeper(ours.path(), false),
            sleeper(other.path(), true),
        ];
        let mut found: Vec<u32> = list_campaign_processes(ours.path())
            .into_iter()
            .map(|one| one.pid)
            .collect();
        found.sort_unstable();
        let mut expected = [children[0].id(), children[1].id()];
        expected.sort_unstable();
        let all: Vec<u32> = super::children(std::process::id());
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(found, expected);
        assert!(
            children.iter().all(|child| all.contains(&child.id())),
            "{all:?}"
        );
        assert_eq!(list_campaign_processes(ours.path()), []);
    }

    #[test]
    fn opens_a_pidfd_for_children_only() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let this = std::process::id();
        assert!(PidHandle::new(child.id(), this + 1).is_none());
        let grip = PidHandle::new(child.id(), this).unwrap();
        grip.signal(libc::SIGKILL).unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(grip.signal(libc::SIGKILL).is_err());
    }
}
