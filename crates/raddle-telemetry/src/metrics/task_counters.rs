//! What is counted of the tasks that pass between workers and their broker. No I/O, no clock.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use raddle_broker::{AttemptId, CompletionOutcome, LeasedTask};
use raddle_model::{
    AttemptReport, TaskEvent, TaskEventKind, TaskSpec, TaskState, Tid,
    next_step::event_before_another,
};

use super::{AttemptRecorder, AttemptSpan, ExitReason, histogram::Histogram};

/// A moment on both clocks: durations follow the one that never jumps, ids the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DualTime {
    /// Nanoseconds since the epoch.
    pub(crate) wall: u64,
    /// Since the account was opened.
    pub(crate) age: Duration,
}

/// What became of claimed tasks, and of workers.
#[derive(Default)]
pub(super) struct TaskCounters {
    /// The attempts whose end has not been seen.
    in_hand: BTreeMap<AttemptId, ActiveAttempt>,
    /// Attempts that ended, by their status.
    ended: BTreeMap<&'static str, u64>,
    /// From the claim to the end in the broker.
    pub(super) runtime: Histogram,
    /// From when it could be claimed to its first claim.
    pub(super) wait: Histogram,
    /// From the start of the target to its end.
    pub(super) run: Histogram,
    pub(super) hits: WarmHits,
    /// Workers that ended, by why.
    pub(super) exits: BTreeMap<ExitReason, u64>,
    /// Takes each attempt that is over.
    pub(super) recorder: Option<Arc<dyn AttemptRecorder>>,
}

/// An attempt that a worker has.
struct ActiveAttempt {
    claimed: DualTime,
    /// For the recorder, if there is one.
    attempt: Option<Box<AttemptSpan>>,
}

/// Tasks that found a worker waiting, and those that did not.
#[derive(Debug, Default)]
pub(super) struct WarmHits {
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

impl TaskCounters {
    pub(super) fn new(recorder: Option<Arc<dyn AttemptRecorder>>) -> Self {
        Self {
            recorder,
            ..Self::default()
        }
    }

    /// Tasks were taken by somebody who had begun to ask for them at `asked`.
    pub(super) fn claimed(&mut self, claims: &[LeasedTask], asked: DualTime, now: DualTime) {
        for LeasedTask {
            attempt_id, spec, ..
        } in claims
        {
            // When a later attempt became possible is not known here.
            if attempt_id.attempt == 1 {
                let ready = ready_at(attempt_id.tid, spec);
                self.wait.observe(seconds(now.wall.saturating_sub(ready)));
                self.hits.add(ready >= asked.wall);
            } else {
                self.forget_before(*attempt_id, now);
            }
            let attempt = self
                .recorder
                .as_ref()
                .map(|_| Box::new(AttemptSpan::begin(*attempt_id, spec, now.wall)));
            self.in_hand.insert(
                *attempt_id,
                ActiveAttempt {
                    claimed: now,
                    attempt,
                },
            );
        }
        while self.in_hand.len() > IN_HAND {
            self.in_hand.pop_first();
        }
    }

    /// The broker has taken the end of an attempt. One that was not claimed here is not counted.
    pub(super) fn finished(
        &mut self,
        attempt_id: AttemptId,
        report: &AttemptReport,
        verdict: CompletionOutcome,
        now: DualTime,
    ) {
        let status = match verdict {
            CompletionOutcome::Finished(state) => state.as_str(),
            CompletionOutcome::Retry(_) => match event_before_another(&report.exit) {
                TaskEventKind::Reclaimed => LOST,
                TaskEventKind::Released => RELEASED,
                _ => RETRIED,
            },
            CompletionOutcome::Stale => STALE,
        };
        let is_counted = self.has(attempt_id) && verdict != CompletionOutcome::Stale;
        if let Some(began) = report.started_at.filter(|_| is_counted) {
            self.run
                .observe(report.ended_at.duration_since(began).as_secs_f64().max(0.0));
        }
        let failure = (!report.exit.is_success()).then(|| report.exit.to_string());
        self.end(attempt_id, status, failure, now);
    }

    /// The log has an event of an attempt. `ran` is for how many seconds its target ran, where that is known.
    pub(super) fn logged(
        &mut self,
        attempt_id: AttemptId,
        event: &TaskEvent,
        ran: Option<f64>,
        now: DualTime,
    ) {
        let status = match event.event {
            TaskEventKind::Retrying => RETRIED,
            TaskEventKind::Released => RELEASED,
            TaskEventKind::Reclaimed => LOST,
            kind if kind.is_terminal() => kind.as_str(),
            _ => return,
        };
        if let Some(ran) = ran.filter(|_| self.has(attempt_id)) {
            self.run.observe(ran);
        }
        let failure = if event.event == TaskEventKind::Completed {
            None
        } else {
            event.detail.clone()
        };
        self.end(attempt_id, status, failure, now);
    }

    /// Whether the end of this attempt has not been seen.
    pub(super) fn has(&self, attempt_id: AttemptId) -> bool {
        self.in_hand.contains_key(&attempt_id)
    }

