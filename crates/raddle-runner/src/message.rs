//! The messages between a worker and its runner, in the frames of [`raddle_model::frame`]. The supervisor of a container and its process 1, which is a runner,
//! use the same.

use std::{borrow::Cow, time::Duration};

use jiff::Timestamp;
use raddle_model::{
    ExitStatus, Limits, ResourceUsage, Tid,
    spec::{Mount, NetworkPolicy},
};
use serde::{Deserialize, Serialize};

/// The longest body of a frame to a runner: a [`ExecRequest`] with its standard input.
pub(crate) const MAX_TO_RUNNER: usize = 1 << 30;
/// The longest body of a frame from a runner: a [`ExecResult`] with the unsent ends of the streams.
pub const MAX_FROM_RUNNER: usize = 1 << 20;

/// One attempt to be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// The task.
    pub tid: Tid,
    /// The number of the attempt.
    pub attempt: u32,
    /// The task's name, for the process title.
    pub name: String,
    /// What to run.
    pub program: ExecTarget,
    /// Set on top of the environment that the runner inherited from its worker.
    pub env: Vec<(String, String)>,
    /// The directory to run in; the worker's own when absent.
    pub cwd: Option<String>,
    /// Written to a command's standard input, which is then closed, or handed to a function; the runner holds it in memory. Without it the input is
    /// empty.
    #[serde(with = "raddle_model::bytes::option")]
    pub stdin: Option<Vec<u8>>,
    /// How long the attempt may run. The time it spends paused does not count.
    pub timeout: Option<Duration>,
    /// What it may use, its child processes included.
    pub limits: Limits,
    /// How long it has between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// How long it has between the two when it has run for too long.
    pub overtime: Duration,
    /// The sandbox that it runs in, if it runs in one: without the worker's files, environment, processes and network.
    pub sandbox: Option<SandboxConfig>,
}

impl ExecRequest {
    /// The first attempt to run a command: where its worker is, with nothing to read and no bounds, and killed at once when it is to end.
    pub fn command(
        tid: Tid,
        name: impl Into<String>,
        argv: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            tid,
            attempt: 1,
            name: name.into(),
            program: ExecTarget::Command(argv.into_iter().map(Into::into).collect()),
            env: Vec::new(),
            cwd: None,
            stdin: None,
            timeout: None,
            limits: Limits::default(),
            grace: Duration::ZERO,
            overtime: Duration::ZERO,
            sandbox: None,
        }
    }
}

/// What a sandbox is like.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxConfig {
    /// What is reached of the network.
    pub network: NetworkPolicy,
    /// Whether it may lack what the system refuses. Else the attempt fails there.
    pub fallback: bool,
    /// A directory of the host that is seen inside as [`HANDLER`], cannot be written, and is begun in.
    pub directory: Option<String>,
    /// What else is seen of the host's files.
    pub mounts: Vec<Mount>,
}

/// Where a sandbox shows the one directory of the host that it may show.
pub const HANDLER: &str = "/handler";

/// What an attempt runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExecTarget {
    /// A program and its arguments. One without a slash is searched in the `PATH` of the attempt's environment.
    Command(Vec<String>),
    /// A function of the runner's own program, by the name that its [`crate::FunctionCall`] knows. It runs in a process that is forked for it from one that has
    /// never heard of a task, and so has nothing in it but what every run begins with.
    Function(String),
    /// The runner's own program with these arguments, which keeps the command somewhere else. It answers with how that ended
    /// ([`OutputChannel::Reply`]), and is paused by SIGTSTP, so that it can pause what it keeps.
    Keeper(Vec<String>),
    /// A host: a program that speaks the host protocol on descriptor 3, which the runner was started with
    /// ([`Runner::spawn_for_host`](crate::Runner::spawn_for_host)). Without words it is the runner's own program with this argument.
    Host {
        /// The program and its arguments; empty for the runner's own program.
        argv: Vec<String>,
        /// The argument of the runner's own program.
        argument: String,
    },
}

/// A message to a runner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    clippy::large_enum_variant,
    reason = "one exists at a time: a box would cost an allocation for each attempt"
)]
pub enum ToRunner<'a> {
    /// In a container, before all others: the [`VERSION`](crate::contained::VERSION) of the supervisor.
    Version(u32),
    /// Run this attempt. The one before is over.
    Start(Cow<'a, ExecRequest>),
    /// About the attempt that is running.
    Order(RunnerCommand),
    /// In a container: standard input of the command, which begins with [`ExecRequest::stdin`]. At most [`WINDOW`](crate::contained::WINDOW) of it may be on its
    /// way.
    Input(#[serde(with = "raddle_model::bytes")] Vec<u8>),
    /// In a container: standard input ends.
    InputEnds,
    /// In a container: the supervisor is there.
    Beat,
}

/// An order about the attempt that is running. One that comes when nothing runs is ignored: it crossed the attempt's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunnerCommand {
    /// SIGTERM to the process group; SIGKILL to the whole tree after the grace, or when asked a second time.
    Stop,
    /// SIGKILL to the whole tree.
    Kill,
    /// SIGSTOP to the whole tree.
    Pause,
    /// SIGCONT to the whole tree.
    Resume,
}

/// What a runner tells its worker about an attempt: `Started`, any number of `Output`, then one `ExecResult`. A command that could
/// not be started has no `Started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RunnerEvent {
    /// The command runs.
    Started {
        /// Its process id.
        pid: u32,
    },
    /// It wrote something.
    Output {
        /// Where to.
        stream: OutputChannel,
        /// What, in the order it was written to this stream.
        #[serde(with = "raddle_model::bytes")]
        bytes: Vec<u8>,
    },
    /// In a container: the command has taken this much of its standard input.
    InputTaken {
        /// How much.
        bytes: usize,
    },
    /// The attempt is over, and no process of it is left.
    Done(Box<ExecResult>),
}

