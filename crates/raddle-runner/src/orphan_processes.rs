//! What is left of attempts that nobody keeps any more.
//!
//! A runner ends with its worker, and all that it runs with it. When both are killed at the same moment nobody ends what the command had started, and
//! when both are stopped nobody ends the command. Who takes such a task over does it first. What belongs to an attempt is known by the variables that every
//! attempt has in its environment, and that whatever it starts inherits.

use std::{
    collections::{HashMap, HashSet},
    fs, process, thread,
    time::Duration,
};

use raddle_model::{
    Tid,
    attempt_input::{ATTEMPT_VARIABLE, TID_VARIABLE},
};

use rustix::process::Signal;

use crate::tree::{self, ProcessStat};

/// A tree that grows while it is being ended is ended again. What is left after so many rounds cannot be killed.
const ROUNDS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(2);

/// The attempts that processes on this machine belong to which nobody keeps.
pub fn forsaken() -> HashSet<(Tid, u32)> {
    let all = tree::pids()
        .into_iter()
        .filter_map(|pid| Some((pid, mark(pid)?)));
    all.filter(|(pid, (tid, _))| !is_kept(*pid, *tid))
        .map(|(_, mark)| mark)
        .collect()
}

/// Ends all processes on this machine that belong to attempts of these tasks, up to the number that each has here, and what they have started. Returns how
/// many there were.
///
/// Spared is what a runner keeps that is not stopped, whoever its broker is: it knows best how long. Not found is a process that has cleared its
/// environment, or written something else there, and what is another user's.
pub fn kill_orphans(stale: &HashMap<Tid, u32>) -> usize {
    // Who is below one of them itself is the last who could end the others.
    let above: HashSet<u32> = tree::ancestors(process::id())
        .map(|process| process.pid)
        .collect();
    let mut ended = 0;
    for _ in 0..ROUNDS {
        let others = tree::pids()
            .into_iter()
            .filter(|pid| *pid != process::id() && !above.contains(pid));
        let left: Vec<ProcessStat> = others.filter_map(|pid| of_attempt(pid, stale)).collect();
        if left.is_empty() {
            break;
        }
        ended = ended.max(left.len());
        // None of them is to act upon the end of another.
        tree::signal(&left, Signal::STOP);
        for process in &left {
            tree::kill(process.pid);
        }
        tree::signal(&left, Signal::KILL);
        thread::sleep(PAUSE);
    }
    ended
}

/// The process, if it belongs to one of these attempts and nobody keeps it.
fn of_attempt(pid: u32, stale: &HashMap<Tid, u32>) -> Option<ProcessStat> {
    let is_stale = || {
        let (tid, attempt) = mark(pid)?;
        (attempt <= *stale.get(&tid)?).then_some(tid)
    };
    let tid = is_stale()?;
    // Its number may have come to mean another since.
    tree::read(pid).filter(|process| !process.zombie && is_stale().is_some() && !is_kept(pid, tid))
}

/// Whether a runner of the task, which wears its id, is above a process and can see to it.
fn is_kept(pid: u32, tid: Tid) -> bool {
    let title = format!("raddle-{}:", tid.short());
    let wears_it = |pid| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.starts_with(title.as_bytes()))
    };
    tree::ancestors(pid).any(|above| !above.stopped && !above.zombie && wears_it(above.pid))
}

/// The attempt that a process says it belongs to.
fn mark(pid: u32) -> Option<(Tid, u32)> {
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
    Some((
        value(TID_VARIABLE)?.parse().ok()?,
        value(ATTEMPT_VARIABLE)?.parse().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::CommandExt,
        process::{Child, Command},
    };

    use super::*;

    fn tid() -> Tid {
        // As good as an id of its own: no broker gives one of that time.
        Tid::from_u64(1_000_000_000_000_000_000 + u64::from(process::id()))
            .expect("in the range of ids")
    }

    fn sleeper(attempt: u32) -> Child {
        below("sh", attempt)
    }

    /// Two sleepers below one that is called so.
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
    fn earlier_attempts_are_ended_and_no_others() {
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
        // Also what had cleared its environment, below one that had not.
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
    fn what_a_runner_keeps_is_spared_as_long_as_it_is_not_stopped() {
        let mut runner = below(&format!("raddle-{}:task:running", tid().short()), 1);
        let kept = || tree::descendants(runner.id());
        let begun = std::time::Instant::now();
        while kept().len() < 2 {
            assert!(begun.elapsed() < Duration::from_secs(10), "it has begun");
            thread::sleep(PAUSE);
        }
        let stale = HashMap::from([(tid(), 1)]);
        // It has the mark itself, unlike a real one, and nobody above it.
        assert!(forsaken().contains(&(tid(), 1)));
        let marked = kept()
            .into_iter()
            .filter(|process| mark(process.pid).is_some())
            .map(|process| process.pid);
        let sleeper = marked.collect::<Vec<_>>()[0];
        assert!(is_kept(sleeper, tid()) && of_attempt(sleeper, &stale).is_none());
        tree::signal(&[tree::read(runner.id()).unwrap()], Signal::STOP);
        while is_kept(sleeper, tid()) {
            assert!(begun.elapsed() < Duration::from_secs(10), "it is stopped");
            thread::sleep(PAUSE);
        }
        assert!(kill_orphans(&stale) >= 2);
        runner.wait().unwrap();
    }

    #[test]
    fn those_above_a_process_are_known_and_it_is_not_among_them() {
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
