//! What a worker says on its standard output: its id when it is registered, and a line when it has its task. Pure.

use std::fmt::Display;

use super::launcher::WorkerEvent;

/// What one worker has said so far.
#[derive(Debug, Default)]
pub(super) struct ReadinessParser {
    is_ready: bool,
    has_begun: bool,
}

impl ReadinessParser {
    /// What a line of it means.
    pub(super) fn line(&mut self, of: &impl Display, line: &str) -> Option<WorkerEvent> {
        if self.is_ready {
            // Said once, whatever else comes: a task can write here as its worker can, and as fast as it likes.
            return (!std::mem::replace(&mut self.has_begun, true)).then_some(WorkerEvent::Begun);
        }
        match line.trim().parse() {
            Ok(tid) => {
                self.is_ready = true;
                Some(WorkerEvent::Ready(tid))
            }
            Err(_) => {
                tracing::warn!(worker = %of, line, "a worker said something else than its id");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::launcher::LaunchId, *};

    #[test]
    fn the_id_comes_first_and_then_that_it_has_begun() {
        let (mut said, id) = (ReadinessParser::default(), LaunchId::process(7));
        assert_eq!(said.line(&id, "hello"), None);
        let tid = "1794800817069096960";
        assert_eq!(
            said.line(&id, &format!("{tid}\n")),
            Some(WorkerEvent::Ready(tid.parse().unwrap()))
        );
        assert_eq!(said.line(&id, "begun"), Some(WorkerEvent::Begun));
        for line in ["begun", tid, ""] {
            assert_eq!(
                said.line(&id, line),
                None,
                "a task can say so as often as it likes"
            );
        }
    }
}
