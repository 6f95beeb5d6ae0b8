//! What is left of attempts that nobody keeps any more.
//!
//! A runner ends with its worker, and all that it runs with it. When both are killed at the same moment nobody ends what the command had started, and
//! when both are stopped nobody ends the command. Who takes such a task over does it first. What belongs to an attempt is known by the variables that every
//! attempt has in its environment, and that whatever it starts inherits.

use std::{collections::HashMap, fs, process, thread, time::Duration};

use raddle_core::{
    Tid,
    job::{ATTEMPT_VARIABLE, TID_VARIABLE},
};

use crate::tree::{self, Proc};

/// A tree that grows while it is being ended is ended again. What is left after so many rounds cannot be killed.
const ROUNDS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(2);

/// Ends all processes on this machine that belong to attempts of these tasks, up to the number that each has here, and what they have started. Returns how
/// many there were.
///
/// A process that has cleared its environment, or is another user's, is not found.
pub fn end(stale: &HashMap<Tid, u32>) -> usize {
    let mut ended = 0;
    for _ in 0..ROUNDS {
        let left: Vec<Proc> = tree::pids().into_iter().filter_map(|pid| of_attempt(pid, stale)).collect();
        if left.is_empty() {
            break;
        }
        ended = ended.max(left.len());
        // None of them is to act upon the end of another.
        tree::signal(&left, libc::SIGSTOP);
        for process in &left {
            tree::kill(process.pid);
        }
        tree::signal(&left, libc::SIGKILL);
        thread::sleep(PAUSE);
    }
    ended
}

/// The process, if it belongs to one of these attempts.
fn of_attempt(pid: u32, stale: &HashMap<Tid, u32>) -> Option<Proc> {
    let is_stale = || mark(pid).is_some_and(|(tid, attempt)| stale.get(&tid).is_some_and(|last| attempt <= *last));
    if pid == process::id() || !is_stale() {
        return None;
    }
    // Its number may have come to mean another since.
    tree::read(pid).filter(|process| !process.zombie && is_stale())
}

/// The attempt that a process says it belongs to.
fn mark(pid: u32) -> Option<(Tid, u32)> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = |name: &str| {
        let of_name = |entry: &[u8]| Some(entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?.to_vec());
        String::from_utf8(environment.split(|b| *b == 0).find_map(of_name)?).ok()
    };
    Some((value(TID_VARIABLE)?.parse().ok()?, value(ATTEMPT_VARIABLE)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn tid() -> Tid {
        // As good as an id of its own: no broker gives one of that time.
        Tid::from_u64(1_000_000_000_000_000_000 + u64::from(process::id())).expect("in the range of ids")
    }

    fn sleeper(attempt: u32) -> Child {
        let mut sleeper = Command::new("sh");
        sleeper.args(["-c", "env -i sleep 600 & sleep 600 & wait"]);
        sleeper.env(TID_VARIABLE, tid().to_string()).env(ATTEMPT_VARIABLE, attempt.to_string());
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
        until("all have begun", &|| [&first, &second, &third].iter().all(|child| below(child).len() == 2));
        let trees = [below(&first), below(&second)].concat();
        assert_eq!(end(&HashMap::from([(Tid::from_u64(1_000_000_000_000_000_000).unwrap(), 9)])), 0, "another task");
        assert!(end(&HashMap::from([(tid(), 2)])) >= 4);
        for child in [&mut first, &mut second] {
            assert!(!child.wait().unwrap().success());
        }
        // Also what had cleared its environment, below one that had not.
        until("all of it is gone", &|| {
            trees
                .iter()
                .all(|was| tree::read(was.pid).is_none_or(|now| now.zombie || now.start_ticks != was.start_ticks))
        });
        assert!(third.try_wait().unwrap().is_none());
        assert_eq!(below(&third).len(), 2);
        assert!(end(&HashMap::from([(tid(), 3)])) >= 2);
        third.wait().unwrap();
        assert_eq!(end(&HashMap::from([(tid(), 3)])), 0);
    }
}
