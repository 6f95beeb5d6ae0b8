//! Process trees: finding the descendants of a process, measuring them, stopping and killing all of
//! them.
//!
//! A descendant cannot escape as long as one of its ancestors is a subreaper: when its parent
//! exits, it becomes a child of the subreaper. A walk down from the subreaper therefore finds
//! double-forked daemons too. This module decides nothing: `limit_watch.rs` and `stop.rs` do.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    sync::OnceLock,
    time::Duration,
};

use rustix::{
    io::Errno,
    param::{clock_ticks_per_second, page_size},
    process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use crate::sys;

/// Maximum passes over a tree that grows while it is being frozen. Each pass stops every process it
/// finds, so a fork bomb runs dry long before; the limit is for a tree that an outside process
/// keeps continuing.
const FREEZE_PASSES: usize = 64;

/// A process, from `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    pub(crate) pid: u32,
    pub(crate) ppid: u32,
    /// Process group.
    group: u32,
    /// All threads have exited, and the process has not been waited for.
    pub(crate) zombie: bool,
    /// Stopped by a signal or by a debugger.
    pub(crate) stopped: bool,
    /// At least 1: as in the kernel, a process counts until it is waited for.
    pub(crate) threads: u64,
    /// CPU time of the process and of the children it has waited for, in clock ticks.
    pub(crate) cpu_ticks: u64,
    pub(crate) rss_pages: u64,
    /// Start time in clock ticks since boot. Tells apart two processes with the same pid.
    pub(crate) start_ticks: u64,
}

/// The root of a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeRoot {
    pub(crate) pid: u32,
    /// A child that is left out with its descendants: the caller's fork server.
    pub(crate) excluded: Option<u32>,
}

impl From<u32> for TreeRoot {
    fn from(pid: u32) -> Self {
        Self {
            pid,
            excluded: None,
        }
    }
}

/// Current resource usage of a process and its descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeUsage {
    /// CPU time, including children that have exited.
    pub cpu: Duration,
    /// Resident memory in bytes. Shared pages count once per process.
    pub rss_bytes: u64,
}

/// Resource usage of process `pid` and its descendants, if it exists.
pub fn tree_usage(pid: u32) -> Option<TreeUsage> {
    let tree: Vec<ProcessStat> = read(pid).into_iter().chain(descendants(pid)).collect();
    let ticks: u64 = tree.iter().map(|process| process.cpu_ticks).sum();
    let pages: u64 = tree.iter().map(|process| process.rss_pages).sum();
    let cpu = Duration::from_secs(ticks) / clock_ticks_per_second() as u32;
    (!tree.is_empty()).then(|| TreeUsage {
        cpu,
        rss_bytes: pages * page_size() as u64,
    })
}

/// Parent of a process, if the process exists.
pub fn parent_of(pid: u32) -> Option<u32> {
    read(pid).map(|process| process.ppid)
}

/// Start time of a process in clock ticks since boot, if the process exists.
pub fn process_start_time(pid: u32) -> Option<u64> {
    read(pid).map(|process| process.start_ticks)
}

/// The scope in which a pid is valid: this boot of this machine, and this pid namespace.
pub fn pid_scope() -> Option<&'static str> {
    static PID_SCOPE: OnceLock<Option<String>> = OnceLock::new();
    let read_scope = || {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = fs::metadata("/proc/self/ns/pid").ok()?;
        Some(format!("{}/{}", boot.trim(), namespace.ino()))
    };
    PID_SCOPE.get_or_init(read_scope).as_deref()
}

/// All descendants of `root`, parents before children.
pub(crate) fn descendants(root: impl Into<TreeRoot>) -> Vec<ProcessStat> {
    descendants_up_to(root, u64::MAX)
}

/// As [`descendants`], but stops soon after it has counted `max_threads` threads: a fork bomb grows
/// faster than it can be counted.
pub(crate) fn descendants_up_to(root: impl Into<TreeRoot>, max_threads: u64) -> Vec<ProcessStat> {
    let TreeRoot { pid, excluded } = root.into();
    let mut found = Vec::new();
    match children(pid) {
        Ok(mut first) => {
            first.retain(|child| Some(*child) != excluded);
            walk(first, max_threads, &mut found);
        }
        // A kernel without /proc/PID/task/TID/children.
        Err(_) => {
            let others = all_processes()
                .into_iter()
                .filter(|process| Some(process.pid) != excluded);
            select_descendants(pid, others.collect(), &mut found);
        }
    }
    found
}

/// The direct children of `root`.
pub(crate) fn direct_children(root: u32) -> Vec<ProcessStat> {
    match children(root) {
        Ok(pids) => pids.into_iter().filter_map(read).collect(),
        Err(_) => all_processes()
            .into_iter()
            .filter(|process| process.ppid == root)
            .collect(),
    }
}

