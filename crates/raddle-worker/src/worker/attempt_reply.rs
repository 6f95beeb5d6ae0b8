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
    channel: OutputChannel,
    parser: ReplyParser,
    /// Bytes of the reply that went to the task's log.
    logged_bytes: u64,
    /// Chained tasks that the broker has stored.
    chained_count: u64,
    /// The trace of chained tasks that name none.
    trace: Trace,
    may_chain: bool,
    /// Chained tasks of the latest update, which are being stored.
    pending_chain: u64,
    chain_error: Option<ExitStatus>,
    /// Whether [`AttemptReply::chain_just_failed`] has returned true.
    chain_error_reported: bool,
}

/// The contents of one piece of the reply.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ReplyUpdate {
    /// Text for the task's log.
    pub(super) log: Vec<u8>,
    /// The last progress that the attempt reported.
    pub(super) progress: Option<Progress>,
    /// Tasks that it chained.
    pub(super) chained: Vec<TaskSpec>,
    /// The reply has just become unreadable, so the attempt should be killed.
    pub(super) is_malformed: bool,
}

impl AttemptReply {
    /// Chained tasks belong to `trace`. An attempt in a sandbox may not chain.
    pub(super) fn new(channel: OutputChannel, trace: Trace, may_chain: bool) -> Self {
        let (parser, chain_error, chain_error_reported) = (ReplyParser::default(), None, false);
        Self {
            channel,
            parser,
            logged_bytes: 0,
            chained_count: 0,
            trace,
            may_chain,
            pending_chain: 0,
            chain_error,
            chain_error_reported,
        }
    }

    /// Whether the reply arrives on this channel.
    pub(super) fn is_on_channel(&self, stream: OutputChannel) -> bool {
        self.channel == stream
    }

    pub(super) fn parse(&mut self, bytes: &[u8]) -> ReplyUpdate {
        let was_malformed = self.parser.malformed().is_some();
        let mut update = ReplyUpdate::default();
        for output in self.parser.parse(bytes) {
            match output {
                ParsedOutput::Log(line) => {
                    let level = match line.level {
                        LogLevel::Debug => "debug: ",
                        LogLevel::Info => "",
                        LogLevel::Warn => "warning: ",
                        LogLevel::Error => "error: ",
                    };
                    update
                        .log
                        .extend_from_slice(format!("{level}{}\n", line.message).as_bytes());
                }
                // Only the last progress is of interest to a later reader.
                ParsedOutput::Progress(progress) => update.progress = Some(progress),
                ParsedOutput::Chain(_) if !self.may_chain => {
                    self.chain_error
                        .get_or_insert_with(chaining::chain_from_sandbox);
                }
                // The attempt fails anyway, so the tasks that follow a refused one are dropped.
                ParsedOutput::Chain(_) if self.chain_error.is_some() => {}
                ParsedOutput::Chain(spec) => update.chained.push(self.add_trace(*spec)),
            }
        }
        self.logged_bytes += update.log.len() as u64;
        update.is_malformed = !was_malformed && self.parser.malformed().is_some();
        update
    }

    /// Parses the last bytes. The last line may lack its newline.
    pub(super) fn parse_last(&mut self, bytes: &[u8]) -> ReplyUpdate {
        let mut update = self.parse(bytes);
        let last = self.parse(b"\n");
        update.log.extend(last.log);
        update.chained.extend(last.chained);
        update
    }

    /// Bytes of the reply that went to the task's log.
    pub(super) fn logged_bytes(&self) -> u64 {
        self.logged_bytes
    }

    /// Makes the request that stores chained tasks. Pass its outcome to
    /// [`Self::record_chain_result`].
    pub(super) fn chain_request(
        &mut self,
        attempt_id: AttemptId,
        tasks: Vec<TaskSpec>,
    ) -> ChainRequest {
        self.pending_chain = tasks.len() as u64;
        ChainRequest {
            attempt_id,
            tasks,
            offset: Some(self.chained_count),
        }
    }

    /// Records the outcome of a chain request. `None` means that it timed out.
    pub(super) fn record_chain_result(&mut self, outcome: Option<Result<(), ExitStatus>>) {
        match outcome.unwrap_or_else(|| Err(chaining::chain_timed_out())) {
            Ok(()) => self.chained_count += self.pending_chain,
            Err(chain_error) => self.chain_error = Some(chain_error),
        }
    }

