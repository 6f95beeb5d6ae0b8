//! What is counted of the tasks that pass between workers and their broker. No I/O, no clock.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use raddle_broker::{Claim, Fence, Verdict};
use raddle_core::{Event, EventKind, Report, Spec, State, Tid, settle::event_before_another};

use super::{Attempt, ExitReason, Recorder, histogram::Histogram};

/// A moment on both clocks: durations follow the one that never jumps, ids the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Nanoseconds since the epoch.
    pub(crate) wall: u64,
    /// Since the account was opened.
    pub(crate) age: Duration,
}

/// What became of claimed tasks, and of workers.
#[derive(Default)]
pub(super) struct Account {
    /// The attempts whose end has not been seen.
    in_hand: BTreeMap<Fence, InHand>,
    /// Attempts that ended, by their status.
    ended: BTreeMap<&'static str, u64>,
    /// From the claim to the end in the broker.
    pub(super) runtime: Histogram,
    /// From when it could be claimed to its first claim.
    pub(super) wait: Histogram,
    /// From the start of the target to its end.
    pub(super) run: Histogram,
    pub(super) hits: Hits,
    /// Workers that ended, by why.
    pub(super) exits: BTreeMap<ExitReason, u64>,
    /// Takes each attempt that is over.
    pub(super) recorder: Option<Arc<dyn Recorder>>,
}

/// An attempt that a worker has.
struct InHand {
    claimed: Moment,
    /// For the recorder, if there is one.
    attempt: Option<Box<Attempt>>,
}

/// Tasks that found a worker waiting, and those that did not.
#[derive(Debug, Default)]
pub(super) struct Hits {
    pub(super) hits: u64,
    pub(super) misses: u64,
    /// The last ones, for a share that says how it is now.
    recent: VecDeque<bool>,
}

/// Ends of an attempt that are not states of its task: another attempt follows; it was given back unfinished; its worker is gone; the task belongs to another
/// attempt.
const RETRIED: &str = "retried";
const RELEASED: &str = "released";
const LOST: &str = "lost";
const STALE: &str = "stale";
/// More attempts than this are not in hand at a time. If ends are missed, because another process has taken a task back, the oldest are
/// forgotten.
const IN_HAND: usize = 20_000;
/// Of how many tasks the share of hits is taken.
const RECENT: usize = 1000;

impl Account {
    pub(super) fn new(recorder: Option<Arc<dyn Recorder>>) -> Self {
        Self { recorder, ..Self::default() }
    }

    /// Tasks were taken by somebody who had begun to ask for them at `asked`.
    pub(super) fn claimed(&mut self, claims: &[Claim], asked: Moment, now: Moment) {
        for Claim { fence, spec, .. } in claims {
            // When a later attempt became possible is not known here.
            if fence.attempt == 1 {
                let ready = ready_at(fence.tid, spec);
                self.wait.observe(seconds(now.wall.saturating_sub(ready)));
                self.hits.add(ready >= asked.wall);
            } else {
                self.forget_before(*fence, now);
            }
            let attempt = self.recorder.as_ref().map(|_| Box::new(Attempt::begin(*fence, spec, now.wall)));
            self.in_hand.insert(*fence, InHand { claimed: now, attempt });
        }
        while self.in_hand.len() > IN_HAND {
            self.in_hand.pop_first();
        }
    }

    /// The broker has taken the end of an attempt. One that was not claimed here is not counted.
    pub(super) fn finished(&mut self, fence: Fence, report: &Report, verdict: Verdict, now: Moment) {
        let status = match verdict {
            Verdict::Done(state) => state.as_str(),
            Verdict::Again(_) => match event_before_another(&report.exit) {
                EventKind::Reclaimed => LOST,
                EventKind::Released => RELEASED,
                _ => RETRIED,
            },
            Verdict::Stale => STALE,
        };
        let is_counted = self.has(fence) && verdict != Verdict::Stale;
        if let Some(began) = report.started_at.filter(|_| is_counted) {
            self.run.observe(report.ended_at.duration_since(began).as_secs_f64().max(0.0));
        }
        let failure = (!report.exit.is_success()).then(|| report.exit.to_string());
        self.end(fence, status, failure, now);
    }

