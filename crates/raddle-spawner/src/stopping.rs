//! Control commands to a spawner, and how it forwards a stop.

use std::{mem, time::Duration};

use raddle_model::{
    ControlCommand, ControlMessage, Tid, WorkerEntry, manager::PRIME, stop::StopStage,
};
use raddle_supervisor::SupervisorEvent;

use super::{
    BroadcastCommand, LaunchId,
    service::{GROUP, SpawnerService},
};
use raddle_worker::{
    registration::is_staying,
    worker::{control_commands::CommandJob, is_local},
};

/// How long killed workers may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// How often to read the registry while managers and workers are stopping.
const REREAD_INTERVAL: Duration = Duration::from_millis(100);

impl SpawnerService {
    pub(super) fn apply_command(&mut self, message: ControlMessage, now: Duration) {
        match message.command {
            // A repeated STOP only asks for the status again.
            ControlCommand::Stop if self.stage() == StopStage::Running => {
                self.core.note(SupervisorEvent::Stop, now)
            }
            ControlCommand::Kill => {
                while self.stage() != StopStage::Killing {
                    self.core.note(SupervisorEvent::Stop, now);
                }
            }
            ControlCommand::Pause => {
                self.paused = true;
                self.pending_pauses.push(message);
                return;
            }
            ControlCommand::Resume => {
                self.paused = false;
                self.stopped_idle.clear();
            }
            _ => {}
        }
        self.reply(&message);
    }

    fn reply(&self, message: &ControlMessage) {
        let reply = message.reply("ok", self.status());
        self.jobs.push(CommandJob::Reply {
            tid: self.registration.tid,
            reply,
        });
    }

    /// Stops idle workers while paused, because each would take one more task. `PAUSE` is answered
    /// when none of them is left.
    pub(super) fn stop_idle_workers(&mut self, now: Duration) {
        let is_pausing = self.paused && self.stage() == StopStage::Running;
        if is_pausing {
            let idle: Vec<Tid> = self
                .workers
                .idle()
                .filter(|tid| self.stopped_idle.insert(*tid))
                .collect();
            self.send_command(idle, ControlCommand::Stop);
        }
        if is_pausing && self.workers.census(0).capacity() > 0 {
            // Workers that the launcher does not report appear only in the registry.
            self.poll_at = self.poll_at.min(now + REREAD_INTERVAL);
        } else {
            mem::take(&mut self.pending_pauses)
                .iter()
                .for_each(|message| self.reply(message));
        }
    }

    /// The current stage of the stop.
    pub(super) fn stage(&self) -> StopStage {
        self.core.stage(GROUP)
    }

    /// Forwards a stop to all workers at once, each stage once. Two requests that were received
    /// together count as two for the workers too.
    pub(super) fn forward_stop(&mut self, now: Duration) {
        let stage = self.stage();
        let before = std::mem::replace(&mut self.forwarded_stage, stage);
        let stages = [
            StopStage::Draining,
            StopStage::Terminating,
            StopStage::Killing,
        ];
        // Workers that are killed need no request first.
        let entered = stages.into_iter().filter(|of| {
            before < *of && (*of == stage || stage == StopStage::Terminating && *of < stage)
        });
        entered.for_each(|stage| self.enter_stage(stage, now));
    }

    /// Starts a stage. Adopted workers without a process here get the command through the broker.
    /// Managers that it has spawned do too, so read the registry at once.
    fn enter_stage(&mut self, stage: StopStage, now: Duration) {
        self.poll_at = now;
        match stage {
            StopStage::Running => {}
            StopStage::Draining => {
                self.launcher.broadcast(BroadcastCommand::Stop);
                let found: Vec<Tid> = self.workers.found().collect();
                self.send_command(found, ControlCommand::Stop);
            }
            StopStage::Terminating => self.launcher.broadcast(BroadcastCommand::Stop),
            StopStage::Killing => drop(self.exit_at.get_or_insert(now + KILL_TIMEOUT)),
        }
    }

    /// Kills the workers when none of them runs a manager any more: a manager that stops releases
    /// what it has spawned, and one that is killed with its worker does not.
    pub(super) fn kill_workers(&mut self, now: Duration) {
        let is_late = self.exit_at.is_some_and(|by| by <= now);
        if self.stage() != StopStage::Killing
            || self.kill_sent
            || !(is_late || self.has_no_managers())
        {
            return;
        }
        self.kill_sent = true;
        // Through the broker first: a worker that gets the command releases its task.
        let all: Vec<Tid> = self.workers.tids().collect();
        self.send_command(all, ControlCommand::Kill);
        self.launcher.broadcast(BroadcastCommand::Release);
    }

    /// Forwards the stop of a root manager to the managers below it: those that its workers run,
    /// and all of them if no other root manager is left. Each gets each command once. New managers
    /// get it when they appear in the registry. The root manager exits after them.
    pub(super) fn stop_managers(&mut self, registry: &[WorkerEntry], now: Duration) {
        let command = match self.stage() {
            StopStage::Draining | StopStage::Terminating => ControlCommand::Stop,
            StopStage::Killing => ControlCommand::Kill,
            StopStage::Running => return,
        };
        if self.options.kind != PRIME {
            return;
        }
        let others = registry
            .iter()
            .filter(|entry| entry.tid != self.registration.tid && entry.info.is_manager());
        let (primes, managers): (Vec<_>, Vec<_>) =
            others.partition(|entry| entry.info.kind == PRIME);
        // A stopping root manager does not count, nor one that was killed and is still registered.
        let is_last = !primes.into_iter().any(is_staying);
        let is_mine = |entry: &WorkerEntry| {
            // A manager is the command of a runner, which is a child of the worker.
            let mut above =
                std::iter::successors(Some(entry.info.pid), |pid| raddle_runner::parent_of(*pid));
            is_local(&entry.info) && above.any(|pid| self.workers.has(&LaunchId::process(pid)))
        };
        let meant: Vec<Tid> = managers
            .into_iter()
            .filter(|entry| is_last || is_mine(entry))
            .map(|entry| entry.tid)
            .collect();
        self.managers_left = Some(meant.len());
        if !meant.is_empty() {
            self.poll_at = now + REREAD_INTERVAL;
        }
        let fresh: Vec<Tid> = meant
            .into_iter()
            .filter(|tid| self.manager_commands.insert(*tid, command) != Some(command))
            .collect();
        self.send_command(fresh, command);
    }

    /// Whether no manager is left that must stop first.
    pub(super) fn has_no_managers(&self) -> bool {
        self.options.kind != PRIME || self.managers_left == Some(0)
    }

    fn send_command(&self, targets: Vec<Tid>, command: ControlCommand) {
        for tid in targets {
            self.jobs.push(CommandJob::Forward {
                tid,
                message: ControlMessage::new(command),
            });
        }
    }
}
