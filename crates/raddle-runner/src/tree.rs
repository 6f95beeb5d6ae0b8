//! The processes below a process: finding them, counting what they use, stopping and killing all of them.
//!
//! A descendant cannot get away from its ancestors' view as long as one of them is a subreaper: a process whose parent ends becomes
//! the subreaper's child. That is why a walk from the subreaper down finds double-forked daemons too. What limits follow
//! from the numbers is decided elsewhere.

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

/// Passes over a tree that grows while it is being frozen. Each pass stops every process it sees, so that a fork bomb runs dry
/// long before; the bound is for a tree that some outsider keeps waking.
const FREEZE_PASSES: usize = 64;

/// A process as its stat line shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    pub(crate) pid: u32,
    pub(crate) ppid: u32,
    /// Its process group.
    group: u32,
    /// Ended with all its threads, and not waited for.
    pub(crate) zombie: bool,
    /// By a signal, or by a debugger.
    pub(crate) stopped: bool,
    /// At least one: as for the kernel, a process counts until it is waited for.
    pub(crate) threads: u64,
    /// Processor time of the process and of the children it has waited for, in clock ticks.
    pub(crate) cpu_ticks: u64,
    pub(crate) rss_pages: u64,
    /// When it began, in clock ticks since boot: tells two processes with one pid apart.
    pub(crate) start_ticks: u64,
}

/// The process that a tree is below.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeRoot {
    pub(crate) pid: u32,
    /// A child of it that is left out, with all below: it belongs to whoever looks.
    pub(crate) spared: Option<u32>,
}

impl From<u32> for TreeRoot {
    fn from(pid: u32) -> Self {
        Self { pid, spared: None }
    }
}

/// What a process and all below it use now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeUsage {
    /// Processor time since they began, that of children that have ended included.
    pub cpu: Duration,
    /// Resident memory, in bytes. What they share is counted for each.
    pub rss_bytes: u64,
}

/// What the process `pid` of this machine and all below it use, if it is there.
pub fn consumption(pid: u32) -> Option<TreeUsage> {
    let tree: Vec<ProcessStat> = read(pid).into_iter().chain(descendants(pid)).collect();
    let ticks: u64 = tree.iter().map(|process| process.cpu_ticks).sum();
    let pages: u64 = tree.iter().map(|process| process.rss_pages).sum();
    let cpu = Duration::from_secs(ticks) / clock_ticks_per_second() as u32;
    (!tree.is_empty()).then(|| TreeUsage {
        cpu,
        rss_bytes: pages * page_size() as u64,
    })
}

/// The parent of a process of this machine, if it is there.
pub fn parent_of(pid: u32) -> Option<u32> {
    read(pid).map(|process| process.ppid)
}

/// When a process began, in clock ticks since boot, if there is one of this number.
pub fn process_start_time(pid: u32) -> Option<u64> {
    read(pid).map(|process| process.start_ticks)
}

/// Where numbers of processes mean what they mean to this one: a boot of a machine, and a namespace of it.
pub fn place() -> Option<&'static str> {
    static PLACE: OnceLock<Option<String>> = OnceLock::new();
    let look = || {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = fs::metadata("/proc/self/ns/pid").ok()?;
        Some(format!("{}/{}", boot.trim(), namespace.ino()))
    };
    PLACE.get_or_init(look).as_deref()
}

/// All descendants of `root`, parents before their children.
pub(crate) fn descendants(root: impl Into<TreeRoot>) -> Vec<ProcessStat> {
    descendants_up_to(root, u64::MAX)
}

/// As [`descendants`], but stops soon after it has seen more than `most` threads: a fork bomb leaves its watcher no time to count it.
pub(crate) fn descendants_up_to(root: impl Into<TreeRoot>, most: u64) -> Vec<ProcessStat> {
    let TreeRoot { pid, spared } = root.into();
    let mut found = Vec::new();
    match children(pid) {
        Ok(mut first) => {
            first.retain(|child| Some(*child) != spared);
            walk(first, most, &mut found);
        }
        // A kernel without /proc/*/children.
        Err(_) => {
            let others = all()
                .into_iter()
                .filter(|process| Some(process.pid) != spared);
            select(pid, others.collect(), &mut found);
        }
    }
    found
}

/// The direct children of `root`.
pub(crate) fn direct_children(root: u32) -> Vec<ProcessStat> {
    match children(root) {
        Ok(pids) => pids.into_iter().filter_map(read).collect(),
        Err(_) => all()
            .into_iter()
            .filter(|process| process.ppid == root)
            .collect(),
    }
}

/// Sends a signal to each of these processes, unless its pid has come to mean another since.
pub(crate) fn signal<'a>(processes: impl IntoIterator<Item = &'a ProcessStat>, signal: Signal) {
    for process in processes.into_iter().filter(|process| !process.zombie) {
        match pidfd_open(sys::pid_of(process.pid), PidfdFlags::empty()) {
            // The descriptor means one process for good; whether it is the right one is asked after it was opened.
            Ok(pidfd) => {
                if read(process.pid).is_some_and(|now| now.start_ticks == process.start_ticks) {
                    let _ = pidfd_send_signal(pidfd, signal);
                }
            }
            Err(Errno::SRCH) => {}
            // An old kernel, or the filter of a container engine that does not know the call.
            Err(_) => sys::kill(process.pid, signal),
        }
    }
}

