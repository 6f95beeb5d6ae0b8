//! Orphan processes: processes of attempts that no runner supervises any more.
//!
//! A runner exits with its worker and kills its attempt. If both are killed at the same moment, the
//! children of the command survive; if both are stopped, the command itself does. The worker that
//! takes over such a task kills them first. It recognises a process of an attempt by the variables
//! that every attempt has in its environment and that its children inherit.

use std::{
    collections::{HashMap, HashSet},
    fs, process, thread,
    time::Duration,
};

use raddle_model::{
    Tid,
    attempt_input::{ATTEMPT_VARIABLE, TID_VARIABLE, WORKER_VARIABLE},
};

use rustix::process::Signal;

use crate::tree::{self, ProcessStat};

/// Maximum number of passes. A tree that grows while it is killed needs several; after this many,
/// the rest cannot be killed.
const MAX_PASSES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(2);

/// Attempts on this machine that have processes but no runner.
pub fn orphaned_attempts() -> HashSet<(Tid, u32)> {
    let all = tree::pids()
        .into_iter()
        .filter_map(|pid| Some((pid, attempt_of_process(pid)?)));
    all.filter(|(pid, (tid, _))| !has_runner(*pid, *tid))
        .map(|(_, attempt)| attempt)
        .collect()
}

/// Kills all processes on this machine that belong to attempts of these tasks, up to the given
/// attempt number, with their descendants. Returns how many there were.
///
/// Spares processes below a runner that is not stopped, whichever broker it belongs to: the runner
/// decides how long they live. Misses processes that cleared or changed their environment, and
/// those of other users.
pub fn kill_orphans(stale: &HashMap<Tid, u32>) -> usize {
    // If this process is itself below one of them, its ancestors must survive until the others are
    // dead.
    let above: HashSet<u32> = tree::ancestors(process::id())
        .map(|process| process.pid)
        .collect();
    let mut ended = 0;
    for _ in 0..MAX_PASSES {
        let others = tree::pids()
            .into_iter()
            .filter(|pid| *pid != process::id() && !above.contains(pid));
        let orphans: Vec<ProcessStat> =
            others.filter_map(|pid| stale_process(pid, stale)).collect();
        if orphans.is_empty() {
            break;
        }
        ended = ended.max(orphans.len());
        // Stop all first, so that none reacts to the end of another.
        tree::signal(&orphans, Signal::STOP);
        for process in &orphans {
            tree::kill(process.pid);
        }
        tree::signal(&orphans, Signal::KILL);
        thread::sleep(PAUSE);
    }
    ended
}

/// The process, if it belongs to one of these attempts and has no runner.
fn stale_process(pid: u32, stale: &HashMap<Tid, u32>) -> Option<ProcessStat> {
    let is_stale = || {
        let (tid, attempt) = attempt_of_process(pid)?;
        (attempt <= *stale.get(&tid)?).then_some(tid)
    };
    let tid = is_stale()?;
    // The pid may have been reused since.
    tree::read(pid)
        .filter(|process| !process.zombie && is_stale().is_some() && !has_runner(pid, tid))
}

/// Whether a live runner of the task, recognised by its process title, is an ancestor of the
/// process.
fn has_runner(pid: u32, tid: Tid) -> bool {
    let title = format!("raddle-{}:", tid.short());
    let has_title = |pid| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.starts_with(title.as_bytes()))
    };
    tree::ancestors(pid).any(|above| !above.stopped && !above.zombie && has_title(above.pid))
}

