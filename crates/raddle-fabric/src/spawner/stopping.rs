//! What control words mean to a spawner, and how it passes a stop on.

use std::time::Duration;

use raddle_core::{Control, Tid, Word, stop::Stage};

use super::{Tell, service::Service};
use crate::worker::words::Errand;

/// How long workers that are killed may take to be gone.
const KILL_WITHIN: Duration = Duration::from_secs(5);

impl Service {
    pub(super) fn obey(&mut self, message: Control, now: Duration) {
        match message.command {
            // Once is enough: to ask again is to ask whether it was heard.
            Word::Stop if self.stop.stage() == Stage::Running => {
                let stage = self.stop.request(now);
                self.enter(stage, now);
            }
            Word::Kill => {
                let stage = self.stop.kill(now);
                self.enter(stage, now);
            }
            Word::Pause => self.paused = true,
            Word::Resume => self.paused = false,
            _ => {}
        }
        let reply = message.reply("ok", self.status());
        self.errands.run(Errand::Reply { of: self.line.tid, reply });
    }

    /// Passes a stop on. Those it has found, and has no process of, are told by the broker.
    pub(super) fn enter(&mut self, stage: Stage, now: Duration) {
        match stage {
            Stage::Running => {}
            Stage::Draining => {
                self.launcher.tell(Tell::Stop);
                let found: Vec<Tid> = self.roster.adopted().collect();
                self.say(found, Word::Stop);
            }
            Stage::Terminating => self.launcher.tell(Tell::Stop),
            Stage::Killing => {
                // By word first: one that obeys gives back what it runs.
                let all: Vec<Tid> = self.roster.tids().collect();
                self.say(all, Word::Kill);
                self.launcher.tell(Tell::GiveBack);
                self.leave_by.get_or_insert(now + KILL_WITHIN);
            }
        }
    }

    fn say(&self, whom: Vec<Tid>, word: Word) {
        for tid in whom {
            self.errands.run(Errand::PassOn { tid, message: Control::new(word) });
        }
    }
}
