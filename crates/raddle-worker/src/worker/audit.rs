//! Audits: comparing the attempts that the worker holds with those that the broker assigns to it.
//! Decisions only, no I/O.
//!
//! A Redis server can lose its last writes in a power cut under `appendfsync everysec`, or in a
//! failover to a replica that lags. It then forgets claims and completions that it has confirmed.
//! If a claim is forgotten, the attempt runs here while the task waits for another worker. If a
//! completion is forgotten, the task stays assigned to this worker as long as the worker lives,
//! because its lease never expires.

use std::collections::HashSet;

use raddle_broker::AttemptId;
use raddle_runner::RunnerCommand;

use super::{core::WorkerCore, event::WorkerEffect};

impl WorkerCore {
    /// Whether audits run. A worker that is about to exit or has lost its lease needs none.
    pub(super) fn audits(&self) -> bool {
        !self.lease_lost && self.leave_by.is_none()
    }

    /// The attempts that run here or wait for a slot.
    pub(super) fn held(&self) -> Vec<AttemptId> {
        self.slots
            .iter()
            .flatten()
            .map(|running| running.attempt_id)
            .chain(self.backlog.fences())
            .collect()
    }

    /// Whether an attempt runs here, waits for a slot, or waits to be recorded.
    pub(super) fn holds(&self, attempt_id: AttemptId) -> bool {
        self.unsettled.contains(&attempt_id) || self.held().contains(&attempt_id)
    }

    /// Kills attempts that the broker does not assign to this worker, and releases those that only
    /// the broker knows of.
    ///
    /// `held` was taken before the broker was asked. Attempts that were claimed or ended since then
    /// are left to the next audit.
    pub(super) fn compare(&mut self, held: &[AttemptId], assigned: &HashSet<AttemptId>) {
        for attempt_id in held
            .iter()
            .filter(|attempt_id| !assigned.contains(attempt_id))
        {
            self.abandon(*attempt_id);
        }
        // One audit is not proof: a claim's answer may still be in flight, and the end of an
        // attempt may have crossed the query. Two audits in a row are.
        let unknown: HashSet<AttemptId> = assigned
            .iter()
            .copied()
            .filter(|attempt_id| !self.holds(*attempt_id))
            .collect();
        for attempt_id in unknown.intersection(&std::mem::take(&mut self.unknown)) {
            self.warn(
                *attempt_id,
                "the broker has lost the end of an attempt: releasing its task",
            );
            self.give_back(
                *attempt_id,
                "the broker has lost the end of the attempt",
            );
        }
        self.unknown = unknown;
    }

    /// Ends an attempt whose task may belong to another worker by now. The broker refuses, counts
    /// and logs the release.
    fn abandon(&mut self, attempt_id: AttemptId) {
        if self.backlog.take_attempt(attempt_id) {
            return self.release(attempt_id, "the broker has forgotten the claim");
        }
        for slot in 0..self.slots.len() {
            if let Some(running) = &mut self.slots[slot]
                && running.attempt_id == attempt_id
            {
                running.give_back = true;
                self.act(WorkerEffect::Order {
                    slot,
                    order: RunnerCommand::Kill,
                });
                self.warn(
                    attempt_id,
                    "the broker does not assign a running task to this worker: killing its attempt",
                );
            }
        }
    }

    fn warn(&mut self, attempt_id: AttemptId, message: &'static str) {
        self.act(WorkerEffect::Warn {
            attempt_id,
            message,
        });
    }
}
