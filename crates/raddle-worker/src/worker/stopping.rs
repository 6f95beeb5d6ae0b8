//! Staged stop and release of tasks. Decisions only, no I/O.

use std::time::Duration;

use raddle_broker::{AttemptId, Error, Release};
use raddle_model::stop::StopStage;
use raddle_runner::RunnerCommand;

use super::{completion_batcher::PendingWrite, core::WorkerCore, event::WorkerEffect};

/// How long a killing worker waits for its attempts and for their ends to be written. Longer than a
/// runner may take to end.
pub(super) const KILL_TIMEOUT: Duration = Duration::from_secs(12);

impl WorkerCore {
    /// Advances one stage for each stop request since the last call.
    pub(super) fn apply_stop_requests(&mut self, asked: u32, now: Duration) {
        for _ in self.stop_requests_applied..asked {
            self.advance_stop(now);
        }
        self.stop_requests_applied = asked;
    }

    pub(super) fn advance_stop(&mut self, now: Duration) {
        let stage = self.stop.request(now);
        self.enter_stage(stage, now);
    }

    pub(super) fn kill_all(&mut self, now: Duration) {
        let stage = self.stop.kill(now);
        self.enter_stage(stage, now);
    }

    /// Stops because of an error, which the worker exits with.
    pub(super) fn fail(&mut self, error: Error, now: Duration) {
        self.failure.get_or_insert(error);
        self.kill_all(now);
    }

    pub(super) fn enter_stage(&mut self, stage: StopStage, now: Duration) {
        self.release_backlog("its worker is stopping");
        let command = match stage {
            StopStage::Running | StopStage::Draining => return,
            StopStage::Terminating => RunnerCommand::Stop,
            StopStage::Killing => RunnerCommand::Kill,
        };
        if stage == StopStage::Killing && self.exit_at.is_none() {
            self.exit_at = Some(now.saturating_add(KILL_TIMEOUT));
            self.push_effect(WorkerEffect::StartDeadline);
        }
        for slot in 0..self.slots.len() {
            if let Some(running) = &mut self.slots[slot] {
                // A task that got its own STOP or KILL ends. The others are released.
                running.release_on_stop |= running.stop_command.is_none();
                self.push_effect(WorkerEffect::SendCommand { slot, command });
            }
        }
    }

    pub(super) fn release_backlog(&mut self, reason: &str) {
        for claim in self.backlog.drain() {
            self.release(claim.attempt_id, reason);
        }
    }

    pub(super) fn release(&mut self, attempt_id: AttemptId, reason: &str) {
        self.unrecorded.insert(attempt_id);
        self.push_effect(WorkerEffect::Write(PendingWrite::Release(Release {
            attempt_id,
            reason: reason.into(),
        })));
    }

    pub(super) fn handle_lease_loss(&mut self) {
        self.lease_lost = true;
        // Other workers may have these by now, so late writes are refused by their attempt ids.
        for claim in self.backlog.drain() {
            self.push_effect(WorkerEffect::Abandon(claim.attempt_id));
        }
        for slot in 0..self.slots.len() {
            if self.slots[slot].is_some() {
                self.push_effect(WorkerEffect::SendCommand {
                    slot,
                    command: RunnerCommand::Kill,
                });
            }
        }
    }
}
