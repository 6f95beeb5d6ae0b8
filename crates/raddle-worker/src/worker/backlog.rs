//! Claimed tasks that wait for a slot, and how many tasks to claim ahead.
//!
//! For short tasks a claim costs more than the run, so the worker claims several ahead. Long tasks
//! are not claimed ahead: they would wait here while another worker is idle. Decisions only; time
//! is a parameter.

use std::{collections::VecDeque, time::Duration};

use raddle_broker::{AttemptId, LeasedTask};
use raddle_model::Tid;

/// How much work to hold ready, in run time.
const PREFETCH_TIME: Duration = Duration::from_millis(40);
/// The most tasks to claim ahead, however short they are.
const MAX_PREFETCH: u32 = 128;
/// Tasks that have waited this long are released: the tasks before them turned out to be long.
pub(super) const MAX_WAIT: Duration = Duration::from_millis(250);
/// Weight of the latest run time in the moving average.
const SMOOTHING: f64 = 0.2;

pub(super) struct Backlog {
    slots: u32,
    waiting: VecDeque<(LeasedTask, Duration)>,
    /// Moving average of run times. `None` counts as long.
    mean_secs: Option<f64>,
}

impl Backlog {
    pub(super) fn new(slots: u32) -> Self {
        Self {
            slots,
            waiting: VecDeque::new(),
            mean_secs: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, claims: Vec<LeasedTask>, now: Duration) {
        self.waiting
            .extend(claims.into_iter().map(|claim| (claim, now)));
    }

    /// Takes the first task that can begin.
    pub(super) fn pop_if(&mut self, can_begin: impl Fn(&LeasedTask) -> bool) -> Option<LeasedTask> {
        let at = self
            .waiting
            .iter()
            .position(|(claim, _)| can_begin(claim))?;
        self.waiting.remove(at).map(|(claim, _)| claim)
    }

    /// Whether tasks are so short that some are claimed ahead.
    pub(super) fn claims_ahead(&self) -> bool {
        self.mean_secs
            .is_some_and(|mean| mean < PREFETCH_TIME.as_secs_f64())
    }

    /// Whether the task waits here.
    pub(super) fn contains(&self, tid: Tid) -> bool {
        self.waiting
            .iter()
            .any(|(claim, _)| claim.attempt_id.tid == tid)
    }

    /// Removes one task from any position.
    pub(super) fn remove(&mut self, tid: Tid) -> Option<LeasedTask> {
        let index = self
            .waiting
            .iter()
            .position(|(claim, _)| claim.attempt_id.tid == tid)?;
        self.waiting.remove(index).map(|(claim, _)| claim)
    }

    /// Removes one attempt from any position. Returns whether it was here.
    pub(super) fn remove_attempt(&mut self, attempt_id: AttemptId) -> bool {
        let index = self
            .waiting
            .iter()
            .position(|(claim, _)| claim.attempt_id == attempt_id);
        index.and_then(|index| self.waiting.remove(index)).is_some()
    }

    /// The waiting attempts.
    pub(super) fn attempt_ids(&self) -> impl Iterator<Item = AttemptId> {
        self.waiting.iter().map(|(claim, _)| claim.attempt_id)
    }

    pub(super) fn drain(&mut self) -> Vec<LeasedTask> {
        self.waiting.drain(..).map(|(claim, _)| claim).collect()
    }

    /// Adds a run time to the average.
    pub(super) fn record_duration(&mut self, duration: Duration) {
        let duration = duration.as_secs_f64();
        self.mean_secs = Some(
            self.mean_secs
                .map_or(duration, |mean| mean + SMOOTHING * (duration - mean)),
        );
    }

    /// How many tasks to claim now, with `free` empty slots.
    pub(super) fn claim_size(&self, free: u32) -> u32 {
        let per_slot = self
            .mean_secs
            .map_or(0.0, |mean| PREFETCH_TIME.as_secs_f64() / mean.max(1e-6));
        let ahead = ((per_slot as u32).saturating_mul(self.slots)).min(MAX_PREFETCH);
        let waiting = self.waiting.len() as u32;
        // A claim costs the same for one task as for many, so claim when half of the stock is used.
        if free == 0 && waiting > ahead / 2 {
            return 0;
        }
        (free + ahead).saturating_sub(waiting)
    }

    /// Removes all tasks if the oldest has waited too long. The average was too low then, so it is
    /// reset.
    pub(super) fn drain_overdue(&mut self, now: Duration) -> Vec<LeasedTask> {
        if self
            .oldest_since()
            .is_none_or(|since| now < since + MAX_WAIT)
        {
            return Vec::new();
        }
        self.mean_secs = None;
        self.drain()
    }

    /// When the oldest waiting task was claimed.
    pub(super) fn oldest_since(&self) -> Option<Duration> {
        self.waiting.front().map(|(_, since)| *since)
    }
}

#[cfg(test)]
mod tests {
    use raddle_model::{TaskSpec, TidClock};

    use super::*;

    fn claims(count: usize) -> Vec<LeasedTask> {
        let mut clock = TidClock::resume(0);
        (0..count)
            .map(|_| {
                let tid = clock.next(0);
                LeasedTask {
                    attempt_id: AttemptId {
                        tid,
                        attempt: 1,
                        owner: tid,
                    },
                    spec: TaskSpec::command(["true"]),
                    fencing_token: 1,
                }
            })
            .collect()
    }

    #[test]
    fn claims_nothing_ahead_for_unknown_or_long_tasks() {
        let mut backlog = Backlog::new(2);
        assert_eq!(backlog.claim_size(2), 2);
        assert_eq!(backlog.claim_size(0), 0);
        backlog.record_duration(Duration::from_secs(1));
        assert_eq!(backlog.claim_size(1), 1);
        assert_eq!(backlog.claim_size(0), 0);
    }

    #[test]
    fn claims_short_tasks_ahead_in_batches() {
        let mut backlog = Backlog::new(2);
        backlog.record_duration(Duration::from_millis(1));
        assert_eq!(backlog.claim_size(0), 80);
        backlog.push(claims(80), Duration::ZERO);
        assert_eq!(backlog.claim_size(0), 0);
        (0..35).for_each(|_| drop(backlog.pop_if(|_| true)));
        assert_eq!(
            backlog.claim_size(0),
            0,
            "more than half of the stock is left"
        );
        (0..10).for_each(|_| drop(backlog.pop_if(|_| true)));
        assert_eq!(backlog.claim_size(0), 45);
    }

    #[test]
    fn releases_tasks_that_wait_too_long_and_resets_the_average() {
        let mut backlog = Backlog::new(1);
        backlog.record_duration(Duration::from_millis(1));
        backlog.push(claims(3), Duration::from_secs(1));
        assert!(
            backlog
                .drain_overdue(Duration::from_secs(1) + MAX_WAIT / 2)
                .is_empty()
        );
        assert_eq!(
            backlog
                .drain_overdue(Duration::from_secs(1) + MAX_WAIT)
                .len(),
            3
        );
        assert_eq!(backlog.claim_size(0), 0);
    }
}
