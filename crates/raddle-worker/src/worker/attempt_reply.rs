//! What a routine or handler says while it runs, and what becomes of it.

use raddle_broker::{AttemptId, ChainRequest};
use raddle_model::{
    ExitStatus, Progress, ReplyParser, TaskSpec, Trace,
    reply::{LogLevel, ParsedOutput},
};
use raddle_runner::OutputChannel;
use serde_json::Value;

use super::chaining;

/// The answer of one attempt, as it comes in.
pub(super) struct AttemptReply {
    on: OutputChannel,
    dialogue: ReplyParser,
    /// How many bytes of it are in the task's log.
    logged: u64,
    /// How many tasks it has chained.
    chained: u64,
    /// The trace of what it chains.
    trace: Trace,
    may_chain: bool,
    /// How many tasks were heard of last, which are being passed on.
    passing: u64,
    refusal: Option<ExitStatus>,
    /// Whether that has been told.
    is_refusal_known: bool,
}

/// What was new in it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ReplyUpdate {
    /// For the task's log.
    pub(super) log: Vec<u8>,
    /// How far the task has come, if it said so.
    pub(super) progress: Option<Progress>,
    /// What is to follow it.
    pub(super) chained: Vec<TaskSpec>,
    /// It has just become clear that it cannot be understood: there is no use in letting it go on.
    pub(super) is_garbled: bool,
}

impl AttemptReply {
    /// What it chains belongs to the trace, if it may chain at all.
    pub(super) fn new(on: OutputChannel, trace: Trace, may_chain: bool) -> Self {
        let (dialogue, refusal, is_refusal_known) = (ReplyParser::default(), None, false);
        Self {
            on,
            dialogue,
            logged: 0,
            chained: 0,
            trace,
            may_chain,
            passing: 0,
            refusal,
            is_refusal_known,
        }
    }

    /// Whether it is held on this stream.
    pub(super) fn is_on(&self, stream: OutputChannel) -> bool {
        self.on == stream
    }

    pub(super) fn hear(&mut self, bytes: &[u8]) -> ReplyUpdate {
        let was_garbled = self.dialogue.garbled().is_some();
        let mut heard = ReplyUpdate::default();
        for aside in self.dialogue.hear(bytes) {
            match aside {
                ParsedOutput::Log(remark) => {
                    let level = match remark.level {
                        LogLevel::Debug => "debug: ",
                        LogLevel::Info => "",
                        LogLevel::Warn => "warning: ",
                        LogLevel::Error => "error: ",
                    };
                    heard
                        .log
                        .extend_from_slice(format!("{level}{}\n", remark.message).as_bytes());
                }
                // Only the last is of interest to anybody who looks later.
                ParsedOutput::Progress(progress) => heard.progress = Some(progress),
                ParsedOutput::Chain(_) if !self.may_chain => {
                    self.refusal.get_or_insert_with(chaining::untrusted);
                }
                // Behind one that was refused, none is of use.
                ParsedOutput::Chain(_) if self.refusal.is_some() => {}
                ParsedOutput::Chain(spec) => heard.chained.push(self.traced(*spec)),
            }
        }
        self.logged += heard.log.len() as u64;
        heard.is_garbled = !was_garbled && self.dialogue.garbled().is_some();
        heard
    }

    /// Hears the last of it. The last line of all need not have an end.
    pub(super) fn hear_out(&mut self, bytes: &[u8]) -> ReplyUpdate {
        let mut heard = self.hear(bytes);
        let last = self.hear(b"\n");
        heard.log.extend(last.log);
        heard.chained.extend(last.chained);
        heard
    }

    /// How many bytes of it are in the task's log.
    pub(super) fn logged(&self) -> u64 {
        self.logged
    }

    /// What it has chained, as the broker is told it. What comes of that is to be [told](Self::passed_on).
    pub(super) fn chain(&mut self, attempt_id: AttemptId, tasks: Vec<TaskSpec>) -> ChainRequest {
        self.passing = tasks.len() as u64;
        ChainRequest {
            attempt_id,
            tasks,
            offset: Some(self.chained),
        }
    }

    /// Notes what came of passing it on; nothing, if that took too long.
    pub(super) fn passed_on(&mut self, outcome: Option<Result<(), ExitStatus>>) {
        match outcome.unwrap_or_else(|| Err(chaining::late())) {
            Ok(()) => self.chained += self.passing,
            Err(refusal) => self.refusal = Some(refusal),
        }
    }

    /// Whether it has become clear since the last time that what it chained is not taken: there is no use in letting it go on.
    pub(super) fn is_just_refused(&mut self) -> bool {
        self.refusal.is_some() && !std::mem::replace(&mut self.is_refusal_known, true)
    }

