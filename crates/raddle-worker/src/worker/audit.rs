//! Audits: what the worker holds against what the broker assigns to it. Decisions only.
//!
//! A Redis server that loses its last writes, by a power cut under `appendfsync everysec` or by a failover to a replica that lags, forgets claims and
//! completions that it has confirmed. An attempt whose claim is forgotten runs here while the task waits for another worker. A task whose completion is
//! forgotten stays assigned to this worker for as long as the worker lives, and no lease runs out.

use std::collections::HashSet;

use raddle_broker::AttemptId;
use raddle_runner::RunnerCommand;

use super::{core::WorkerCore, event::WorkerEffect};

impl WorkerCore {
    /// Whether it compares from time to time. One that leaves at once, or whose tasks are others' by now, has no use for it.
    pub(super) fn audits(&self) -> bool {
        !self.lease_lost && self.leave_by.is_none()
    }

    /// The attempts that run here, or wait for a slot.
    pub(super) fn held(&self) -> Vec<AttemptId> {
        self.slots
            .iter()
            .flatten()
            .map(|running| running.attempt_id)
            .chain(self.backlog.fences())
            .collect()
    }

    /// Whether this attempt runs here, waits for a slot, or waits to be written.
    pub(super) fn holds(&self, attempt_id: AttemptId) -> bool {
        self.unsettled.contains(&attempt_id) || self.held().contains(&attempt_id)
    }

    /// Stops attempts that the broker does not assign to this worker, and gives back those that only the broker knows of.
    ///
    /// `held` was true before the broker was asked. An attempt that was claimed or ended since then is judged by the next audit.
    pub(super) fn compare(&mut self, held: &[AttemptId], assigned: &HashSet<AttemptId>) {
        for attempt_id in held
            .iter()
            .filter(|attempt_id| !assigned.contains(attempt_id))
        {
            self.abandon(*attempt_id);
        }
        // The answer to a claim may be on its way, and the end of an attempt may have crossed the question: only the second audit in a row is sure.
        let unknown: HashSet<AttemptId> = assigned
            .iter()
            .copied()
            .filter(|attempt_id| !self.holds(*attempt_id))
            .collect();
        for attempt_id in unknown.intersection(&std::mem::take(&mut self.unknown)) {
            self.warn(
                *attempt_id,
                "the broker has lost what became of an attempt: its task goes back to the queue",
            );
            self.give_back(
                *attempt_id,
                "the broker has lost what its worker wrote of it",
            );
        }
        self.unknown = unknown;
    }

    /// Ends an attempt here whose task may be another worker's by now. The release is refused, counted and logged by the broker.
    fn abandon(&mut self, attempt_id: AttemptId) {
        if self.backlog.take_attempt(attempt_id) {
            return self.give_back(attempt_id, "the broker has forgotten its claim");
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
                    "the broker does not assign a running task to this worker any more: its attempt is killed",
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
