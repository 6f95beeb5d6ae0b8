//! Cleanup in the worker: adopts the processes that a killed runner left, and kills them.

use std::{
    collections::HashMap,
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use rustix::process::Signal;

use crate::{
    cgroup,
    runner::sweep_scratch,
    sys::{self, WaitResult},
    tree::{self, ProcessStat},
};

/// The runners of this process. The lock is held while a runner is started and while orphans are
/// searched, so that a new runner is not taken for an orphan.
static RUNNERS: Mutex<Option<Runners>> = Mutex::new(None);

/// By pid: the start time, which tells a runner from a later process with the same pid.
type Runners = HashMap<u32, u64>;

const MAX_PASSES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(2);

/// Makes this process adopt the orphans among its descendants, which otherwise go to init.
pub fn become_subreaper() -> io::Result<()> {
    sys::set_subreaper()
}

/// Makes this process the leader of a new session, detached from its terminal.
///
/// A process that continues in the background calls this itself, early. Setting it in the parent
/// would put the parent on std's slow spawn path.
pub fn setsid_self() -> io::Result<()> {
    Ok(rustix::process::setsid().map(drop)?)
}

/// Kills the process group that a child of this process leads. The child must not have been waited
/// for.
pub fn kill_group(pid: u32) {
    sys::kill_group(pid, Signal::KILL);
}

/// Sends SIGTERM to a child of this process. The child must not have been waited for: its pid may
/// be reused afterwards.
pub fn terminate(pid: u32) {
    sys::kill(pid, Signal::TERM);
}

/// Sends SIGINT to a child of this process that has not been waited for.
pub fn interrupt(pid: u32) {
    sys::kill(pid, Signal::INT);
}

/// Sends `SIGUSR2` to a process, on which some languages print their stacks.
pub fn signal_usr2(pid: u32) {
    sys::kill(pid, Signal::USR2);
}

/// The signal with which a terminal suspends a process.
pub const SUSPEND: i32 = libc::SIGTSTP;

/// Stops this process with all its threads. Returns when it is continued.
pub fn stop_self() {
    // raise(3) signals this thread. A signal to the process may stop another thread first, and this
    // one would run on for a moment. SAFETY: a plain system call.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Whether this process ignores a signal. A parent can set that: `nohup` does.
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: an all-zero sigaction is valid, and only written to; the call changes nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Current children of this process.
pub fn children() -> Vec<u32> {
    // Most callers have no children, and waitid answers that without reading the list.
    if !sys::has_children() {
        return Vec::new();
    }
    tree::direct_children(std::process::id())
        .into_iter()
        .map(|child| child.pid)
        .collect()
}

/// Kills and reaps all children of this process, with their descendants, that are neither its
/// runners nor in `keep`. Returns how many it reaped. Also removes scratch directories and cgroups
/// that dead runners left.
///
/// Call this after a runner has exited unexpectedly: its command dies with it, and this process
/// adopts the command's children (see [`become_subreaper`]). `keep` must list every other child
/// that this process has started, or it is taken for an orphan. Blocks until the orphans are dead,
/// at most 400 ms.
pub fn reap_orphans(keep: &[u32]) -> usize {
    let me = std::process::id();
    let mut reaped = 0;
    for _ in 0..MAX_PASSES {
        let mut runners = lock_runners();
        let mut orphans = tree::direct_children(me);
        if let Some(runners) = runners.as_mut() {
            let is_same = |child: &ProcessStat, start: &u64| *start == child.start_ticks;
            runners.retain(|pid, start| {
                orphans
                    .iter()
                    .any(|child| child.pid == *pid && is_same(child, start))
            });
            orphans.retain(|child| {
                !runners
                    .get(&child.pid)
                    .is_some_and(|start| is_same(child, start))
            });
        }
        orphans.retain(|child| !keep.contains(&child.pid));
        if orphans.is_empty() {
            break;
        }
        tree::signal(&orphans, Signal::STOP);
        for orphan in &orphans {
            tree::kill(orphan.pid);
        }
        tree::signal(&orphans, Signal::KILL);
        drop(runners);
        let mut waiting = orphans.len();
        for orphan in &orphans {
            // By pid: waiting for any child would take exit statuses that other code waits for.
            match sys::try_wait(Some(orphan.pid)) {
                WaitResult::Reaped(_) => (reaped, waiting) = (reaped + 1, waiting - 1),
                WaitResult::NoChild => waiting -= 1,
                WaitResult::StillRunning => {}
            }
        }
        if waiting > 0 {
            thread::sleep(PAUSE);
        }
    }
    sweep_scratch();
    cgroup::sweep();
    reaped
}

/// Kills the attempts of a worker that is a child of this process and is about to be killed. Its
/// runners stay suspended, so that they do not report to the worker: the caller decides what
/// becomes of the tasks. Blocks until all processes are dead, at most 400 ms.
pub fn kill_attempts_of_worker(worker: u32) {
    let me = std::process::id();
    for _ in 0..MAX_PASSES {
        // The worker may have exited, and its pid may be reused.
        if tree::parent_of(worker) != Some(me) {
            return;
        }
        let runners = tree::direct_children(worker);
        tree::signal(&runners, Signal::STOP);
        runners.iter().for_each(|runner| tree::kill(runner.pid));
        if runners.iter().all(|runner| {
            tree::descendants(runner.pid)
                .iter()
                .all(|process| process.zombie)
        }) {
            return;
        }
        thread::sleep(PAUSE);
    }
}

/// Kills the runners that [`kill_attempts_of_worker`] has left suspended. A runner is continued
/// when its worker dies (PR_SET_PDEATHSIG). One that has not read its request yet would then start
/// a task that is already recorded as over.
pub fn kill_runners_of_worker(worker: u32) {
    if tree::parent_of(worker) == Some(std::process::id()) {
        tree::signal(&tree::direct_children(worker), Signal::KILL);
    }
}

/// Starts a runner and remembers it.
pub(crate) fn register_started<T>(start: impl FnOnce() -> io::Result<(u32, T)>) -> io::Result<T> {
    let mut runners = lock_runners();
    let (pid, started) = start()?;
    // The runner cannot have been reaped: only its handle waits for it, and the handle does not
    // exist yet.
    runners
        .get_or_insert_default()
        .insert(pid, tree::process_start_time(pid).unwrap_or_default());
    Ok(started)
}

/// Forgets a runner that was waited for: its pid may be reused from now on.
pub(crate) fn forget_runner(pid: u32) {
    if let Some(runners) = lock_runners().as_mut() {
        runners.remove(&pid);
    }
}

fn lock_runners() -> MutexGuard<'static, Option<Runners>> {
    RUNNERS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        os::unix::process::CommandExt,
        process::{Command, Stdio},
        time::Instant,
    };

    use super::*;

    /// Whether a process is neither stopped nor dead.
    fn is_running(pid: u32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let state = status
            .lines()
            .find_map(|line| line.strip_prefix("State:"))
            .map(str::trim_start);
        state.is_some_and(|state| !state.starts_with(['T', 'Z']))
    }

    #[test]
    fn kills_attempts_of_a_worker_and_suspends_its_runners() {
        // A worker, its runner, and processes of the runner: one in the background, one orphan in
        // another session.
        let runner = "sleep 1000 & setsid sh -c 'sleep 1000 & wait' & echo $$ $!; wait";
        let mut worker = Command::new("sh")
            .args(["-c", "sh -c \"$0\" & wait", runner])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(worker.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let pids: Vec<u32> = line
            .split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect();
        let [runner, leader] = pids[..] else {
            panic!("expected two pids: {line}")
        };
        let own = worker.id();
        // Processes that are no children of this process are left alone.
        kill_attempts_of_worker(std::process::id());
        assert!(is_running(runner) && is_running(leader));
        kill_attempts_of_worker(own);
        assert!(
            tree::descendants(runner)
                .iter()
                .all(|process| process.zombie),
            "nothing runs any more"
        );
        // SIGSTOP takes effect when the process is scheduled next.
        let deadline = Instant::now() + Duration::from_secs(10);
        while is_running(runner) {
            assert!(Instant::now() < deadline, "the runner is suspended");
            thread::sleep(PAUSE);
        }
        assert!(is_running(own), "the worker itself is not stopped");
        kill_runners_of_worker(own);
        worker.wait().unwrap();
        assert!(
            tree::read(runner).is_none(),
            "its worker was the one to wait for it"
        );
    }
}