    /// How the attempt ended, given how its process did.
    pub(super) fn conclude(self, exit: ExitStatus) -> (ExitStatus, Option<Value>) {
        let Self {
            dialogue, refusal, ..
        } = self;
        // We killed it for that, or it had come to its own end by then.
        if let Some(refusal) =
            refusal.filter(|_| matches!(exit, ExitStatus::Killed | ExitStatus::Code { .. }))
        {
            return (refusal, None);
        }
        match dialogue.garbled() {
            // We killed it for that.
            Some(garbled) if exit == ExitStatus::Killed => (
                ExitStatus::ProtocolError {
                    message: garbled.to_string(),
                },
                None,
            ),
            _ => dialogue.conclude(exit),
        }
    }

    fn traced(&self, spec: TaskSpec) -> TaskSpec {
        if spec.traceparent.is_some() {
            return spec;
        }
        let Trace { parent, state } = self.trace.clone();
        TaskSpec {
            traceparent: Some(parent),
            tracestate: state,
            ..spec
        }
    }
}

#[cfg(test)]
mod tests {
    use raddle_model::Tid;
    use serde_json::json;

    use super::*;

    const ENDED: ExitStatus = ExitStatus::Code { code: 0 };
    const CHAIN: &[u8] = b"{\"chain\":{\"target\":{\"command\":[\"x\"]}}}\n";

    fn attempt_id() -> AttemptId {
        let tid = Tid::from_u64(1_700_000_000_000_000_000).unwrap();
        AttemptId {
            tid,
            attempt: 1,
            owner: tid,
        }
    }

    fn conversation(may_chain: bool) -> AttemptReply {
        let trace = TaskSpec::command(["parent"]).trace(attempt_id().tid, 1);
        AttemptReply::new(OutputChannel::Reply, trace, may_chain)
    }

    #[test]
    fn what_is_chained_is_counted_when_it_is_kept_and_carries_the_trace() {
        let mut with = conversation(true);
        for told in 0..2 {
            let chained = with.hear(CHAIN).chained;
            let chain = with.chain(attempt_id(), chained);
            assert_eq!((chain.offset, chain.tasks.len()), (Some(told), 1));
            assert_eq!(chain.tasks[0].traceparent, Some(with.trace.parent));
            with.passed_on(Some(Ok(())));
            assert_eq!(with.chained, told + 1);
        }
        assert!(!with.is_just_refused());
        let other = "00-11111111111111111111111111111111-2222222222222222-01";
        let line = format!(
            "{{\"chain\":{{\"target\":{{\"command\":[\"x\"]}},\"traceparent\":\"{other}\"}}}}\n"
        );
        assert_eq!(
            with.hear(line.as_bytes()).chained[0]
                .traceparent
                .unwrap()
                .to_string(),
            other
        );
    }

    #[test]
    fn the_last_line_needs_no_end() {
        let mut with = conversation(true);
        let lines = b"{\"result\":1}\n{\"chain\":{\"target\":{\"command\":[\"x\"]}}}";
        assert_eq!(with.hear_out(lines).chained.len(), 1);
        assert_eq!(with.conclude(ENDED), (ENDED, Some(json!(1))));
    }

    #[test]
    fn a_refusal_fails_the_attempt() {
        let refused = |exit: ExitStatus| {
            let mut with = conversation(true);
            let chained = with.hear(CHAIN).chained;
            with.chain(attempt_id(), chained);
            with.passed_on(Some(Err(chaining::late())));
            assert!(
                with.is_just_refused() && !with.is_just_refused(),
                "told once"
            );
            assert!(with.hear(CHAIN).chained.is_empty());
            with.hear(b"{\"result\":1}\n");
            with.conclude(exit)
        };
        for exit in [ENDED, ExitStatus::Killed] {
            assert!(matches!(
                refused(exit),
                (
                    ExitStatus::Error {
                        permanent: false,
                        ..
                    },
                    None
                )
            ));
        }
        assert_eq!(refused(ExitStatus::Timeout), (ExitStatus::Timeout, None));
    }

    #[test]
    fn nothing_is_chained_from_a_sandbox() {
        let mut with = conversation(false);
        assert!(with.hear(CHAIN).chained.is_empty());
        assert!(with.is_just_refused());
        let (exit, value) = with.conclude(ExitStatus::Killed);
        assert!(
            matches!(&exit, ExitStatus::Error { permanent: true, message } if message.contains("sandbox")),
            "{exit:?}"
        );
        assert_eq!(value, None);
    }
}
