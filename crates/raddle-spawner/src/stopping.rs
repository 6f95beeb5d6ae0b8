//! What control words mean to a spawner, and how it passes a stop on.

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

/// How long workers that are killed may take to be gone.
const KILL_WITHIN: Duration = Duration::from_secs(5);

/// How long until the registry is looked at again for managers and workers that were sent `STOP`: by so much they are waited for too long.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

impl SpawnerService {
    pub(super) fn apply_command(&mut self, message: ControlMessage, now: Duration) {
        match message.command {
            // Once is enough: to ask again is to ask whether it was heard.
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
                self.pausing.push(message);
                return;
            }
            ControlCommand::Resume => {
                self.paused = false;
                self.dismissed.clear();
            }
            _ => {}
        }
        self.answer(&message);
    }

    fn answer(&self, message: &ControlMessage) {
        let reply = message.reply("ok", self.status());
        self.errands.push(CommandJob::Reply {
            tid: self.line.tid,
            reply,
        });
    }

    /// Stops idle workers while it is paused, as each of them would take one more task. `PAUSE` is answered when none is left that could.
    pub(super) fn dismiss_idle(&mut self, now: Duration) {
        let is_pausing = self.paused && self.stage() == StopStage::Running;
        if is_pausing {
            let idle: Vec<Tid> = self
                .roster
                .idle()
                .filter(|tid| self.dismissed.insert(*tid))
                .collect();
            self.say(idle, ControlCommand::Stop);
        }
        if is_pausing && self.roster.census(0).capacity() > 0 {
            // Those that the launcher does not tell of are seen in the registry alone.
            self.poll_at = self.poll_at.min(now + LOOK_AGAIN);
        } else {
            mem::take(&mut self.pausing)
                .iter()
                .for_each(|message| self.answer(message));
        }
    }

    /// How far it was asked to stop.
    pub(super) fn stage(&self) -> StopStage {
        self.core.stage(GROUP)
    }

    /// Passes a stop on. Nobody is stopped alone, so all are told at once, and of each stage: a second word that was heard with the first is a second word
    /// to workers as well.
    pub(super) fn pass_on(&mut self, now: Duration) {
        let stage = self.stage();
        let before = std::mem::replace(&mut self.entered, stage);
        let stages = [
            StopStage::Draining,
            StopStage::Terminating,
            StopStage::Killing,
        ];
        // Who is to be killed need not be asked first.
        let entered = stages.into_iter().filter(|of| {
            before < *of && (*of == stage || stage == StopStage::Terminating && *of < stage)
        });
        entered.for_each(|stage| self.enter(stage, now));
    }

    /// Those it has found, and has no process of, are told by the broker. So are managers that it has spawned: it looks who they are at once.
    fn enter(&mut self, stage: StopStage, now: Duration) {
        self.poll_at = now;
        match stage {
            StopStage::Running => {}
            StopStage::Draining => {
                self.launcher.tell(BroadcastCommand::Stop);
                let found: Vec<Tid> = self.roster.adopted().collect();
                self.say(found, ControlCommand::Stop);
            }
            StopStage::Terminating => self.launcher.tell(BroadcastCommand::Stop),
            StopStage::Killing => drop(self.leave_by.get_or_insert(now + KILL_WITHIN)),
        }
    }

    /// Has the workers killed, as soon as none of them runs a manager: a manager that obeys has what it has spawned given back, and one that dies with its worker
    /// does not.
    pub(super) fn kill_workers(&mut self, now: Duration) {
        let is_late = self.leave_by.is_some_and(|by| by <= now);
        if self.stage() != StopStage::Killing || self.kills || !(is_late || self.has_no_managers())
        {
            return;
        }
        self.kills = true;
        // By word first: one that obeys gives back what it runs.
        let all: Vec<Tid> = self.roster.tids().collect();
        self.say(all, ControlCommand::Kill);
        self.launcher.tell(BroadcastCommand::GiveBack);
    }

    /// A prime that stops takes the hierarchy below it along: the managers that its own workers run, and all of them if no other prime is left. They
    /// are told each word once, by what the registry shows; those that begin meanwhile are told when they are seen. It leaves after them.
    pub(super) fn stop_managers(&mut self, registry: &[WorkerEntry], now: Duration) {
        let word = match self.stage() {
            StopStage::Draining | StopStage::Terminating => ControlCommand::Stop,
            StopStage::Killing => ControlCommand::Kill,
            StopStage::Running => return,
        };
        if self.options.kind != PRIME {
            return;
        }
        let others = registry
            .iter()
            .filter(|entry| entry.tid != self.line.tid && entry.info.is_manager());
        let (primes, managers): (Vec<_>, Vec<_>) =
            others.partition(|entry| entry.info.kind == PRIME);
        // One that leaves as well tells nobody for this one, nor does one that was killed and is listed until its lease has run out.
        let is_last = !primes.into_iter().any(is_staying);
        let is_mine = |entry: &WorkerEntry| {
            // It is the command of a runner, which is a child of the worker.
            let mut above =
                std::iter::successors(Some(entry.info.pid), |pid| raddle_runner::parent_of(*pid));
            is_local(&entry.info) && above.any(|pid| self.roster.has(&LaunchId::process(pid)))
        };
        let meant: Vec<Tid> = managers
            .into_iter()
            .filter(|entry| is_last || is_mine(entry))
            .map(|entry| entry.tid)
            .collect();
        self.managers_left = Some(meant.len());
        if !meant.is_empty() {
            self.poll_at = now + LOOK_AGAIN;
        }
        let fresh: Vec<Tid> = meant
            .into_iter()
            .filter(|tid| self.told.insert(*tid, word) != Some(word))
            .collect();
        self.say(fresh, word);
    }

    /// Whether nobody is left who stops with it, as far as it has to look.
    pub(super) fn has_no_managers(&self) -> bool {
        self.options.kind != PRIME || self.managers_left == Some(0)
    }

    fn say(&self, whom: Vec<Tid>, word: ControlCommand) {
        for tid in whom {
            self.errands.push(CommandJob::Forward {
                tid,
                message: ControlMessage::new(word),
            });
        }
    }
}