    pub(super) fn released(
        &mut self,
        attempt_id: AttemptId,
        verdict: CompletionOutcome,
        now: DualTime,
    ) {
        let status = if verdict == CompletionOutcome::Stale {
            STALE
        } else {
            RELEASED
        };
        self.end(attempt_id, status, None, now);
    }

    /// A task was taken back from a worker that is gone.
    pub(super) fn lost(&mut self, attempt_id: AttemptId, now: DualTime) {
        self.end(attempt_id, LOST, Some("its worker is gone".into()), now);
    }

    /// Whoever had an earlier attempt is gone: that was taken back, by a process that need not have told.
    fn forget_before(&mut self, attempt_id: AttemptId, now: DualTime) {
        let earlier = AttemptId {
            attempt: 0,
            ..attempt_id
        }..attempt_id;
        let lost: Vec<AttemptId> = self
            .in_hand
            .range(earlier)
            .map(|(attempt_id, _)| *attempt_id)
            .collect();
        lost.into_iter()
            .for_each(|attempt_id| self.lost(attempt_id, now));
    }

    /// Ends an attempt, if it was in hand.
    fn end(
        &mut self,
        attempt_id: AttemptId,
        status: &'static str,
        failure: Option<String>,
        now: DualTime,
    ) {
        let Some(ActiveAttempt { claimed, attempt }) = self.in_hand.remove(&attempt_id) else {
            return;
        };
        *self.ended.entry(status).or_default() += 1;
        if ![RELEASED, LOST, STALE].contains(&status) {
            self.runtime
                .observe(now.age.saturating_sub(claimed.age).as_secs_f64());
        }
        if let (Some(recorder), Some(mut attempt)) = (&self.recorder, attempt) {
            attempt
                .attributes
                .push(("raddle.status", status.to_owned()));
            recorder.record(AttemptSpan {
                ended: now.wall,
                failure,
                ..*attempt
            });
        }
    }

    /// How many attempts came to which end. All ends are there from the beginning, so that the first of a kind is seen as an increase.
    pub(super) fn ended(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let states = [
            TaskState::Completed,
            TaskState::Failed,
            TaskState::Timeout,
            TaskState::Cancelled,
            TaskState::Killed,
        ];
        let all = states
            .map(TaskState::as_str)
            .into_iter()
            .chain([RETRIED, RELEASED, LOST, STALE]);
        all.map(|status| (status, self.ended.get(status).copied().unwrap_or(0)))
    }

