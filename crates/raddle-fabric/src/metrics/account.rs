//! What is counted of the tasks that pass between workers and their broker. No I/O, no clock.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use jiff::Timestamp;
use raddle_broker::{Claim, Fence, Finish, Verdict};
use raddle_core::{EventKind, Exit, Spec, State, Tid, settle::event_before_another};

use super::{
    attempt::{Attempt, Beginning},
    histogram::Histogram,
};

/// A moment on both clocks: durations follow the one that never jumps, ids the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Nanoseconds since the epoch.
    pub(crate) wall: u64,
    /// Since the account was opened.
    pub(crate) age: Duration,
}

/// What became of claimed tasks.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// The attempts whose end has not been seen.
    in_hand: BTreeMap<Fence, InHand>,
    ended: BTreeMap<Status, u64>,
    /// From the claim to the end in the broker.
    pub(super) runtime: Histogram,
    /// From when it could be claimed to its first claim.
    pub(super) wait: Histogram,
    /// From the start of the target to its end.
    pub(super) run: Histogram,
    pub(super) hits: Hits,
    /// Attempts that turned out to be over.
    pub(super) untold: Vec<Attempt>,
}

/// An attempt that a worker has.
#[derive(Debug)]
struct InHand {
    claimed: Moment,
    /// Where somebody wants to know.
    beginning: Option<Box<Beginning>>,
}

/// An attempt that is over, without what it wrote.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    pub(super) fence: Fence,
    pub(super) exit: Exit,
    pub(super) started_at: Option<Timestamp>,
    pub(super) ended_at: Timestamp,
}

/// What became of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Status {
    /// The task is over.
    Done(State),
    /// Another attempt follows.
    Retried,
    /// It was given back unfinished.
    Released,
    /// Its worker is gone.
    Lost,
    /// It came too late: the task belongs to another attempt.
    Stale,
}

/// Tasks that found a worker waiting, and those that did not.
#[derive(Debug, Default)]
pub(super) struct Hits {
    pub(super) hits: u64,
    pub(super) misses: u64,
    /// The last ones, for a share that says how it is now.
    recent: VecDeque<bool>,
}

/// More attempts than this are not in hand at a time. If ends are missed, because another process has taken a task back, the oldest are
/// forgotten.
const IN_HAND: usize = 20_000;
/// Of how many tasks the share of hits is taken.
const RECENT: usize = 1000;

impl Account {
    /// Tasks were taken by somebody who had begun to ask for them at `asked`.
    pub(super) fn claimed(&mut self, claims: &[Claim], asked: Moment, now: Moment, is_recorded: bool) {
        for Claim { fence, spec } in claims {
            // When a later attempt became possible is not known here.
            if fence.attempt == 1 {
                let ready = ready_at(fence.tid, spec);
                self.wait.observe(seconds(now.wall.saturating_sub(ready)));
                self.hits.add(ready >= asked.wall);
            } else {
                self.forget_before(*fence, now);
            }
            let beginning = is_recorded.then(|| Box::new(Beginning::new(*fence, spec, now.wall)));
            self.in_hand.insert(*fence, InHand { claimed: now, beginning });
        }
        while self.in_hand.len() > IN_HAND {
            self.in_hand.pop_first();
        }
    }

    /// The broker has taken the end of an attempt. One that was not claimed here is not counted.
    pub(super) fn finished(&mut self, ending: &Ending, verdict: Verdict, now: Moment) -> Option<Attempt> {
        let status = match verdict {
            Verdict::Done(state) => Status::Done(state),
            Verdict::Again(_) => match event_before_another(&ending.exit) {
                EventKind::Reclaimed => Status::Lost,
                EventKind::Released => Status::Released,
                _ => Status::Retried,
            },
            Verdict::Stale => Status::Stale,
        };
        let is_counted = self.in_hand.contains_key(&ending.fence) && verdict != Verdict::Stale;
        if let Some(began) = ending.started_at.filter(|_| is_counted) {
            self.run.observe(ending.ended_at.duration_since(began).as_secs_f64().max(0.0));
        }
        let failure = (!ending.exit.is_success()).then(|| ending.exit.to_string());
        self.end(ending.fence, status, failure, now)
    }

    pub(super) fn released(&mut self, fence: Fence, verdict: Verdict, now: Moment) -> Option<Attempt> {
        let status = if verdict == Verdict::Stale { Status::Stale } else { Status::Released };
        self.end(fence, status, None, now)
    }

