//! `TaskCounters`: what is counted of tasks between workers and their broker. No I/O, no clock.

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

/// A time on both clocks. Durations use the monotonic one, TIDs the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DualTime {
    /// Nanoseconds since the epoch.
    pub(crate) wall: u64,
    /// Time since the counters were created.
    pub(crate) age: Duration,
}

/// Counters of claimed tasks and of workers.
#[derive(Default)]
pub(super) struct TaskCounters {
    /// Attempts that have not ended.
    active: BTreeMap<AttemptId, ActiveAttempt>,
    /// Attempts that ended, by status.
    ended: BTreeMap<&'static str, u64>,
    /// Time from the claim to the end in the broker.
    pub(super) runtime: Histogram,
    /// Time from when a task could be claimed to its first claim.
    pub(super) wait: Histogram,
    /// Time from the start of the target to its end.
    pub(super) run: Histogram,
    pub(super) hits: WarmHits,
    /// Workers that exited, by reason.
    pub(super) exits: BTreeMap<ExitReason, u64>,
    /// Receives each finished attempt.
    pub(super) recorder: Option<Arc<dyn AttemptRecorder>>,
}

/// An attempt that has not ended.
struct ActiveAttempt {
    claimed: DualTime,
    /// For the recorder, if there is one.
    attempt: Option<Box<AttemptSpan>>,
}

/// Tasks that found a waiting worker (hits), and those that did not.
#[derive(Debug, Default)]
pub(super) struct WarmHits {
    pub(super) hits: u64,
    pub(super) misses: u64,
    /// The most recent tasks, for the current ratio.
    recent: VecDeque<bool>,
}

/// Ends of attempts that are no task state: another attempt follows; it was released; its worker is
/// gone; the task has a later attempt.
const RETRIED: &str = "retried";
const RELEASED: &str = "released";
const LOST: &str = "lost";
const STALE: &str = "stale";
/// Most active attempts to track. If ends are missed, because another process has reclaimed a task,
/// the oldest are dropped.
const MAX_ACTIVE: usize = 20_000;
/// How many recent tasks the hit ratio covers.
const RECENT_TASKS: usize = 1000;

impl TaskCounters {
    pub(super) fn new(recorder: Option<Arc<dyn AttemptRecorder>>) -> Self {
        Self {
            recorder,
            ..Self::default()
        }
    }

    /// Counts claimed tasks. The worker had been waiting for them since `asked`.
    pub(super) fn claimed(&mut self, claims: &[LeasedTask], asked: DualTime, now: DualTime) {
        for LeasedTask {
            attempt_id, spec, ..
        } in claims
        {
            // When a later attempt became ready is not known here.
            if attempt_id.attempt == 1 {
                let ready = ready_at(attempt_id.tid, spec);
                self.wait.observe(seconds(now.wall.saturating_sub(ready)));
                self.hits.add(ready >= asked.wall);
            } else {
                self.lose_earlier(*attempt_id, now);
            }
            let attempt = self
                .recorder
                .as_ref()
                .map(|_| Box::new(AttemptSpan::begin(*attempt_id, spec, now.wall)));
            self.active.insert(
                *attempt_id,
                ActiveAttempt {
                    claimed: now,
                    attempt,
                },
            );
        }
        while self.active.len() > MAX_ACTIVE {
            self.active.pop_first();
        }
    }

    /// Counts the end of an attempt as the broker recorded it. Attempts that were not claimed here
    /// do not count.
    pub(super) fn finished(
        &mut self,
        attempt_id: AttemptId,
        report: &AttemptReport,
        outcome: CompletionOutcome,
        now: DualTime,
    ) {
        let status = match outcome {
            CompletionOutcome::Finished(state) => state.as_str(),
            CompletionOutcome::Retry(_) => match event_before_another(&report.exit) {
                TaskEventKind::Reclaimed => LOST,
                TaskEventKind::Released => RELEASED,
                _ => RETRIED,
            },
            CompletionOutcome::Stale => STALE,
        };
        let is_counted = self.has(attempt_id) && outcome != CompletionOutcome::Stale;
        if let Some(began) = report.started_at.filter(|_| is_counted) {
            self.run
                .observe(report.ended_at.duration_since(began).as_secs_f64().max(0.0));
        }
        let failure = (!report.exit.is_success()).then(|| report.exit.to_string());
        self.record_end(attempt_id, status, failure, now);
    }

