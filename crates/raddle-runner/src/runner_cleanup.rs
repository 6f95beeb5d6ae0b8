//! The worker's part in leaving nobody behind: it adopts what a killed runner leaves, and ends it.

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

/// The runners of this process. Held while a runner is being started and while orphans are looked for, so that a runner is never taken for an orphan because
/// it is new.
static RUNNERS: Mutex<Option<Runners>> = Mutex::new(None);

/// By pid: when each has begun, which tells it from a later process with its pid.
type Runners = HashMap<u32, u64>;

const ROUNDS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(2);

/// Makes this process adopt the orphans among its descendants, where they would otherwise go to init.
pub fn become_subreaper() -> io::Result<()> {
    sys::set_subreaper()
}

/// Makes this process the leader of a new session, away from the terminal it was started at.
///
/// For a process that goes on in the background. It does so itself, early: asking for it in the parent would put the parent on
/// the slow path of spawning.
pub fn setsid_self() -> io::Result<()> {
    Ok(rustix::process::setsid().map(drop)?)
}

/// Kills a child of this process that leads a process group, and all that are in it. Only for one that has not been waited for.
pub fn kill_group(pid: u32) {
    sys::kill_group(pid, Signal::KILL);
}

/// Asks a child of this process to end. Only for one that has not been waited for: its number may be another's afterwards.
pub fn terminate(pid: u32) {
    sys::kill(pid, Signal::TERM);
}

/// Sends `SIGUSR2` to a process, on which some languages print their stacks.
pub fn signal_usr2(pid: u32) {
    sys::kill(pid, Signal::USR2);
}

/// Sends `SIGINT` to a child of this process that has not been waited for.
pub fn interrupt(pid: u32) {
    sys::kill(pid, Signal::INT);
}

/// The signal by which a terminal asks a process to stop for a while.
pub const SUSPEND: i32 = libc::SIGTSTP;

/// Stops this process with all its threads. Returns when somebody lets it go on.
pub fn stop_self() {
    // To this thread: one that is sent to the process may stop another thread first, while this one goes on for a moment.
    // SAFETY: a plain system call.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Whether this process ignores a signal, as its parent may have asked for: `nohup` does.
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: an all-zero sigaction is a valid one, and only written to: nothing is changed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// The children that this process has now.
pub fn children() -> Vec<u32> {
    // Most processes that ask have none, and that is told without a look at the list.
    if !sys::has_children() {
        return Vec::new();
    }
    tree::direct_children(std::process::id())
        .into_iter()
        .map(|child| child.pid)
        .collect()
}

/// Kills and reaps the children of this process that are neither its runners nor in `keep`, with all their descendants. Returns how
/// many it reaped. Directories that the runner's attempt has left on the disk are removed too, and control groups.
///
/// To be called after a runner has ended unexpectedly: its command dies with it, and what the command had started in turn
/// is adopted by this process (see [`become_subreaper`]). Every child that this process has started in another way must be in `keep`:
/// it would be taken for an orphan. Blocks for as long as the orphans need to die, at most 400 ms.
pub fn reap_orphans(keep: &[u32]) -> usize {
    let me = std::process::id();
    let mut reaped = 0;
    for _ in 0..ROUNDS {
        let mut runners = lock();
        let mut orphans = tree::direct_children(me);
        if let Some(runners) = runners.as_mut() {
            let is = |child: &ProcessStat, start: &u64| *start == child.start_ticks;
            runners.retain(|pid, start| {
                orphans
                    .iter()
                    .any(|child| child.pid == *pid && is(child, start))
            });
            orphans.retain(|child| {
                !runners
                    .get(&child.pid)
                    .is_some_and(|start| is(child, start))
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
            // By its pid: waiting for any child would take exit statuses that belong to others.
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

/// Ends what the runners of a worker run, which is a child of this process and about to be killed. They stand still from then on, so that the worker does
/// not hear of it: whoever kills it says what has become of its tasks. Blocks for as long as all that needs to die, at most 400 ms.
pub fn end_what_runs(worker: u32) {
    let me = std::process::id();
    for _ in 0..ROUNDS {
        // One that is gone may have lent its number to another.
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

/// Kills the runners of a worker that [`end_what_runs`] has left standing. A runner goes on when its worker dies, to see that it is gone; one that has not
/// read its task yet would begin it then, after somebody has written that it is over.
pub fn end_runners(worker: u32) {
    if tree::parent_of(worker) == Some(std::process::id()) {
        tree::signal(&tree::direct_children(worker), Signal::KILL);
    }
}

/// Starts a runner and remembers it.
pub(crate) fn starting<T>(start: impl FnOnce() -> io::Result<(u32, T)>) -> io::Result<T> {
    let mut runners = lock();
    let (pid, started) = start()?;
    // It cannot be gone: nobody but its handle, which does not exist yet, waits for it.
    runners
        .get_or_insert_default()
        .insert(pid, tree::process_start_time(pid).unwrap_or_default());
    Ok(started)
}

/// Forgets a runner that was waited for: its pid may be given to another process from now on.
pub(crate) fn ended(pid: u32) {
    if let Some(runners) = lock().as_mut() {
        runners.remove(&pid);
    }
}

fn lock() -> MutexGuard<'static, Option<Runners>> {
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

    /// Whether a process neither stands still nor has ended.
    fn goes_on(pid: u32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let state = status
            .lines()
            .find_map(|line| line.strip_prefix("State:"))
            .map(str::trim_start);
        state.is_some_and(|state| !state.starts_with(['T', 'Z']))
    }

    #[test]
    fn what_runs_is_ended_and_nobody_hears_of_it() {
        // A worker, its runner, and what that runs: in the background, and as somebody else's child.
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
            panic!("two are told of: {line}")
        };
        let own = worker.id();
        // Whoever is no child of this process is none of its business.
        end_what_runs(std::process::id());
        assert!(goes_on(runner) && goes_on(leader));
        end_what_runs(own);
        assert!(
            tree::descendants(runner)
                .iter()
                .all(|process| process.zombie),
            "nothing runs any more"
        );
        // It was told to, and does so when it is its turn to run.
        let deadline = Instant::now() + Duration::from_secs(10);
        while goes_on(runner) {
            assert!(Instant::now() < deadline, "the runner stands still");
            thread::sleep(PAUSE);
        }
        assert!(goes_on(own), "the worker does not know");
        end_runners(own);
        worker.wait().unwrap();
        assert!(
            tree::read(runner).is_none(),
            "its worker was the one to wait for it"
        );
    }
}