/// The account of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecResult {
    /// How it ended.
    pub exit: ExitStatus,
    /// Whether the runner sent it SIGKILL.
    pub killed: bool,
    /// What it used.
    pub usage: ResourceUsage,
    /// All that was written to standard output.
    pub stdout_bytes: u64,
    /// All that was written to standard error.
    pub stderr_bytes: u64,
    /// The end of standard output, not sent as [`RunnerEvent::Output`].
    #[serde(with = "raddle_model::bytes")]
    pub stdout: Vec<u8>,
    /// The end of standard error, not sent as [`RunnerEvent::Output`].
    #[serde(with = "raddle_model::bytes")]
    pub stderr: Vec<u8>,
    /// The end of what a function answered, not sent as [`RunnerEvent::Output`].
    #[serde(with = "raddle_model::bytes")]
    pub reply: Vec<u8>,
    /// When the command began to run; absent when it could not be started.
    pub started_at: Option<Timestamp>,
    /// When it was over.
    pub ended_at: Timestamp,
}

impl ExecResult {
    /// The account of an attempt whose command never ran.
    pub fn without_start(exit: ExitStatus) -> Self {
        Self {
            exit,
            killed: false,
            usage: ResourceUsage::default(),
            stdout_bytes: 0,
            stderr_bytes: 0,
            stdout: Vec::new(),
            stderr: Vec::new(),
            reply: Vec::new(),
            started_at: None,
            ended_at: Timestamp::now(),
        }
    }
}

/// What an attempt writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OutputChannel {
    /// File descriptor 1.
    Stdout,
    /// File descriptor 2.
    Stderr,
    /// What a function answers, apart from what it prints.
    Reply,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use raddle_model::frame::{Decoder, encode};

    use super::*;

    fn request() -> ExecRequest {
        ExecRequest {
            attempt: 3,
            env: vec![("K".into(), "v=w".into())],
            cwd: Some("/".into()),
            stdin: Some(vec![0xff; 10_000]),
            timeout: Some(Duration::from_millis(1500)),
            limits: Limits {
                memory_mb: Some(5),
                ..Limits::default()
            },
            sandbox: Some(SandboxConfig {
                network: "example.org:443".parse().unwrap(),
                fallback: true,
                directory: Some("/handlers".into()),
                mounts: vec!["/a:/b:rw".parse().unwrap()],
            }),
            ..ExecRequest::command(
                Tid::from_u64(1_700_000_000_000_000_000).unwrap(),
                "n",
                ["a", ""],
            )
        }
    }

    fn done() -> ExecResult {
        ExecResult {
            usage: ResourceUsage {
                peak_rss_bytes: 1,
                user_us: 2,
                system_us: 3,
            },
            stdout: b"out\xff".to_vec(),
            reply: b"reply".to_vec(),
            started_at: Some(Timestamp::now()),
            ..ExecResult::without_start(ExitStatus::NotFound {
                message: "command not found: x".into(),
            })
        }
    }

    #[test]
    fn messages_arrive_as_they_were_sent_and_input_as_bytes() {
        let request = request();
        let start = encode(&ToRunner::Start(Cow::Borrowed(&request)));
        assert!(start.len() < 11_000, "{}", start.len());
        let mut decoder = Decoder::new(MAX_TO_RUNNER);
        decoder.push(&start);
        decoder.push(&encode(&ToRunner::Order(RunnerCommand::Resume)));
        assert_eq!(
            decoder.next().unwrap(),
            Some(ToRunner::Start(Cow::Owned(request)))
        );
        assert_eq!(
            decoder.next().unwrap(),
            Some(ToRunner::Order(RunnerCommand::Resume))
        );
        let output = RunnerEvent::Output {
            stream: OutputChannel::Stderr,
            bytes: vec![0, 0xff],
        };
        let mut decoder = Decoder::new(MAX_FROM_RUNNER);
        for notice in [
            RunnerEvent::Started { pid: 77 },
            output,
            RunnerEvent::Done(Box::new(done())),
        ] {
            decoder.push(&encode(&notice));
            assert_eq!(decoder.next().unwrap(), Some(notice));
        }
    }

    #[test]
    fn a_request_of_another_version_is_refused() {
        let mut decoder = Decoder::new(MAX_TO_RUNNER);
        decoder.push(&encode(&std::collections::BTreeMap::from([(
            "Start",
            std::collections::BTreeMap::from([("new", 1)]),
        )])));
        assert!(decoder.next::<ToRunner<'_>>().is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(at in 0usize..200, bytes: Vec<u8>) {
            for mut frame in [encode(&ToRunner::Start(Cow::Owned(request()))), encode(&RunnerEvent::Done(Box::new(done())))] {
                // In the middle of a valid frame, behind its length.
                let from = (4 + at).min(frame.len());
                frame.splice(from..(from + bytes.len()).min(frame.len()), bytes.iter().copied());
                let length = frame.len() as u32 - 4;
                frame[..4].copy_from_slice(&length.to_le_bytes());
                let mut decoder = Decoder::new(MAX_TO_RUNNER);
                decoder.push(&frame);
                let _ = decoder.next::<ToRunner<'_>>();
                let mut decoder = Decoder::new(MAX_FROM_RUNNER);
                decoder.push(&frame);
                let _ = decoder.next::<RunnerEvent>();
            }
        }
    }
}