/// Stops every descendant of `root` with SIGSTOP, those included that are forked meanwhile.
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

/// Lets every descendant of `root` run again.
pub(crate) fn thaw(root: impl Into<TreeRoot>) {
    signal(&descendants(root), Signal::CONT);
}

/// Kills every descendant of `root`. The caller reaps, and calls again while children are left.
///
/// A tree that forks faster than it is walked would outlive the walk. So whole groups go first, which the kernel kills in one step that
/// no fork can escape; what is left is frozen, then killed.
pub(crate) fn kill(root: impl Into<TreeRoot>) {
    let root = root.into();
    kill_groups(&descendants(root));
    signal(&freeze(root), Signal::KILL);
}

/// Kills the groups that are led by one of these processes. Others are left alone: a process may have joined a group outside its tree.
fn kill_groups(tree: &[ProcessStat]) {
    let groups: HashSet<u32> = tree.iter().map(|process| process.group).collect();
    for leader in tree.iter().filter(|process| groups.contains(&process.pid)) {
        // While its leader is not waited for, the number of a group means no other.
        if read(leader.pid).is_some_and(|now| now.start_ticks == leader.start_ticks) {
            sys::kill_group(leader.pid, Signal::KILL);
        }
    }
}

/// The proportional set size of a process in bytes: its memory, with what it shares divided by the number of sharers.
pub(crate) fn proportional_bytes(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim()
        .strip_suffix(" kB")?
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

/// The number of threads that the processes of this user have, all in all.
pub(crate) fn threads_of_user() -> u64 {
    let me = rustix::process::geteuid().as_raw();
    let owned = |p: &ProcessStat| {
        fs::metadata(format!("/proc/{}", p.pid)).is_ok_and(|found| found.uid() == me)
    };
    all().iter().filter(|p| owned(p)).map(|p| p.threads).sum()
}

fn walk(first: Vec<u32>, most: u64, found: &mut Vec<ProcessStat>) {
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
                // Only a thread that forked has children; one thread is by far the most common number.
                let children = if process.threads == 1 {
                    children_of_thread(pid, pid)
                } else {
                    children(pid)
                };
                below.extend(children.unwrap_or_default());
            }
            found.push(process);
            if threads > most {
                return;
            }
        }
        next = below;
    }
}

fn select(root: u32, all: Vec<ProcessStat>, found: &mut Vec<ProcessStat>) {
    let mut by_parent: HashMap<u32, Vec<ProcessStat>> = HashMap::new();
    all.into_iter()
        .for_each(|process| by_parent.entry(process.ppid).or_default().push(process));
    let mut next = vec![root];
    while let Some(parent) = next.pop() {
        let children = by_parent.remove(&parent).unwrap_or_default();
        next.extend(children.iter().map(|child| child.pid));
        found.extend(children);
    }
}

/// Those above a process, the nearest first.
pub(crate) fn ancestors(pid: u32) -> impl Iterator<Item = ProcessStat> {
    std::iter::successors(read(pid), |process| read(process.ppid)).skip(1)
}

/// All processes that this one can see.
pub(crate) fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

fn all() -> Vec<ProcessStat> {
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
    let text = slurp(&format!("/proc/{pid}/task/{tid}/children"))?;
    let pids = text
        .split(|b| *b == b' ')
        .filter_map(|pid| std::str::from_utf8(pid).ok()?.parse().ok());
    Ok(pids.collect())
}

pub(crate) fn read(pid: u32) -> Option<ProcessStat> {
    let mut process = parse(&slurp(&format!("/proc/{pid}/stat")).ok()?)?;
    // Its first thread has ended, and shows nothing of what the others hold.
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
        Some(parse(&slurp(thread.path().join("stat").to_str()?).ok()?)?.rss_pages)
    });
    rss.max().unwrap_or(0)
}

/// Reads a file of /proc, which says that it is empty: std would begin with tiny reads.
fn slurp(path: &str) -> io::Result<Vec<u8>> {
    let file = fs::File::open(path)?;
    let mut content = Vec::new();
    while sys::read_some(file.as_fd(), &mut content)? != 0 {}
    Ok(content)
}

fn parse(stat: &[u8]) -> Option<ProcessStat> {
    // The name in parentheses may hold anything, invalid UTF-8 included; what follows the last parenthesis is numbers.
    let end = stat.iter().rposition(|b| *b == b')')?;
    let pid = std::str::from_utf8(stat.split(|b| *b == b' ').next()?)
        .ok()?
        .parse()
        .ok()?;
    let fields: Vec<&str> = std::str::from_utf8(&stat[end + 1..])
        .ok()?
        .split_ascii_whitespace()
        .collect();
    // Counted as proc(5) does, where the state is field 3.
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
        // The state is that of the first thread, which may end before the others.
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
    fn a_stat_line_is_read_whatever_the_name() {
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

    /// Whoever lets its first thread end must not get out of sight with the others.
    #[test]
    fn a_process_whose_first_thread_has_ended_is_alive() {
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
    fn both_ways_of_walking_see_a_grandchild() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & echo; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let mut scanned = Vec::new();
        select(shell.id(), all(), &mut scanned);
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