/// Sends a signal to each process whose pid has not been reused since.
pub(crate) fn signal<'a>(processes: impl IntoIterator<Item = &'a ProcessStat>, signal: Signal) {
    for process in processes.into_iter().filter(|process| !process.zombie) {
        match pidfd_open(sys::pid_of(process.pid), PidfdFlags::empty()) {
            // A pidfd refers to one process for good. Check that it is the right one after it was
            // opened.
            Ok(pidfd) => {
                if read(process.pid).is_some_and(|now| now.start_ticks == process.start_ticks) {
                    let _ = pidfd_send_signal(pidfd, signal);
                }
            }
            Err(Errno::SRCH) => {}
            // An old kernel, or a container engine whose seccomp filter does not know the call.
            Err(_) => sys::kill(process.pid, signal),
        }
    }
}

/// Stops every descendant of `root` with SIGSTOP, including those that are forked meanwhile.
pub(crate) fn freeze(root: impl Into<TreeRoot>) -> Vec<ProcessStat> {
    let root = root.into();
    let mut frozen = HashSet::new();
    let mut tree = Vec::new();
    for _ in 0..FREEZE_PASSES {
        tree = descendants(root);
        let fresh: Vec<_> = tree
            .iter()
            .filter(|p| !p.zombie && frozen.insert((p.pid, p.start_ticks)))
            .collect();
        if fresh.is_empty() {
            break;
        }
        signal(fresh, Signal::STOP);
    }
    tree
}

/// Continues every descendant of `root` with SIGCONT.
pub(crate) fn thaw(root: impl Into<TreeRoot>) {
    signal(&descendants(root), Signal::CONT);
}

/// Kills every descendant of `root`. The caller reaps, and repeats the call while children are
/// left.
///
/// A tree that forks faster than it is walked would outlive the walk. Therefore whole process
/// groups are killed first, which the kernel does in one step that no fork escapes. The rest is
/// frozen, then killed.
pub(crate) fn kill(root: impl Into<TreeRoot>) {
    let root = root.into();
    kill_groups(&descendants(root));
    signal(&freeze(root), Signal::KILL);
}

/// Kills the process groups that one of these processes leads. Other groups are left alone: a
/// process may have joined a group outside its tree.
fn kill_groups(tree: &[ProcessStat]) {
    let groups: HashSet<u32> = tree.iter().map(|process| process.group).collect();
    for leader in tree.iter().filter(|process| groups.contains(&process.pid)) {
        // The id of a group cannot be reused until its leader is waited for.
        if read(leader.pid).is_some_and(|now| now.start_ticks == leader.start_ticks) {
            sys::kill_group(leader.pid, Signal::KILL);
        }
    }
}

/// Proportional set size of a process in bytes: shared pages are divided by the number of sharers.
pub(crate) fn proportional_bytes(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim()
        .strip_suffix(" kB")?
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

/// Number of threads of all processes of this user.
pub(crate) fn threads_of_user() -> u64 {
    let me = rustix::process::geteuid().as_raw();
    let owned = |p: &ProcessStat| {
        fs::metadata(format!("/proc/{}", p.pid)).is_ok_and(|found| found.uid() == me)
    };
    all_processes()
        .iter()
        .filter(|p| owned(p))
        .map(|p| p.threads)
        .sum()
}

fn walk(first: Vec<u32>, max_threads: u64, found: &mut Vec<ProcessStat>) {
    let mut seen = HashSet::new();
    let mut next = first;
    let mut threads = 0u64;
    while !next.is_empty() {
        let mut below = Vec::new();
        for process in next
            .into_iter()
            .filter(|pid| seen.insert(*pid))
            .filter_map(read)
        {
            threads += process.threads;
            if !process.zombie {
                let pid = process.pid;
                // Only a thread that forked has children, and most processes have one thread: skip
                // reading the list of threads.
                let children = if process.threads == 1 {
                    children_of_thread(pid, pid)
                } else {
                    children(pid)
                };
                below.extend(children.unwrap_or_default());
            }
            found.push(process);
            if threads > max_threads {
                return;
            }
        }
        next = below;
    }
}

fn select_descendants(root: u32, all_processes: Vec<ProcessStat>, found: &mut Vec<ProcessStat>) {
    let mut by_parent: HashMap<u32, Vec<ProcessStat>> = HashMap::new();
    all_processes
        .into_iter()
        .for_each(|process| by_parent.entry(process.ppid).or_default().push(process));
    let mut next = vec![root];
    while let Some(parent) = next.pop() {
        let children = by_parent.remove(&parent).unwrap_or_default();
        next.extend(children.iter().map(|child| child.pid));
        found.extend(children);
    }
}

/// Ancestors of a process, nearest first.
pub(crate) fn ancestors(pid: u32) -> impl Iterator<Item = ProcessStat> {
    std::iter::successors(read(pid), |process| read(process.ppid)).skip(1)
}

/// All pids that this process can see.
pub(crate) fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

fn all_processes() -> Vec<ProcessStat> {
    pids().into_iter().filter_map(read).collect()
}

fn children(pid: u32) -> io::Result<Vec<u32>> {
    let mut found = children_of_thread(pid, pid)?;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        if let Some(tid) = thread.file_name().to_str().and_then(|tid| tid.parse().ok())
            && tid != pid
        {
            found.extend(children_of_thread(pid, tid).unwrap_or_default());
        }
    }
    Ok(found)
}