    /// The log has an event of an attempt. `ran` is for how many seconds its target ran, where that is known.
    pub(super) fn logged(&mut self, fence: Fence, event: &Event, ran: Option<f64>, now: Moment) {
        let status = match event.event {
            EventKind::Retrying => RETRIED,
            EventKind::Released => RELEASED,
            EventKind::Reclaimed => LOST,
            kind if kind.is_terminal() => kind.as_str(),
            _ => return,
        };
        if let Some(ran) = ran.filter(|_| self.has(fence)) {
            self.run.observe(ran);
        }
        let failure = if event.event == EventKind::Completed { None } else { event.detail.clone() };
        self.end(fence, status, failure, now);
    }

    /// Whether the end of this attempt has not been seen.
    pub(super) fn has(&self, fence: Fence) -> bool {
        self.in_hand.contains_key(&fence)
    }

    pub(super) fn released(&mut self, fence: Fence, verdict: Verdict, now: Moment) {
        let status = if verdict == Verdict::Stale { STALE } else { RELEASED };
        self.end(fence, status, None, now);
    }

    /// A task was taken back from a worker that is gone.
    pub(super) fn lost(&mut self, fence: Fence, now: Moment) {
        self.end(fence, LOST, Some("its worker is gone".into()), now);
    }

    /// Whoever had an earlier attempt is gone: that was taken back, by a process that need not have told.
    fn forget_before(&mut self, fence: Fence, now: Moment) {
        let earlier = Fence { attempt: 0, ..fence }..fence;
        let lost: Vec<Fence> = self.in_hand.range(earlier).map(|(fence, _)| *fence).collect();
        lost.into_iter().for_each(|fence| self.lost(fence, now));
    }

    /// Ends an attempt, if it was in hand.
    fn end(&mut self, fence: Fence, status: &'static str, failure: Option<String>, now: Moment) {
        let Some(InHand { claimed, attempt }) = self.in_hand.remove(&fence) else { return };
        *self.ended.entry(status).or_default() += 1;
        if ![RELEASED, LOST, STALE].contains(&status) {
            self.runtime.observe(now.age.saturating_sub(claimed.age).as_secs_f64());
        }
        if let (Some(recorder), Some(mut attempt)) = (&self.recorder, attempt) {
            attempt.attributes.push(("raddle.status", status.to_owned()));
            recorder.record(Attempt { ended: now.wall, failure, ..*attempt });
        }
    }

    /// How many attempts came to which end. All ends are there from the beginning, so that the first of a kind is seen as an increase.
    pub(super) fn ended(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let states = [State::Completed, State::Failed, State::Timeout, State::Cancelled, State::Killed];
        let all = states.map(State::as_str).into_iter().chain([RETRIED, RELEASED, LOST, STALE]);
        all.map(|status| (status, self.ended.get(status).copied().unwrap_or(0)))
    }

