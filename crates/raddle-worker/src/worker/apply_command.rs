//! Control commands to a worker and to the tasks that it holds. Decisions only, no I/O.

use std::time::Duration;

use raddle_model::{ControlCommand, ControlMessage, ExitStatus, TaskState, Tid, stop::StopStage};
use raddle_runner::RunnerCommand;

use super::{
    completion_batcher::PendingWrite,
    control_commands::CommandJob,
    core::{RunningAttempt, WorkerCore},
    event::WorkerEffect,
};

/// The answer to a `PAUSE` of a task that shares its process.
const PAUSE_REFUSED: &str = "refused: the task shares its process with others, and cannot be paused; submit it with the isolation 'process'";

impl WorkerCore {
    pub(super) fn apply_command(&mut self, tid: Tid, message: ControlMessage, now: Duration) {
        let is_of_task = |running: &RunningAttempt| running.attempt_id.tid == tid;
        if message.command == ControlCommand::Pause
            && let Some(slot) = self
                .slots
                .iter()
                .position(|slot| slot.as_ref().is_some_and(is_of_task))
            && self.classes.pool_of(slot).is_some()
        {
            // One attempt of many in a process cannot stand still.
            let reply = message.reply(PAUSE_REFUSED, TaskState::Running.as_str());
            return self.push_effect(WorkerEffect::RunJob(CommandJob::Reply { tid, reply }));
        }
        let state = if tid == self.tid {
            self.apply_to_worker(message.command, now)
        } else if let Some(slot) = self
            .slots
            .iter()
            .position(|slot| slot.as_ref().is_some_and(is_of_task))
        {
            self.apply_to_running(slot, &message)
        } else if self.backlog.contains(tid) {
            match self.apply_to_prefetched(tid, &message) {
                Some(state) => state,
                None => return,
            }
        } else if self
            .unrecorded
            .iter()
            .any(|attempt_id| attempt_id.tid == tid)
        {
            // The attempt is over. Only the broker's answer says whether the task is over too.
            self.late_commands.push((tid, message));
            return;
        } else {
            self.push_effect(WorkerEffect::RunJob(CommandJob::Forward { tid, message }));
            return;
        };
        self.push_effect(WorkerEffect::RunJob(CommandJob::Reply {
            tid,
            reply: message.reply("ok", state),
        }));
    }

    fn apply_to_worker(&mut self, command: ControlCommand, now: Duration) -> &'static str {
        match command {
            // A repeated STOP only asks for the status again. KILL is the way to escalate.
            ControlCommand::Stop if self.stop.stage() == StopStage::Running => {
                self.advance_stop(now)
            }
            ControlCommand::Kill => self.kill_all(now),
            ControlCommand::Pause => {
                self.paused = true;
                self.release_backlog("its worker was paused");
            }
            ControlCommand::Resume => self.paused = false,
            _ => {}
        }
        self.status()
    }

    fn apply_to_running(&mut self, slot: usize, message: &ControlMessage) -> &'static str {
        let running = self.slots[slot]
            .as_mut()
            .expect("the caller has just found it");
        let attempt_id = running.attempt_id;
        let command = match message.command {
            ControlCommand::Stop => Some(RunnerCommand::Stop),
            ControlCommand::Kill => Some(RunnerCommand::Kill),
            ControlCommand::Pause => Some(RunnerCommand::Pause),
            ControlCommand::Resume => Some(RunnerCommand::Resume),
            _ => None,
        };
        match command {
            Some(RunnerCommand::Stop | RunnerCommand::Kill) => {
                running.release_on_stop |=
                    message.command == ControlCommand::Stop && message.requeue;
                running.stop_command = Some(message.clone());
            }
            Some(_) => running.paused = command == Some(RunnerCommand::Pause),
            None => {}
        }
        let (paused, changes) = (
            running.paused,
            matches!(command, Some(RunnerCommand::Pause | RunnerCommand::Resume)),
        );
        if let Some(command) = command {
            self.push_effect(WorkerEffect::SendCommand { slot, command });
        }
        if changes {
            self.push_effect(WorkerEffect::RunJob(CommandJob::RecordPause {
                attempt_id,
                paused,
            }));
        }
        match message.command {
            ControlCommand::Stop | ControlCommand::Kill => "stopping",
            _ if paused => "paused",
            _ => TaskState::Running.as_str(),
        }
    }

    /// Applies a command to a task that is claimed but not started. A command that the broker can
    /// apply better goes back to the broker with the task. The broker then sends the reply, so
    /// there is no state to report here.
    fn apply_to_prefetched(&mut self, tid: Tid, message: &ControlMessage) -> Option<&'static str> {
        if matches!(
            message.command,
            ControlCommand::Ping | ControlCommand::Status
        ) {
            return Some(TaskState::Spawning.as_str());
        }
        let attempt_id = self.backlog.remove(tid)?.attempt_id;
        let exit = match message.command {
            ControlCommand::Stop if !message.requeue => ExitStatus::Cancelled,
            ControlCommand::Kill => ExitStatus::Killed,
            _ => {
                self.late_commands.push((tid, message.clone()));
                self.release(
                    attempt_id,
                    "a control command came before the attempt started",
                );
                return None;
            }
        };
        self.unrecorded.insert(attempt_id);
        self.push_effect(WorkerEffect::Write(PendingWrite::FinishUnstarted {
            attempt_id,
            exit,
        }));
        Some("stopping")
    }
}