    /// A task was taken back from a worker that is gone.
    pub(super) fn lost(&mut self, fence: Fence, now: Moment) -> Option<Attempt> {
        self.end(fence, Status::Lost, Some("its worker is gone".into()), now)
    }

    /// Whoever had an earlier attempt is gone: that was taken back, by a process that need not have told.
    fn forget_before(&mut self, fence: Fence, now: Moment) {
        let earlier = Fence { attempt: 0, ..fence }..fence;
        let lost: Vec<Fence> = self.in_hand.range(earlier).map(|(fence, _)| *fence).collect();
        let told = lost.into_iter().filter_map(|fence| self.lost(fence, now)).collect::<Vec<_>>();
        self.untold.extend(told);
    }

    /// Ends an attempt, if it was in hand.
    fn end(&mut self, fence: Fence, status: Status, failure: Option<String>, now: Moment) -> Option<Attempt> {
        let InHand { claimed, beginning } = self.in_hand.remove(&fence)?;
        *self.ended.entry(status).or_default() += 1;
        if let Status::Done(_) | Status::Retried = status {
            self.runtime.observe(now.age.saturating_sub(claimed.age).as_secs_f64());
        }
        Some(beginning?.end(fence, status.as_str(), failure, now.wall))
    }

    /// How many attempts came to which end. All ends are there from the beginning, so that the first of a kind is seen as an increase.
    pub(super) fn ended(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Status::ALL.into_iter().map(|status| (status.as_str(), self.ended.get(&status).copied().unwrap_or(0)))
    }

    pub(super) fn in_hand(&self) -> usize {
        self.in_hand.len()
    }
}

impl From<&Finish> for Ending {
    fn from(finish: &Finish) -> Self {
        let Finish { fence, report, .. } = finish;
        Self { fence: *fence, exit: report.exit.clone(), started_at: report.started_at, ended_at: report.ended_at }
    }
}

impl Status {
    const ALL: [Self; 9] = [
        Self::Done(State::Completed),
        Self::Done(State::Failed),
        Self::Done(State::Timeout),
        Self::Done(State::Cancelled),
        Self::Done(State::Killed),
        Self::Retried,
        Self::Released,
        Self::Lost,
        Self::Stale,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Done(state) => state.as_str(),
            Self::Retried => "retried",
            Self::Released => "released",
            Self::Lost => "lost",
            Self::Stale => "stale",
        }
    }
}

impl Hits {
    fn add(&mut self, is_hit: bool) {
        *if is_hit { &mut self.hits } else { &mut self.misses } += 1;
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(is_hit);
    }

    /// The share of hits among the last tasks. Not a number before the first: nothing is known then, and no rule may act on it.
    pub(super) fn ratio(&self) -> f64 {
        let hits = self.recent.iter().filter(|is_hit| **is_hit).count();
        hits as f64 / self.recent.len() as f64
    }
}

/// When a task could first be claimed, in nanoseconds since the epoch.
fn ready_at(tid: Tid, spec: &Spec) -> u64 {
    let submitted = tid.unix_nanos();
    let delay = spec.delay.map_or(0, |delay| u64::try_from(delay.0.as_nanos()).unwrap_or(u64::MAX));
    let run_at = spec.run_at.map_or(0, |at| u64::try_from(at.as_nanosecond()).unwrap_or(0));
    submitted.saturating_add(delay).max(run_at)
}

