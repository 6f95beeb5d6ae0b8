//! What a routine or handler says while it runs, and what becomes of it.

use raddle_core::{
    Dialogue, Exit, Progress,
    reply::{Aside, Level},
};
use raddle_exec::Stream;
use serde_json::Value;

/// The answer of one attempt, as it comes in.
pub(super) struct Conversation {
    on: Stream,
    dialogue: Dialogue,
    logged: u64,
}

/// What was new in it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Heard {
    /// For the task's log.
    pub(super) log: Vec<u8>,
    /// How far the task has come, if it said so.
    pub(super) progress: Option<Progress>,
    /// It has just become clear that it cannot be understood: there is no use in letting it go on.
    pub(super) is_garbled: bool,
}

impl Conversation {
    /// One of which so many bytes are in the task's log already.
    pub(super) fn new(on: Stream, logged: u64) -> Self {
        Self { on, dialogue: Dialogue::default(), logged }
    }

    /// Whether nothing that was said before is needed any more.
    pub(super) fn is_between_lines(&self) -> bool {
        self.dialogue.is_between_lines()
    }

    /// Whether it is held on this stream.
    pub(super) fn is_on(&self, stream: Stream) -> bool {
        self.on == stream
    }

    pub(super) fn hear(&mut self, bytes: &[u8]) -> Heard {
        let was_garbled = self.dialogue.garbled().is_some();
        let mut heard = Heard::default();
        for aside in self.dialogue.hear(bytes) {
            match aside {
                Aside::Log(remark) => {
                    let level = match remark.level {
                        Level::Debug => "debug: ",
                        Level::Info => "",
                        Level::Warn => "warning: ",
                        Level::Error => "error: ",
                    };
                    heard.log.extend_from_slice(format!("{level}{}\n", remark.message).as_bytes());
                }
                // Only the last is of interest to anybody who looks later.
                Aside::Progress(progress) => heard.progress = Some(progress),
            }
        }
        self.logged += heard.log.len() as u64;
        heard.is_garbled = !was_garbled && self.dialogue.garbled().is_some();
        heard
    }

    /// How many bytes it has put into the task's log.
    pub(super) fn logged(&self) -> u64 {
        self.logged
    }

    /// How the attempt ended, given how its process did.
    pub(super) fn conclude(self, exit: Exit) -> (Exit, Option<Value>) {
        match self.dialogue.garbled() {
            // We killed it for that.
            Some(garbled) if exit == Exit::Killed => (Exit::Garbled { message: garbled.to_string() }, None),
            _ => self.dialogue.conclude(exit),
        }
    }
}