fn children_of_thread(pid: u32, tid: u32) -> io::Result<Vec<u32>> {
    let text = read_proc_file(&format!("/proc/{pid}/task/{tid}/children"))?;
    let pids = text
        .split(|b| *b == b' ')
        .filter_map(|pid| std::str::from_utf8(pid).ok()?.parse().ok());
    Ok(pids.collect())
}

pub(crate) fn read(pid: u32) -> Option<ProcessStat> {
    let mut process = parse(&read_proc_file(&format!("/proc/{pid}/stat")).ok()?)?;
    // The first thread has exited, so its stat shows no memory of the other threads.
    if process.rss_pages == 0 && process.threads > 1 {
        process.rss_pages = rss_of_threads(pid);
    }
    Some(process)
}

fn rss_of_threads(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let rss = threads.filter_map(|thread| {
        Some(parse(&read_proc_file(thread.path().join("stat").to_str()?).ok()?)?.rss_pages)
    });
    rss.max().unwrap_or(0)
}

/// Reads a file of /proc. Its reported size is 0, for which std would begin with tiny reads.
fn read_proc_file(path: &str) -> io::Result<Vec<u8>> {
    let file = fs::File::open(path)?;
    let mut content = Vec::new();
    while sys::read_some(file.as_fd(), &mut content)? != 0 {}
    Ok(content)
}

fn parse(stat: &[u8]) -> Option<ProcessStat> {
    // The name in parentheses may hold anything, invalid UTF-8 included. Numbers follow the last
    // parenthesis.
    let end = stat.iter().rposition(|b| *b == b')')?;
    let pid = std::str::from_utf8(stat.split(|b| *b == b' ').next()?)
        .ok()?
        .parse()
        .ok()?;
    let fields: Vec<&str> = std::str::from_utf8(&stat[end + 1..])
        .ok()?
        .split_ascii_whitespace()
        .collect();
    // Numbered as in proc(5), where the state is field 3.
    let field = |n: usize| {
        fields
            .get(n - 3)?
            .parse::<i64>()
            .ok()
            .map(|n| n.max(0) as u64)
    };
    let threads = field(20)?.max(1);
    Some(ProcessStat {
        pid,
        ppid: field(4)? as u32,
        group: field(5)? as u32,
        // The state is that of the first thread, which may exit before the others.
        zombie: matches!(*fields.first()?, "Z" | "X") && threads == 1,
        stopped: matches!(*fields.first()?, "T" | "t"),
        cpu_ticks: field(14)? + field(15)? + field(16)? + field(17)?,
        threads,
        start_ticks: field(22)?,
        rss_pages: field(24)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_a_stat_line_with_any_name() {
        let line =
            b"42 (a ) \xff(b) S 7 42 42 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 3 0 555 1000 77 18446744073709551615";
        let expected = ProcessStat {
            pid: 42,
            ppid: 7,
            group: 42,
            zombie: false,
            stopped: false,
            threads: 3,
            cpu_ticks: 100,
            rss_pages: 77,
            start_ticks: 555,
        };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse(b"42 (x"), None);
        assert_eq!(parse(b""), None);
    }

    /// A process must not escape by letting its first thread exit.
    #[test]
    fn counts_a_process_without_its_first_thread_as_alive() {
        const SCRIPT: &str = "import ctypes, threading, time, os
def stay():
    held = b'x' * (64 << 20)
    print('up', flush=True)
    time.sleep(60)
threading.Thread(target=stay).start()
ctypes.CDLL(None).syscall(60, 0)";
        let mut python = std::process::Command::new("python3")
            .args(["-c", SCRIPT])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(python.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let state = || fs::read_to_string(format!("/proc/{}/stat", python.id())).unwrap();
        while !state().contains(") Z ") {
            assert!(std::time::Instant::now() < until, "its first thread ends");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let found = direct_children(std::process::id())
            .into_iter()
            .find(|process| process.pid == python.id())
            .unwrap();
        assert!(!found.zombie && found.threads == 2);
        assert!(found.rss_pages > (60 << 20) / 4096, "{found:?}");
        signal([&found], Signal::KILL);
        python.wait().unwrap();
    }

    #[test]
    fn both_walks_find_a_grandchild() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & echo; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let mut scanned = Vec::new();
        select_descendants(shell.id(), all_processes(), &mut scanned);
        let walked = descendants(shell.id());
        let pids = |found: &[ProcessStat]| found.iter().map(|p| p.pid).collect::<Vec<_>>();
        assert_eq!(pids(&walked), pids(&scanned));
        assert_eq!(walked.len(), 1);
        kill(shell.id());
        shell.wait().unwrap();
        assert!(
            read(walked[0].pid).is_none_or(|p| p.zombie || p.start_ticks != walked[0].start_ticks)
        );
    }
}
