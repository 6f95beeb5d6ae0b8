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
        !self.lease_lost && self.exit_at.is_none()
    }

    /// The attempts that run here or wait for a slot.
    pub(super) fn held_attempts(&self) -> Vec<AttemptId> {
        self.slots
            .iter()
            .flatten()
            .map(|running| running.attempt_id)
            .chain(self.backlog.attempt_ids())
            .collect()
    }

    /// Whether an attempt runs here, waits for a slot, or waits to be recorded.
    pub(super) fn holds_attempt(&self, attempt_id: AttemptId) -> bool {
        self.unrecorded.contains(&attempt_id) || self.held_attempts().contains(&attempt_id)
    }

    /// Kills attempts that the broker does not assign to this worker, and releases those that only
    /// the broker knows of.
    ///
    /// `held` was taken before the broker was asked. Attempts that were claimed or ended since then
    /// are left to the next audit.
    pub(super) fn apply_audit(&mut self, held: &[AttemptId], assigned: &HashSet<AttemptId>) {
        for attempt_id in held
            .iter()
            .filter(|attempt_id| !assigned.contains(attempt_id))
        {
            self.end_unassigned(*attempt_id);
        }
        // One audit is not proof: a claim's answer may still be in flight, and the end of an
        // attempt may have crossed the query. Two audits in a row are.
        let unheld: HashSet<AttemptId> = assigned
            .iter()
            .copied()
            .filter(|attempt_id| !self.holds_attempt(*attempt_id))
            .collect();
        for attempt_id in unheld.intersection(&std::mem::take(&mut self.unheld)) {
            self.push_warning(
                *attempt_id,
                "the broker has lost the end of an attempt: releasing its task",
            );
            self.release(*attempt_id, "the broker has lost the end of the attempt");
        }
        self.unheld = unheld;
    }

    /// Ends an attempt whose task may belong to another worker by now. The broker refuses, counts
    /// and logs the release.
    fn end_unassigned(&mut self, attempt_id: AttemptId) {
        if self.backlog.remove_attempt(attempt_id) {
            return self.release(attempt_id, "the broker has forgotten the claim");
        }
        for slot in 0..self.slots.len() {
            if let Some(running) = &mut self.slots[slot]
                && running.attempt_id == attempt_id
            {
                running.release_on_stop = true;
                self.push_effect(WorkerEffect::SendCommand {
                    slot,
                    command: RunnerCommand::Kill,
                });
                self.push_warning(
                    attempt_id,
                    "the broker does not assign a running task to this worker: killing its attempt",
                );
            }
        }
    }

    fn push_warning(&mut self, attempt_id: AttemptId, message: &'static str) {
        self.push_effect(WorkerEffect::Warn {
            attempt_id,
            message,
        });
    }
}