    pub(super) fn in_hand(&self) -> usize {
        self.in_hand.len()
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
    use std::sync::Mutex;

    use jiff::{SignedDuration, Timestamp};
    use raddle_core::{Exit, Span};

    use super::{super::Page, *};

    const BASE: u64 = 1_700_000_000_000_000_000;

    fn at(millis: u64) -> Moment {
        Moment { wall: BASE + millis * 1_000_000, age: Duration::from_millis(millis) }
    }

    fn claim(millis: u64, attempt: u32) -> Claim {
        let tid = Tid::from_u64(BASE + millis * 1_000_000).unwrap();
        Claim { fence: Fence { tid, attempt, owner: tid }, spec: Spec::command(["true"]), fencing_token: 1 }
    }

    fn ran(millis: i64) -> Report {
        let ended_at = Timestamp::UNIX_EPOCH;
        let started_at = Some(ended_at - SignedDuration::from_millis(millis));
        Report { started_at, ..Report::bare(Exit::Code { code: 0 }, ended_at) }
    }

    fn ended(account: &Account, status: &str) -> u64 {
        account.ended().find(|(name, _)| *name == status).unwrap().1
    }

    #[test]
    fn a_task_waits_runs_and_ends() {
        let mut account = Account::default();
        let one = claim(10, 1);
        account.claimed(std::slice::from_ref(&one), at(0), at(30));
        assert_eq!((account.wait.count(), account.in_hand()), (1, 1));
        assert!((account.wait.sum() - 0.02).abs() < 1e-9);
        account.finished(one.fence, &ran(50), Verdict::Done(State::Completed), at(130));
        assert!((account.runtime.sum() - 0.1).abs() < 1e-9);
        assert!((account.run.sum() - 0.05).abs() < 1e-9);
        assert_eq!((ended(&account, "completed"), account.in_hand()), (1, 0));
        // Said twice, or of a task that was claimed elsewhere.
        account.finished(one.fence, &ran(50), Verdict::Done(State::Completed), at(131));
        assert_eq!((ended(&account, "completed"), account.run.count()), (1, 1));
    }

    #[test]
    fn other_ends_are_told_apart() {
        let mut account = Account::default();
        let tasks: Vec<Claim> = (1..=5).map(|n| claim(n, 1)).collect();
        account.claimed(&tasks, at(0), at(10));
        account.finished(tasks[0].fence, &ran(1), Verdict::Again(Timestamp::UNIX_EPOCH), at(11));
        account.finished(tasks[1].fence, &ran(1), Verdict::Stale, at(11));
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
        account.claimed(&[claim(1, 1), claim(2, 1)], at(0), at(5));
        account.claimed(&[claim(1, 2)], at(6), at(7));
        assert_eq!((ended(&account, "lost"), account.in_hand()), (1, 2));
    }

    #[test]
    fn whoever_waited_before_the_task_came_was_a_hit() {
        let mut account = Account::default();
        assert!(account.hits.ratio().is_nan());
        account.claimed(&[claim(20, 1)], at(10), at(21));
        account.claimed(&[claim(20, 1)], at(25), at(26));
        // Not before its time.
        let mut later = claim(20, 1);
        later.spec.delay = Some(Span(Duration::from_millis(100)));
        account.claimed(&[later], at(110), at(121));
        // It is not known when this one was ready again.
        account.claimed(&[claim(20, 2)], at(25), at(26));
        assert_eq!((account.hits.hits, account.hits.misses, account.wait.count()), (2, 1, 3));
        assert!((account.hits.ratio() - 2.0 / 3.0).abs() < 1e-9);
        for _ in 0..2 * RECENT {
            account.claimed(&[claim(20, 1)], at(25), at(26));
        }
        assert_eq!(account.hits.ratio(), 0.0, "what is long ago does not count");
    }

    #[derive(Default)]
    struct Recorded(Mutex<Vec<Attempt>>);

    impl Recorder for Recorded {
        fn record(&self, attempt: Attempt) {
            self.0.lock().unwrap().push(attempt);
        }

        fn show(&self, _: &mut Page) {}
    }

    #[test]
    fn records_attempts_that_are_over() {
        let recorded = Arc::new(Recorded::default());
        let mut account = Account::new(Some(recorded.clone()));
        let mut one = claim(10, 1);
        one.spec.kind = Some("execute".into());
        account.claimed(std::slice::from_ref(&one), at(0), at(30));
        account.finished(one.fence, &ran(5), Verdict::Done(State::Completed), at(40));
        account.claimed(&[claim(1, 1)], at(0), at(5));
        account.claimed(&[claim(1, 2)], at(6), at(7));
        let recorded = recorded.0.lock().unwrap();
        let [done, lost] = &recorded[..] else { panic!("{recorded:?}") };
        assert_eq!(done.own, one.spec.trace(one.fence.tid, 1).parent);
        assert_eq!((done.began, done.ended, done.within), (at(30).wall, at(40).wall, None));
        assert!(done.attributes.contains(&("raddle.status", "completed".into())));
        assert!(done.attributes.contains(&("raddle.kind", "execute".into())));
        assert!(lost.failure.is_some());
    }

    #[test]
    fn what_is_never_heard_of_again_is_forgotten() {
        let mut account = Account::default();
        for millis in 0..IN_HAND as u64 + 10 {
            account.claimed(&[claim(millis, 1)], at(0), at(millis));
        }
        assert_eq!(account.in_hand(), IN_HAND);
    }
}
