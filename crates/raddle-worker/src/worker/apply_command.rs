//! What control words mean to a worker: those to itself, and those to the tasks it has. Decisions only.

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
        let of_task = |running: &RunningAttempt| running.attempt_id.tid == tid;
        if message.command == ControlCommand::Pause
            && let Some(slot) = self
                .slots
                .iter()
                .position(|slot| slot.as_ref().is_some_and(of_task))
            && self.classes.pool_of(slot).is_some()
        {
            // One attempt of many in a process cannot stand still.
            let reply = message.reply(PAUSE_REFUSED, TaskState::Running.as_str());
            return self.act(WorkerEffect::Errand(CommandJob::Reply { of: tid, reply }));
        }
        let state = if tid == self.tid {
            self.obey_self(message.command, now)
        } else if let Some(slot) = self
            .slots
            .iter()
            .position(|slot| slot.as_ref().is_some_and(of_task))
        {
            self.obey_running(slot, &message)
        } else if self.backlog.holds(tid) {
            match self.obey_waiting(tid, &message) {
                Some(state) => state,
                None => return,
            }
        } else if self
            .unsettled
            .iter()
            .any(|attempt_id| attempt_id.tid == tid)
        {
            // Its attempt is over; whether the task is as well is for the broker to say.
            self.late.push((tid, message));
            return;
        } else {
            self.act(WorkerEffect::Errand(CommandJob::PassOn { tid, message }));
            return;
        };
        self.act(WorkerEffect::Errand(CommandJob::Reply {
            of: tid,
            reply: message.reply("ok", state),
        }));
    }

    fn obey_self(&mut self, word: ControlCommand, now: Duration) -> &'static str {
        match word {
            // Once is enough: to ask again is to ask whether it was heard. Who wants more says KILL.
            ControlCommand::Stop if self.stop.stage() == StopStage::Running => {
                self.stop_further(now)
            }
            ControlCommand::Kill => self.kill(now),
            ControlCommand::Pause => {
                self.paused = true;
                self.return_backlog("its worker was told to pause");
            }
            ControlCommand::Resume => self.paused = false,
            _ => {}
        }
        self.status()
    }

    fn obey_running(&mut self, slot: usize, message: &ControlMessage) -> &'static str {
        let running = self.slots[slot]
            .as_mut()
            .expect("the caller has just found it");
        let attempt_id = running.attempt_id;
        let order = match message.command {
            ControlCommand::Stop => Some(RunnerCommand::Stop),
            ControlCommand::Kill => Some(RunnerCommand::Kill),
            ControlCommand::Pause => Some(RunnerCommand::Pause),
            ControlCommand::Resume => Some(RunnerCommand::Resume),
            _ => None,
        };
        match order {
            Some(RunnerCommand::Stop | RunnerCommand::Kill) => {
                running.give_back |= message.command == ControlCommand::Stop && message.requeue;
                running.told = Some(message.clone());
            }
            Some(_) => running.paused = order == Some(RunnerCommand::Pause),
            None => {}
        }
        let (paused, changes) = (
            running.paused,
            matches!(order, Some(RunnerCommand::Pause | RunnerCommand::Resume)),
        );
        if let Some(order) = order {
            self.act(WorkerEffect::Order { slot, order });
        }
        if changes {
            self.act(WorkerEffect::Errand(CommandJob::Paused {
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

    /// A word to a task that is claimed but not begun. What the broker can obey better goes back to it with the task; then it is the
    /// broker that answers, and there is no state to tell.
    fn obey_waiting(&mut self, tid: Tid, message: &ControlMessage) -> Option<&'static str> {
        if matches!(
            message.command,
            ControlCommand::Ping | ControlCommand::Status
        ) {
            return Some(TaskState::Spawning.as_str());
        }
        let attempt_id = self.backlog.take(tid)?.attempt_id;
        let exit = match message.command {
            ControlCommand::Stop if !message.requeue => ExitStatus::Cancelled,
            ControlCommand::Kill => ExitStatus::Killed,
            _ => {
                self.late.push((tid, message.clone()));
                self.give_back(attempt_id, "a control word came before it began");
                return None;
            }
        };
        self.unsettled.insert(attempt_id);
        self.act(WorkerEffect::Write(PendingWrite::Unbegun {
            attempt_id,
            exit,
        }));
        Some("stopping")
    }
}
