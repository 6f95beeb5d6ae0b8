//! The reply of a routine or handler: log lines, progress, chained tasks and the result.

use raddle_broker::{AttemptId, ChainRequest};
use raddle_model::{
    ExitStatus, Progress, ReplyParser, TaskSpec, Trace,
    reply::{LogLevel, ParsedOutput},
};
use raddle_runner::OutputChannel;
use serde_json::Value;

use super::chaining;

/// The reply of one attempt, parsed while it arrives.
pub(super) struct AttemptReply {
    on: OutputChannel,
    dialogue: ReplyParser,
    /// Bytes of the reply that went to the task's log.
    logged: u64,
    /// Chained tasks that the broker has stored.
    chained: u64,
    /// The trace of chained tasks that name none.
    trace: Trace,
    may_chain: bool,
    /// Chained tasks of the latest update, which are being stored.
    passing: u64,
    refusal: Option<ExitStatus>,
    /// Whether [`AttemptReply::chain_just_failed`] has returned true.
    is_refusal_known: bool,
}

/// What one piece of the reply contained.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ReplyUpdate {
    /// Text for the task's log.
    pub(super) log: Vec<u8>,
    /// The last progress that the attempt reported.
    pub(super) progress: Option<Progress>,
    /// Tasks that it chained.
    pub(super) chained: Vec<TaskSpec>,
    /// The reply has just become unreadable, so the attempt should be killed.
    pub(super) is_garbled: bool,
}

impl AttemptReply {
    /// Chained tasks belong to `trace`. An attempt in a sandbox may not chain.
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

    /// Whether the reply arrives on this channel.
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
                // Only the last progress is of interest to a later reader.
                ParsedOutput::Progress(progress) => heard.progress = Some(progress),
                ParsedOutput::Chain(_) if !self.may_chain => {
                    self.refusal.get_or_insert_with(chaining::untrusted);
                }
                // The attempt fails anyway, so the tasks that follow a refused one are dropped.
                ParsedOutput::Chain(_) if self.refusal.is_some() => {}
                ParsedOutput::Chain(spec) => heard.chained.push(self.traced(*spec)),
            }
        }
        self.logged += heard.log.len() as u64;
        heard.is_garbled = !was_garbled && self.dialogue.garbled().is_some();
        heard
    }

    /// Parses the last bytes. The last line may lack its newline.
    pub(super) fn hear_out(&mut self, bytes: &[u8]) -> ReplyUpdate {
        let mut heard = self.hear(bytes);
        let last = self.hear(b"\n");
        heard.log.extend(last.log);
        heard.chained.extend(last.chained);
        heard
    }

    /// Bytes of the reply that went to the task's log.
    pub(super) fn logged(&self) -> u64 {
        self.logged
    }

    /// Makes the request that stores chained tasks. Pass its outcome to
    /// [`Self::record_chain_result`].
    pub(super) fn chain(&mut self, attempt_id: AttemptId, tasks: Vec<TaskSpec>) -> ChainRequest {
        self.passing = tasks.len() as u64;
        ChainRequest {
            attempt_id,
            tasks,
            told: Some(self.chained),
        }
    }

    /// Records the outcome of a chain request. `None` means that it timed out.
    pub(super) fn passed_on(&mut self, outcome: Option<Result<(), ExitStatus>>) {
        match outcome.unwrap_or_else(|| Err(chaining::late())) {
            Ok(()) => self.chained += self.passing,
            Err(refusal) => self.refusal = Some(refusal),
        }
    }

    /// Returns true once, after a chain request has failed: the attempt should then be killed.
    pub(super) fn is_just_refused(&mut self) -> bool {
        self.refusal.is_some() && !std::mem::replace(&mut self.is_refusal_known, true)
    }

    /// Returns how the attempt ended and its result, given how its process ended.
    pub(super) fn conclude(self, exit: ExitStatus) -> (ExitStatus, Option<Value>) {
        let Self {
            dialogue, refusal, ..
        } = self;
        // Either the worker killed the attempt for the failed chain, or it had ended by itself.
        if let Some(refusal) =
            refusal.filter(|_| matches!(exit, ExitStatus::Killed | ExitStatus::Code { .. }))
        {
            return (refusal, None);
        }
        match dialogue.garbled() {
            // The worker killed it for that.
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
    fn counts_stored_chained_tasks_and_adds_the_trace() {
        let mut with = conversation(true);
        for told in 0..2 {
            let chained = with.hear(CHAIN).chained;
            let chain = with.chain(attempt_id(), chained);
            assert_eq!((chain.told, chain.tasks.len()), (Some(told), 1));
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
    fn accepts_a_last_line_without_newline() {
        let mut with = conversation(true);
        let lines = b"{\"result\":1}\n{\"chain\":{\"target\":{\"command\":[\"x\"]}}}";
        assert_eq!(with.hear_out(lines).chained.len(), 1);
        assert_eq!(with.conclude(ENDED), (ENDED, Some(json!(1))));
    }

    #[test]
    fn a_failed_chain_fails_the_attempt() {
        let refused = |exit: ExitStatus| {
            let mut with = conversation(true);
            let chained = with.hear(CHAIN).chained;
            with.chain(attempt_id(), chained);
            with.passed_on(Some(Err(chaining::late())));
            assert!(
                with.is_just_refused() && !with.is_just_refused(),
                "reported once"
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
    fn refuses_chained_tasks_of_a_sandboxed_attempt() {
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