    pub(super) fn in_hand(&self) -> usize {
        self.in_hand.len()
    }
}

impl WarmHits {
    fn add(&mut self, is_hit: bool) {
        *if is_hit {
            &mut self.hits
        } else {
            &mut self.misses
        } += 1;
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
fn ready_at(tid: Tid, spec: &TaskSpec) -> u64 {
    let submitted = tid.unix_nanos();
    let delay = spec.delay.map_or(0, |delay| {
        u64::try_from(delay.0.as_nanos()).unwrap_or(u64::MAX)
    });
    let run_at = spec
        .run_at
        .map_or(0, |at| u64::try_from(at.as_nanosecond()).unwrap_or(0));
    submitted.saturating_add(delay).max(run_at)
}

fn seconds(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use jiff::{SignedDuration, Timestamp};
    use raddle_model::{ExitStatus, HumanDuration};

    use super::{super::MetricsPage, *};

    const BASE: u64 = 1_700_000_000_000_000_000;

    fn at(millis: u64) -> DualTime {
        DualTime {
            wall: BASE + millis * 1_000_000,
            age: Duration::from_millis(millis),
        }
    }

    fn claim(millis: u64, attempt: u32) -> LeasedTask {
        let tid = Tid::from_u64(BASE + millis * 1_000_000).unwrap();
        LeasedTask {
            attempt_id: AttemptId {
                tid,
                attempt,
                owner: tid,
            },
            spec: TaskSpec::command(["true"]),
            fencing_token: 1,
        }
    }

    fn ran(millis: i64) -> AttemptReport {
        let ended_at = Timestamp::UNIX_EPOCH;
        let started_at = Some(ended_at - SignedDuration::from_millis(millis));
        AttemptReport {
            started_at,
            ..AttemptReport::bare(ExitStatus::Code { code: 0 }, ended_at)
        }
    }

    fn ended(account: &TaskCounters, status: &str) -> u64 {
        account.ended().find(|(name, _)| *name == status).unwrap().1
    }

    #[test]
    fn a_task_waits_runs_and_ends() {
        let mut account = TaskCounters::default();
        let one = claim(10, 1);
        account.claimed(std::slice::from_ref(&one), at(0), at(30));
        assert_eq!((account.wait.count(), account.in_hand()), (1, 1));
        assert!((account.wait.sum() - 0.02).abs() < 1e-9);
        account.finished(
            one.attempt_id,
            &ran(50),
            CompletionOutcome::Finished(TaskState::Completed),
            at(130),
        );
        assert!((account.runtime.sum() - 0.1).abs() < 1e-9);
        assert!((account.run.sum() - 0.05).abs() < 1e-9);
        assert_eq!((ended(&account, "completed"), account.in_hand()), (1, 0));
        // Said twice, or of a task that was claimed elsewhere.
        account.finished(
            one.attempt_id,
            &ran(50),
            CompletionOutcome::Finished(TaskState::Completed),
            at(131),
        );
        assert_eq!((ended(&account, "completed"), account.run.count()), (1, 1));
    }

    #[test]
    fn other_ends_are_told_apart() {
        let mut account = TaskCounters::default();
        let tasks: Vec<LeasedTask> = (1..=5).map(|n| claim(n, 1)).collect();
        account.claimed(&tasks, at(0), at(10));
        account.finished(
            tasks[0].attempt_id,
            &ran(1),
            CompletionOutcome::Retry(Timestamp::UNIX_EPOCH),
            at(11),
        );
        account.finished(
            tasks[1].attempt_id,
            &ran(1),
            CompletionOutcome::Stale,
            at(11),
        );
        account.released(
            tasks[2].attempt_id,
            CompletionOutcome::Retry(Timestamp::UNIX_EPOCH),
            at(11),
        );
        account.released(tasks[3].attempt_id, CompletionOutcome::Stale, at(11));
        account.lost(tasks[4].attempt_id, at(11));
        let all: Vec<_> = account.ended().filter(|(_, n)| *n > 0).collect();
        assert_eq!(
            all,
            [("retried", 1), ("released", 1), ("lost", 1), ("stale", 2)]
        );
        assert_eq!((account.runtime.count(), account.run.count()), (1, 1));
    }

    #[test]
    fn an_attempt_that_is_followed_by_another_was_lost() {
        let mut account = TaskCounters::default();
        account.claimed(&[claim(1, 1), claim(2, 1)], at(0), at(5));
        account.claimed(&[claim(1, 2)], at(6), at(7));
        assert_eq!((ended(&account, "lost"), account.in_hand()), (1, 2));
    }

    #[test]
    fn whoever_waited_before_the_task_came_was_a_hit() {
        let mut account = TaskCounters::default();
        assert!(account.hits.ratio().is_nan());
        account.claimed(&[claim(20, 1)], at(10), at(21));
        account.claimed(&[claim(20, 1)], at(25), at(26));
        // Not before its time.
        let mut later = claim(20, 1);
        later.spec.delay = Some(HumanDuration(Duration::from_millis(100)));
        account.claimed(&[later], at(110), at(121));
        // It is not known when this one was ready again.
        account.claimed(&[claim(20, 2)], at(25), at(26));
        assert_eq!(
            (account.hits.hits, account.hits.misses, account.wait.count()),
            (2, 1, 3)
        );
        assert!((account.hits.ratio() - 2.0 / 3.0).abs() < 1e-9);
        for _ in 0..2 * RECENT {
            account.claimed(&[claim(20, 1)], at(25), at(26));
        }
        assert_eq!(account.hits.ratio(), 0.0, "what is long ago does not count");
    }

    #[derive(Default)]
    struct RecordedEnd(Mutex<Vec<AttemptSpan>>);

    impl AttemptRecorder for RecordedEnd {
        fn record(&self, attempt: AttemptSpan) {
            self.0.lock().unwrap().push(attempt);
        }

        fn show(&self, _: &mut MetricsPage) {}
    }

    #[test]
    fn records_attempts_that_are_over() {
        let recorded = Arc::new(RecordedEnd::default());
        let mut account = TaskCounters::new(Some(recorded.clone()));
        let mut one = claim(10, 1);
        one.spec.kind = Some("execute".into());
        account.claimed(std::slice::from_ref(&one), at(0), at(30));
        account.finished(
            one.attempt_id,
            &ran(5),
            CompletionOutcome::Finished(TaskState::Completed),
            at(40),
        );
        account.claimed(&[claim(1, 1)], at(0), at(5));
        account.claimed(&[claim(1, 2)], at(6), at(7));
        let recorded = recorded.0.lock().unwrap();
        let [done, lost] = &recorded[..] else {
            panic!("{recorded:?}")
        };
        assert_eq!(done.own, one.spec.trace(one.attempt_id.tid, 1).parent);
        assert_eq!(
            (done.began, done.ended, done.within),
            (at(30).wall, at(40).wall, None)
        );
        assert!(
            done.attributes
                .contains(&("raddle.status", "completed".into()))
        );
        assert!(done.attributes.contains(&("raddle.kind", "execute".into())));
        assert!(lost.failure.is_some());
    }

    #[test]
    fn what_is_never_heard_of_again_is_forgotten() {
        let mut account = TaskCounters::default();
        for millis in 0..IN_HAND as u64 + 10 {
            account.claimed(&[claim(millis, 1)], at(0), at(millis));
        }
        assert_eq!(account.in_hand(), IN_HAND);
    }
}