    /// Counts an event of the log. `ran` is the run time of the target in seconds, if known.
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
        self.record_end(attempt_id, status, failure, now);
    }

    /// Whether an attempt was claimed and has not ended.
    pub(super) fn has(&self, attempt_id: AttemptId) -> bool {
        self.active.contains_key(&attempt_id)
    }

    pub(super) fn released(
        &mut self,
        attempt_id: AttemptId,
        outcome: CompletionOutcome,
        now: DualTime,
    ) {
        let status = if outcome == CompletionOutcome::Stale {
            STALE
        } else {
            RELEASED
        };
        self.record_end(attempt_id, status, None, now);
    }

    /// Counts an attempt that was reclaimed from a dead worker.
    pub(super) fn lost(&mut self, attempt_id: AttemptId, now: DualTime) {
        self.record_end(attempt_id, LOST, Some("its worker is gone".into()), now);
    }

    /// Counts earlier attempts of the task as lost: another process must have reclaimed them.
    fn lose_earlier(&mut self, attempt_id: AttemptId, now: DualTime) {
        let earlier = AttemptId {
            attempt: 0,
            ..attempt_id
        }..attempt_id;
        let lost: Vec<AttemptId> = self
            .active
            .range(earlier)
            .map(|(attempt_id, _)| *attempt_id)
            .collect();
        lost.into_iter()
            .for_each(|attempt_id| self.lost(attempt_id, now));
    }

    /// Counts the end of an attempt, if it is active.
    fn record_end(
        &mut self,
        attempt_id: AttemptId,
        status: &'static str,
        failure: Option<String>,
        now: DualTime,
    ) {
        let Some(ActiveAttempt { claimed, attempt }) = self.active.remove(&attempt_id) else {
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

    /// The number of ended attempts by status. All statuses are listed from the start, so that the
    /// first event of a kind shows as an increase.
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

    pub(super) fn active(&self) -> usize {
        self.active.len()
    }
}

impl WarmHits {
    fn add(&mut self, is_hit: bool) {
        *if is_hit {
            &mut self.hits
        } else {
            &mut self.misses
        } += 1;
        if self.recent.len() == RECENT_TASKS {
            self.recent.pop_front();
        }
        self.recent.push_back(is_hit);
    }

    /// The ratio of hits among recent tasks. NaN before the first task, so that no alert rule acts
    /// on it.
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

    fn at_millis(millis: u64) -> DualTime {
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

    fn ended(counters: &TaskCounters, status: &str) -> u64 {
        counters
            .ended()
            .find(|(name, _)| *name == status)
            .unwrap()
            .1
    }

    #[test]
    fn counts_wait_run_and_end_of_a_task() {
        let mut counters = TaskCounters::default();
        let one = claim(10, 1);
        counters.claimed(std::slice::from_ref(&one), at_millis(0), at_millis(30));
        assert_eq!((counters.wait.count(), counters.active()), (1, 1));
        assert!((counters.wait.sum() - 0.02).abs() < 1e-9);
        counters.finished(
            one.attempt_id,
            &ran(50),
            CompletionOutcome::Finished(TaskState::Completed),
            at_millis(130),
        );
        assert!((counters.runtime.sum() - 0.1).abs() < 1e-9);
        assert!((counters.run.sum() - 0.05).abs() < 1e-9);
        assert_eq!((ended(&counters, "completed"), counters.active()), (1, 0));
        // A repeated end, or one of a task that was claimed elsewhere.
        counters.finished(
            one.attempt_id,
            &ran(50),
            CompletionOutcome::Finished(TaskState::Completed),
            at_millis(131),
        );
        assert_eq!(
            (ended(&counters, "completed"), counters.run.count()),
            (1, 1)
        );
    }

    #[test]
    fn distinguishes_ends_that_are_no_task_state() {
        let mut counters = TaskCounters::default();
        let tasks: Vec<LeasedTask> = (1..=5).map(|n| claim(n, 1)).collect();
        counters.claimed(&tasks, at_millis(0), at_millis(10));
        counters.finished(
            tasks[0].attempt_id,
            &ran(1),
            CompletionOutcome::Retry(Timestamp::UNIX_EPOCH),
            at_millis(11),
        );
        counters.finished(
            tasks[1].attempt_id,
            &ran(1),
            CompletionOutcome::Stale,
            at_millis(11),
        );
        counters.released(
            tasks[2].attempt_id,
            CompletionOutcome::Retry(Timestamp::UNIX_EPOCH),
            at_millis(11),
        );
        counters.released(tasks[3].attempt_id, CompletionOutcome::Stale, at_millis(11));
        counters.lost(tasks[4].attempt_id, at_millis(11));
        let all: Vec<_> = counters.ended().filter(|(_, n)| *n > 0).collect();
        assert_eq!(
            all,
            [("retried", 1), ("released", 1), ("lost", 1), ("stale", 2)]
        );
        assert_eq!((counters.runtime.count(), counters.run.count()), (1, 1));
    }

    #[test]
    fn an_attempt_that_another_one_follows_was_lost() {
        let mut counters = TaskCounters::default();
        counters.claimed(&[claim(1, 1), claim(2, 1)], at_millis(0), at_millis(5));
        counters.claimed(&[claim(1, 2)], at_millis(6), at_millis(7));
        assert_eq!((ended(&counters, "lost"), counters.active()), (1, 2));
    }

    #[test]
    fn a_worker_that_waited_before_the_task_was_ready_is_a_hit() {
        let mut counters = TaskCounters::default();
        assert!(counters.hits.ratio().is_nan());
        counters.claimed(&[claim(20, 1)], at_millis(10), at_millis(21));
        counters.claimed(&[claim(20, 1)], at_millis(25), at_millis(26));
        // Not before its delay is over.
        let mut later = claim(20, 1);
        later.spec.delay = Some(HumanDuration(Duration::from_millis(100)));
        counters.claimed(&[later], at_millis(110), at_millis(121));
        // When this attempt became ready is not known.
        counters.claimed(&[claim(20, 2)], at_millis(25), at_millis(26));
        assert_eq!(
            (
                counters.hits.hits,
                counters.hits.misses,
                counters.wait.count()
            ),
            (2, 1, 3)
        );
        assert!((counters.hits.ratio() - 2.0 / 3.0).abs() < 1e-9);
        for _ in 0..2 * RECENT_TASKS {
            counters.claimed(&[claim(20, 1)], at_millis(25), at_millis(26));
        }
        assert_eq!(counters.hits.ratio(), 0.0, "old tasks do not count");
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
    fn records_finished_attempts() {
        let recorded = Arc::new(RecordedEnd::default());
        let mut counters = TaskCounters::new(Some(recorded.clone()));
        let mut one = claim(10, 1);
        one.spec.kind = Some("execute".into());
        counters.claimed(std::slice::from_ref(&one), at_millis(0), at_millis(30));
        counters.finished(
            one.attempt_id,
            &ran(5),
            CompletionOutcome::Finished(TaskState::Completed),
            at_millis(40),
        );
        counters.claimed(&[claim(1, 1)], at_millis(0), at_millis(5));
        counters.claimed(&[claim(1, 2)], at_millis(6), at_millis(7));
        let recorded = recorded.0.lock().unwrap();
        let [done, lost] = &recorded[..] else {
            panic!("{recorded:?}")
        };
        assert_eq!(done.span, one.spec.trace(one.attempt_id.tid, 1).parent);
        assert_eq!(
            (done.started, done.ended, done.parent),
            (at_millis(30).wall, at_millis(40).wall, None)
        );
        assert!(
            done.attributes
                .contains(&("raddle.status", "completed".into()))
        );
        assert!(done.attributes.contains(&("raddle.kind", "execute".into())));
        assert!(lost.failure.is_some());
    }

    #[test]
    fn drops_the_oldest_active_attempts() {
        let mut counters = TaskCounters::default();
        for millis in 0..MAX_ACTIVE as u64 + 10 {
            counters.claimed(&[claim(millis, 1)], at_millis(0), at_millis(millis));
        }
        assert_eq!(counters.active(), MAX_ACTIVE);
    }
}