    /// Returns true once, after a chain request has failed: the attempt should then be killed.
    pub(super) fn chain_just_failed(&mut self) -> bool {
        self.chain_error.is_some() && !std::mem::replace(&mut self.chain_error_reported, true)
    }

    /// Returns how the attempt ended and its result, given how its process ended.
    pub(super) fn into_result(self, exit: ExitStatus) -> (ExitStatus, Option<Value>) {
        let Self {
            parser,
            chain_error,
            ..
        } = self;
        // Either the worker killed the attempt for the failed chain, or it had ended by itself.
        if let Some(chain_error) =
            chain_error.filter(|_| matches!(exit, ExitStatus::Killed | ExitStatus::Code { .. }))
        {
            return (chain_error, None);
        }
        match parser.malformed() {
            // The worker killed it for that.
            Some(malformed) if exit == ExitStatus::Killed => (
                ExitStatus::ProtocolError {
                    message: malformed.to_string(),
                },
                None,
            ),
            _ => parser.conclude(exit),
        }
    }

    fn add_trace(&self, spec: TaskSpec) -> TaskSpec {
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

    const SUCCESS: ExitStatus = ExitStatus::Code { code: 0 };
    const CHAIN: &[u8] = b"{\"chain\":{\"target\":{\"command\":[\"x\"]}}}\n";

    fn attempt_id() -> AttemptId {
        let tid = Tid::from_u64(1_700_000_000_000_000_000).unwrap();
        AttemptId {
            tid,
            attempt: 1,
            owner: tid,
        }
    }

    fn new_reply(may_chain: bool) -> AttemptReply {
        let trace = TaskSpec::command(["parent"]).trace(attempt_id().tid, 1);
        AttemptReply::new(OutputChannel::Reply, trace, may_chain)
    }

    #[test]
    fn counts_stored_chained_tasks_and_adds_the_trace() {
        let mut with = new_reply(true);
        for told in 0..2 {
            let chained = with.parse(CHAIN).chained;
            let chain = with.chain_request(attempt_id(), chained);
            assert_eq!((chain.offset, chain.tasks.len()), (Some(told), 1));
            assert_eq!(chain.tasks[0].traceparent, Some(with.trace.parent));
            with.record_chain_result(Some(Ok(())));
            assert_eq!(with.chained_count, told + 1);
        }
        assert!(!with.chain_just_failed());
        let other = "00-11111111111111111111111111111111-2222222222222222-01";
        let line = format!(
            "{{\"chain\":{{\"target\":{{\"command\":[\"x\"]}},\"traceparent\":\"{other}\"}}}}\n"
        );
        assert_eq!(
            with.parse(line.as_bytes()).chained[0]
                .traceparent
                .unwrap()
                .to_string(),
            other
        );
    }

    #[test]
    fn accepts_a_last_line_without_newline() {
        let mut with = new_reply(true);
        let lines = b"{\"result\":1}\n{\"chain\":{\"target\":{\"command\":[\"x\"]}}}";
        assert_eq!(with.parse_last(lines).chained.len(), 1);
        assert_eq!(with.into_result(SUCCESS), (SUCCESS, Some(json!(1))));
    }

    #[test]
    fn a_failed_chain_fails_the_attempt() {
        let fail_chain = |exit: ExitStatus| {
            let mut with = new_reply(true);
            let chained = with.parse(CHAIN).chained;
            with.chain_request(attempt_id(), chained);
            with.record_chain_result(Some(Err(chaining::chain_timed_out())));
            assert!(
                with.chain_just_failed() && !with.chain_just_failed(),
                "reported once"
            );
            assert!(with.parse(CHAIN).chained.is_empty());
            with.parse(b"{\"result\":1}\n");
            with.into_result(exit)
        };
        for exit in [SUCCESS, ExitStatus::Killed] {
            assert!(matches!(
                fail_chain(exit),
                (
                    ExitStatus::Error {
                        permanent: false,
                        ..
                    },
                    None
                )
            ));
        }
        assert_eq!(fail_chain(ExitStatus::Timeout), (ExitStatus::Timeout, None));
    }

    #[test]
    fn refuses_chained_tasks_of_a_sandboxed_attempt() {
        let mut with = new_reply(false);
        assert!(with.parse(CHAIN).chained.is_empty());
        assert!(with.chain_just_failed());
        let (exit, value) = with.into_result(ExitStatus::Killed);
        assert!(
            matches!(&exit, ExitStatus::Error { permanent: true, message, .. } if message.contains("sandbox")),
            "{exit:?}"
        );
        assert_eq!(value, None);
    }
}
