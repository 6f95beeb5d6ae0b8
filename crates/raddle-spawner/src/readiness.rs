//! `ReadinessParser`: what a worker reports on stdout, its id when it is registered and a line when
//! it has a task. Pure.

use std::fmt::Display;

use super::launcher::WorkerEvent;

/// The reports of one worker so far.
#[derive(Debug, Default)]
pub(super) struct ReadinessParser {
    is_ready: bool,
    has_task: bool,
}

impl ReadinessParser {
    /// Interprets a line.
    pub(super) fn parse_line(&mut self, id: &impl Display, line: &str) -> Option<WorkerEvent> {
        if self.is_ready {
            // Only the first line counts: a task can write to the same stdout as fast as it likes.
            return (!std::mem::replace(&mut self.has_task, true))
                .then_some(WorkerEvent::TaskClaimed);
        }
        match line.trim().parse() {
            Ok(tid) => {
                self.is_ready = true;
                Some(WorkerEvent::Ready(tid))
            }
            Err(_) => {
                tracing::warn!(worker = %id, line, "a worker did not report its id");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::launcher::LaunchId, *};

    #[test]
    fn the_id_comes_first_then_the_start_of_the_task() {
        let (mut parser, id) = (ReadinessParser::default(), LaunchId::process(7));
        assert_eq!(parser.parse_line(&id, "hello"), None);
        let tid = "1794800817069096960";
        assert_eq!(
            parser.parse_line(&id, &format!("{tid}\n")),
            Some(WorkerEvent::Ready(tid.parse().unwrap()))
        );
        assert_eq!(
            parser.parse_line(&id, "begun"),
            Some(WorkerEvent::TaskClaimed)
        );
        for line in ["begun", tid, ""] {
            assert_eq!(
                parser.parse_line(&id, line),
                None,
                "a task can write such lines too"
            );
        }
    }
}
