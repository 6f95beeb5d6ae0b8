//! Claimed tasks that wait in the worker for a slot, and how many of them there should be.
//!
//! When tasks are short, asking the broker for each one costs more than running it, so the worker claims a few ahead. When they are
//! long it claims none ahead: they would wait here while another worker has nothing to do. Decisions only; time is a parameter.

use std::{collections::VecDeque, time::Duration};

use raddle_broker::{AttemptId, LeasedTask};
use raddle_model::Tid;

/// How much work to have at hand, in time.
const AHEAD: Duration = Duration::from_millis(40);
/// No more than this, however short the tasks are.
const MOST_AHEAD: u32 = 128;
/// Tasks that have waited for so long are given back: those before them turned out to be long.
pub(super) const PATIENCE: Duration = Duration::from_millis(250);
/// How much one run counts against those before it.
const WEIGHT: f64 = 0.2;

pub(super) struct Backlog {
    slots: u32,
    waiting: VecDeque<(LeasedTask, Duration)>,
    /// How long a task takes, as far as is known. Unknown is taken for long.
    typical_secs: Option<f64>,
}

impl Backlog {
    pub(super) fn new(slots: u32) -> Self {
        Self {
            slots,
            waiting: VecDeque::new(),
            typical_secs: None,
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
        self.typical_secs
            .is_some_and(|typical| typical < AHEAD.as_secs_f64())
    }

    /// Whether the task is here.
    pub(super) fn holds(&self, tid: Tid) -> bool {
        self.waiting
            .iter()
            .any(|(claim, _)| claim.attempt_id.tid == tid)
    }

    /// Takes one task out of turn.
    pub(super) fn take(&mut self, tid: Tid) -> Option<LeasedTask> {
        let at = self
            .waiting
            .iter()
            .position(|(claim, _)| claim.attempt_id.tid == tid)?;
        self.waiting.remove(at).map(|(claim, _)| claim)
    }

    /// Takes one attempt out of turn, if it is here.
    pub(super) fn take_attempt(&mut self, attempt_id: AttemptId) -> bool {
        let at = self
            .waiting
            .iter()
            .position(|(claim, _)| claim.attempt_id == attempt_id);
        at.and_then(|at| self.waiting.remove(at)).is_some()
    }

    /// The attempts that wait.
    pub(super) fn fences(&self) -> impl Iterator<Item = AttemptId> {
        self.waiting.iter().map(|(claim, _)| claim.attempt_id)
    }

    pub(super) fn drain(&mut self) -> Vec<LeasedTask> {
        self.waiting.drain(..).map(|(claim, _)| claim).collect()
    }

    /// Learns from a run.
    pub(super) fn ran_for(&mut self, took: Duration) {
        let took = took.as_secs_f64();
        self.typical_secs = Some(
            self.typical_secs
                .map_or(took, |typical| typical + WEIGHT * (took - typical)),
        );
    }

    /// How many tasks to claim now, when `free` slots stand empty.
    pub(super) fn wants(&self, free: u32) -> u32 {
        let per_slot = self
            .typical_secs
            .map_or(0.0, |typical| AHEAD.as_secs_f64() / typical.max(1e-6));
        let ahead = ((per_slot as u32).saturating_mul(self.slots)).min(MOST_AHEAD);
        let waiting = self.waiting.len() as u32;
        // A claim costs the same for one task as for many, so it is made when half of the stock is used up.
        if free == 0 && waiting > ahead / 2 {
            return 0;
        }
        (free + ahead).saturating_sub(waiting)
    }

    /// The tasks that have waited too long. That they did means that tasks are not as short as they seemed.
    pub(super) fn overdue(&mut self, now: Duration) -> Vec<LeasedTask> {
        if self.oldest().is_none_or(|since| now < since + PATIENCE) {
            return Vec::new();
        }
        self.typical_secs = None;
        self.drain()
    }

    /// Since when the oldest has been waiting.
    pub(super) fn oldest(&self) -> Option<Duration> {
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
    fn nothing_is_claimed_ahead_of_unknown_or_long_tasks() {
        let mut backlog = Backlog::new(2);
        assert_eq!(backlog.wants(2), 2);
        assert_eq!(backlog.wants(0), 0);
        backlog.ran_for(Duration::from_secs(1));
        assert_eq!(backlog.wants(1), 1);
        assert_eq!(backlog.wants(0), 0);
    }

    #[test]
    fn short_tasks_are_claimed_ahead_in_strides() {
        let mut backlog = Backlog::new(2);
        backlog.ran_for(Duration::from_millis(1));
        assert_eq!(backlog.wants(0), 80);
        backlog.push(claims(80), Duration::ZERO);
        assert_eq!(backlog.wants(0), 0);
        (0..35).for_each(|_| drop(backlog.pop_if(|_| true)));
        assert_eq!(backlog.wants(0), 0, "more than half of the stock is left");
        (0..10).for_each(|_| drop(backlog.pop_if(|_| true)));
        assert_eq!(backlog.wants(0), 45);
    }

    #[test]
    fn what_waits_too_long_is_given_back_and_remembered() {
        let mut backlog = Backlog::new(1);
        backlog.ran_for(Duration::from_millis(1));
        backlog.push(claims(3), Duration::from_secs(1));
        assert!(
            backlog
                .overdue(Duration::from_secs(1) + PATIENCE / 2)
                .is_empty()
        );
        assert_eq!(backlog.overdue(Duration::from_secs(1) + PATIENCE).len(), 3);
        assert_eq!(backlog.wants(0), 0);
    }
}
