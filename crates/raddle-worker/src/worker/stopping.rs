//! Staged stop and release of tasks. Decisions only, no I/O.

use std::time::Duration;

use raddle_broker::{AttemptId, Error, Release};
use raddle_model::stop::StopStage;
use raddle_runner::RunnerCommand;

use super::{completion_batcher::PendingWrite, core::WorkerCore, event::WorkerEffect};

/// How long a killing worker waits for its attempts and for their ends to be written. Longer than a
/// runner may take to end.
pub(super) const KILL_WITHIN: Duration = Duration::from_secs(12);

impl WorkerCore {
    /// Advances one stage for each stop request since the last call.
    pub(super) fn heed(&mut self, asked: u32, now: Duration) {
        for _ in self.heeded..asked {
            self.stop_further(now);
        }
        self.heeded = asked;
    }

    pub(super) fn stop_further(&mut self, now: Duration) {
        let stage = self.stop.request(now);
        self.enter(stage, now);
    }

    pub(super) fn kill(&mut self, now: Duration) {
        let stage = self.stop.kill(now);
        self.enter(stage, now);
    }

    /// Stops because of an error, which the worker exits with.
    pub(super) fn fail(&mut self, error: Error, now: Duration) {
        self.failure.get_or_insert(error);
        self.kill(now);
    }

    pub(super) fn enter(&mut self, stage: StopStage, now: Duration) {
        self.return_backlog("its worker is stopping");
        let order = match stage {
            StopStage::Running | StopStage::Draining => return,
            StopStage::Terminating => RunnerCommand::Stop,
            StopStage::Killing => RunnerCommand::Kill,
        };
        if stage == StopStage::Killing && self.leave_by.is_none() {
            self.leave_by = Some(now.saturating_add(KILL_WITHIN));
            self.act(WorkerEffect::Haste);
        }
        for slot in 0..self.slots.len() {
            if let Some(running) = &mut self.slots[slot] {
                // A task that got its own STOP or KILL ends. The others are released.
                running.give_back |= running.told.is_none();
                self.act(WorkerEffect::Order { slot, order });
            }
        }
    }

    pub(super) fn return_backlog(&mut self, reason: &str) {
        for claim in self.backlog.drain() {
            self.give_back(claim.attempt_id, reason);
        }
    }

    pub(super) fn give_back(&mut self, attempt_id: AttemptId, reason: &str) {
        self.unsettled.insert(attempt_id);
        self.act(WorkerEffect::Write(PendingWrite::Release(Release {
            attempt_id,
            reason: reason.into(),
        })));
    }

    pub(super) fn lose_lease(&mut self) {
        self.lease_lost = true;
        // Other workers may have these by now, so late writes are refused by their attempt ids.
        for claim in self.backlog.drain() {
            self.act(WorkerEffect::Forsake(claim.attempt_id));
        }
        for slot in 0..self.slots.len() {
            if self.slots[slot].is_some() {
                self.act(WorkerEffect::Order {
                    slot,
                    order: RunnerCommand::Kill,
                });
            }
        }
    }
}