/// The attempt that a process belongs to, from its environment. A process of a host belongs to the
/// worker, as attempt 0 of it.
fn attempt_of_process(pid: u32) -> Option<(Tid, u32)> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = |name: &str| {
        let of_name = |entry: &[u8]| {
            Some(
                entry
                    .strip_prefix(name.as_bytes())?
                    .strip_prefix(b"=")?
                    .to_vec(),
            )
        };
        String::from_utf8(environment.split(|b| *b == 0).find_map(of_name)?).ok()
    };
    match value(TID_VARIABLE) {
        Some(tid) => Some((tid.parse().ok()?, value(ATTEMPT_VARIABLE)?.parse().ok()?)),
        None => Some((value(WORKER_VARIABLE)?.parse().ok()?, 0)),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::CommandExt,
        process::{Child, Command},
    };

    use super::*;

    fn tid() -> Tid {
        // Unique enough: no broker generates ids of that time, and each test has its own thread.
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u64;
        Tid::from_u64(1_000_000_000_000_000_000 + thread).expect("in the range of ids")
    }

    fn sleeper(attempt: u32) -> Child {
        below("sh", attempt)
    }

    /// Two sleepers below a shell with this name.
    fn below(name: &str, attempt: u32) -> Child {
        let mut sleeper = Command::new("sh");
        sleeper
            .arg0(name)
            .args(["-c", "env -i sleep 600 & sleep 600 & wait"]);
        sleeper
            .env(TID_VARIABLE, tid().to_string())
            .env(ATTEMPT_VARIABLE, attempt.to_string());
        sleeper.spawn().expect("a shell")
    }

    #[test]
    fn kills_processes_of_earlier_attempts_only() {
        let [mut first, mut second, mut third] = [1, 2, 3].map(sleeper);
        let until = |what: &str, holds: &dyn Fn() -> bool| {
            let begun = std::time::Instant::now();
            while !holds() {
                assert!(begun.elapsed() < Duration::from_secs(10), "{what}");
                thread::sleep(PAUSE);
            }
        };
        let below = |child: &Child| tree::descendants(child.id());
        until("all have begun", &|| {
            [&first, &second, &third]
                .iter()
                .all(|child| below(child).len() == 2)
        });
        let trees = [below(&first), below(&second)].concat();
        assert_eq!(
            kill_orphans(&HashMap::from([(
                Tid::from_u64(1_000_000_000_000_000_000).unwrap(),
                9
            )])),
            0,
            "another task"
        );
        assert!(kill_orphans(&HashMap::from([(tid(), 2)])) >= 4);
        for child in [&mut first, &mut second] {
            assert!(!child.wait().unwrap().success());
        }
        // Including a process that cleared its environment, below one that did not.
        until("all of it is gone", &|| {
            trees.iter().all(|was| {
                tree::read(was.pid)
                    .is_none_or(|now| now.zombie || now.start_ticks != was.start_ticks)
            })
        });
        assert!(third.try_wait().unwrap().is_none());
        assert_eq!(below(&third).len(), 2);
        assert!(kill_orphans(&HashMap::from([(tid(), 3)])) >= 2);
        third.wait().unwrap();
        assert_eq!(kill_orphans(&HashMap::from([(tid(), 3)])), 0);
    }

    #[test]
    fn spares_processes_below_a_runner_that_is_not_stopped() {
        let mut runner = below(&format!("raddle-{}:task:running", tid().short()), 1);
        let children = || tree::descendants(runner.id());
        let begun = std::time::Instant::now();
        while children().len() < 2 {
            assert!(begun.elapsed() < Duration::from_secs(10), "it has begun");
            thread::sleep(PAUSE);
        }
        let stale = HashMap::from([(tid(), 1)]);
        // Unlike a real runner, this shell has the variables itself, and no runner above it.
        assert!(orphaned_attempts().contains(&(tid(), 1)));
        let with_variables = children()
            .into_iter()
            .filter(|process| attempt_of_process(process.pid).is_some())
            .map(|process| process.pid);
        let sleeper = with_variables.collect::<Vec<_>>()[0];
        assert!(has_runner(sleeper, tid()) && stale_process(sleeper, &stale).is_none());
        tree::signal(&[tree::read(runner.id()).unwrap()], Signal::STOP);
        while has_runner(sleeper, tid()) {
            assert!(begun.elapsed() < Duration::from_secs(10), "it is stopped");
            thread::sleep(PAUSE);
        }
        assert!(kill_orphans(&stale) >= 2);
        runner.wait().unwrap();
    }

    #[test]
    fn lists_ancestors_without_the_process_itself() {
        let above: Vec<u32> = tree::ancestors(process::id())
            .map(|process| process.pid)
            .collect();
        assert_eq!(above.first().copied(), tree::parent_of(process::id()));
        assert!(
            above.contains(&1) && !above.contains(&process::id()),
            "{above:?}"
        );
    }
}