fn seconds(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use raddle_core::Span;

    use super::*;

    const BASE: u64 = 1_700_000_000_000_000_000;

    fn at(millis: u64) -> Moment {
        Moment { wall: BASE + millis * 1_000_000, age: Duration::from_millis(millis) }
    }

    fn claim(millis: u64, attempt: u32) -> Claim {
        let tid = Tid::from_u64(BASE + millis * 1_000_000).unwrap();
        Claim { fence: Fence { tid, attempt }, spec: Spec::command(["true"]) }
    }

    fn finish(fence: Fence, ran: i64) -> Ending {
        let ended_at = Timestamp::UNIX_EPOCH;
        Ending {
            fence,
            exit: Exit::Code { code: 0 },
            started_at: Some(ended_at - SignedDuration::from_millis(ran)),
            ended_at,
        }
    }

    fn ended(account: &Account, status: &str) -> u64 {
        account.ended().find(|(name, _)| *name == status).unwrap().1
    }

    #[test]
    fn a_task_waits_runs_and_ends() {
        let mut account = Account::default();
        let one = claim(10, 1);
        account.claimed(std::slice::from_ref(&one), at(0), at(30), false);
        assert_eq!((account.wait.count(), account.in_hand()), (1, 1));
        assert!((account.wait.sum() - 0.02).abs() < 1e-9);
        account.finished(&finish(one.fence, 50), Verdict::Done(State::Completed), at(130));
        assert!((account.runtime.sum() - 0.1).abs() < 1e-9);
        assert!((account.run.sum() - 0.05).abs() < 1e-9);
        assert_eq!((ended(&account, "completed"), account.in_hand()), (1, 0));
        // Said twice, or of a task that was claimed elsewhere.
        account.finished(&finish(one.fence, 50), Verdict::Done(State::Completed), at(131));
        assert_eq!((ended(&account, "completed"), account.run.count()), (1, 1));
    }

    #[test]
    fn other_ends_are_told_apart() {
        let mut account = Account::default();
        let tasks: Vec<Claim> = (1..=5).map(|n| claim(n, 1)).collect();
        account.claimed(&tasks, at(0), at(10), false);
        account.finished(&finish(tasks[0].fence, 1), Verdict::Again(Timestamp::UNIX_EPOCH), at(11));
        account.finished(&finish(tasks[1].fence, 1), Verdict::Stale, at(11));
        account.released(tasks[2].fence, Verdict::Again(Timestamp::UNIX_EPOCH), at(11));
        account.released(tasks[3].fence, Verdict::Stale, at(11));
        account.lost(tasks[4].fence, at(11));
        let all: Vec<_> = account.ended().filter(|(_, n)| *n > 0).collect();
        assert_eq!(all, [("retried", 1), ("released", 1), ("lost", 1), ("stale", 2)]);
        assert_eq!((account.runtime.count(), account.run.count()), (1, 1));
    }

    #[test]
    fn an_attempt_that_is_followed_by_another_was_lost() {
        let mut account = Account::default();
        account.claimed(&[claim(1, 1), claim(2, 1)], at(0), at(5), false);
        account.claimed(&[claim(1, 2)], at(6), at(7), false);
        assert_eq!((ended(&account, "lost"), account.in_hand()), (1, 2));
    }

    #[test]
    fn whoever_waited_before_the_task_came_was_a_hit() {
        let mut account = Account::default();
        assert!(account.hits.ratio().is_nan());
        account.claimed(&[claim(20, 1)], at(10), at(21), false);
        account.claimed(&[claim(20, 1)], at(25), at(26), false);
        // Not before its time.
        let mut later = claim(20, 1);
        later.spec.delay = Some(Span(Duration::from_millis(100)));
        account.claimed(&[later], at(110), at(121), false);
        // It is not known when this one was ready again.
        account.claimed(&[claim(20, 2)], at(25), at(26), false);
        assert_eq!((account.hits.hits, account.hits.misses, account.wait.count()), (2, 1, 3));
        assert!((account.hits.ratio() - 2.0 / 3.0).abs() < 1e-9);
        for _ in 0..2 * RECENT {
            account.claimed(&[claim(20, 1)], at(25), at(26), false);
        }
        assert_eq!(account.hits.ratio(), 0.0, "what is long ago does not count");
    }

    #[test]
    fn attempts_are_told_to_those_who_want_to_know() {
        let mut account = Account::default();
        let mut one = claim(10, 1);
        one.spec.kind = Some("execute".into());
        account.claimed(std::slice::from_ref(&one), at(0), at(30), true);
        let told = account.finished(&finish(one.fence, 5), Verdict::Done(State::Completed), at(40)).unwrap();
        assert_eq!(told.own, one.spec.trace(one.fence.tid, 1).parent);
        assert_eq!((told.began, told.ended, told.within), (at(30).wall, at(40).wall, None));
        assert!(told.attributes.contains(&("raddle.status", "completed".into())));
        assert!(told.attributes.contains(&("raddle.kind", "execute".into())));
        account.claimed(&[claim(1, 1)], at(0), at(5), true);
        account.claimed(&[claim(1, 2)], at(6), at(7), true);
        assert!(account.untold[0].failure.is_some());
    }

    #[test]
    fn what_is_never_heard_of_again_is_forgotten() {
        let mut account = Account::default();
        for millis in 0..IN_HAND as u64 + 10 {
            account.claimed(&[claim(millis, 1)], at(0), at(millis), false);
        }
        assert_eq!(account.in_hand(), IN_HAND);
    }
}
