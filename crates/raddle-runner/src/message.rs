//! Messages between a worker and its runner, in the frames of [`raddle_model::frame`]. The
//! supervisor of a container and its process 1, which is a runner, use the same messages.

use std::{borrow::Cow, time::Duration};

use jiff::Timestamp;
use raddle_model::{
    ExitStatus, Limits, ResourceUsage, Tid,
    spec::{Mount, NetworkPolicy},
};
use serde::{Deserialize, Serialize};

/// Maximum body length of a frame to a runner: an [`ExecRequest`] with its standard input.
pub(crate) const MAX_TO_RUNNER: usize = 1 << 30;
/// Maximum body length of a frame from a runner: an [`ExecResult`] with the unsent ends of the
/// streams.
pub const MAX_FROM_RUNNER: usize = 1 << 20;

/// One attempt to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// Id of the task.
    pub tid: Tid,
    /// Number of the attempt.
    pub attempt: u32,
    /// Name of the task, for the process title.
    pub name: String,
    /// Program or function to run.
    pub program: ExecTarget,
    /// Variables that are set on top of the environment that the runner inherited from its worker.
    pub env: Vec<(String, String)>,
    /// Working directory. `None` means the worker's.
    pub cwd: Option<String>,
    /// Standard input of a command, or the input of a function. The runner holds it in memory.
    /// `None` means empty input.
    #[serde(with = "raddle_model::bytes::option")]
    pub stdin: Option<Vec<u8>>,
    /// Maximum run time. Paused time does not count.
    pub timeout: Option<Duration>,
    /// Resource limits, for the command and its child processes together.
    pub limits: Limits,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Time between SIGTERM and SIGKILL after a timeout.
    pub timeout_grace: Duration,
    /// Sandbox to run in, without the worker's files, environment, processes and network.
    pub sandbox: Option<SandboxConfig>,
}

impl ExecRequest {
    /// The first attempt to run a command: in the worker's directory, without input, limits and
    /// grace.
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
            timeout_grace: Duration::ZERO,
            sandbox: None,
        }
    }
}

/// Configuration of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxConfig {
    /// Network endpoints that the attempt may reach.
    pub network: NetworkPolicy,
    /// Whether the sandbox may omit layers that the kernel refuses. If not, a refused layer fails
    /// the attempt.
    pub fallback: bool,
    /// Host directory that appears inside as [`HANDLER`]: read-only, and the working directory.
    pub directory: Option<String>,
    /// Other files of the host that are visible inside.
    pub mounts: Vec<Mount>,
}

/// Path in the sandbox of [`SandboxConfig::directory`].
pub const HANDLER: &str = "/handler";

/// The target of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExecTarget {
    /// A program and its arguments. A program without a slash is searched in the `PATH` of the
    /// attempt's environment.
    Command(Vec<String>),
    /// A function of the runner's own program, by the name that its [`crate::FunctionCall`] takes.
    /// It runs in a process that is forked from the fork server, which has never seen a task, so no
    /// state of earlier attempts reaches it.
    Function(String),
    /// The runner's own program with these arguments: the supervisor of a container, which runs the
    /// command in there. It reports how the command ended on [`OutputChannel::Reply`], and is
    /// paused with SIGTSTP, so that it can pause the container's processes.
    ContainerSupervisor(Vec<String>),
    /// A host: a program that speaks the host protocol on descriptor 3, which the runner was
    /// started with ([`Runner::spawn_for_host`](crate::Runner::spawn_for_host)).
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
    /// In a container, as the first message: the [`VERSION`](crate::container::VERSION) of the
    /// supervisor.
    Version(u32),
    /// Run this attempt. The previous attempt is over.
    Start(Cow<'a, ExecRequest>),
    /// Control the running attempt.
    Command(RunnerCommand),
    /// In a container: standard input of the command, after [`ExecRequest::stdin`]. At most
    /// [`INPUT_WINDOW`](crate::container::INPUT_WINDOW) bytes may be in flight.
    Input(#[serde(with = "raddle_model::bytes")] Vec<u8>),
    /// In a container: standard input ends.
    InputEnds,
    /// In a container: the supervisor is alive.
    Heartbeat,
}

/// A command for the running attempt. The runner ignores one that arrives when nothing runs,
/// because the command may have crossed the attempt's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunnerCommand {
    /// SIGTERM to the process group; SIGKILL to the whole tree after the grace period, or on a
    /// second `Stop`.
    Stop,
    /// SIGKILL to the whole tree.
    Kill,
    /// SIGSTOP to the whole tree.
    Pause,
    /// SIGCONT to the whole tree.
    Resume,
}

/// Events of an attempt that a runner reports to its worker: `Started`, any number of `Output`,
/// then one `Done`. An attempt whose command could not be started has no `Started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RunnerEvent {
    /// The command runs.
    Started {
        /// Process id of the command.
        pid: u32,
    },
    /// The command wrote output.
    Output {
        /// Stream that it was written to.
        stream: OutputChannel,
        /// Bytes in the order in which they were written to this stream.
        #[serde(with = "raddle_model::bytes")]
        bytes: Vec<u8>,
    },
    /// In a container: the command has read this much of its standard input.
    InputTaken {
        /// Number of bytes.
        bytes: usize,
    },
    /// The attempt is over, and none of its processes is left.
    Done(Box<ExecResult>),
}

/// Result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecResult {
    /// How the attempt ended.
    pub exit: ExitStatus,
    /// Whether the runner sent SIGKILL.
    pub killed: bool,
    /// Resources that the attempt used.
    pub usage: ResourceUsage,
    /// Total bytes written to standard output.
    pub stdout_bytes: u64,
    /// Total bytes written to standard error.
    pub stderr_bytes: u64,
    /// The end of standard output that was not sent as [`RunnerEvent::Output`].
    #[serde(with = "raddle_model::bytes")]
    pub stdout: Vec<u8>,
    /// The end of standard error that was not sent as [`RunnerEvent::Output`].
    #[serde(with = "raddle_model::bytes")]
    pub stderr: Vec<u8>,
    /// The end of a function's reply that was not sent as [`RunnerEvent::Output`].
    #[serde(with = "raddle_model::bytes")]
    pub reply: Vec<u8>,
    /// When the command started. `None` if it could not be started.
    pub started_at: Option<Timestamp>,
    /// When the attempt was over.
    pub ended_at: Timestamp,
}

impl ExecResult {
    /// Result of an attempt whose command never ran.
    pub fn not_started(exit: ExitStatus) -> Self {
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

/// A stream that an attempt writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OutputChannel {
    /// File descriptor 1.
    Stdout,
    /// File descriptor 2.
    Stderr,
    /// Reply of a function, separate from what it prints.
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
            ..ExecResult::not_started(ExitStatus::NotFound {
                message: "command not found: x".into(),
            })
        }
    }

    #[test]
    fn round_trips_messages() {
        let request = request();
        let start = encode(&ToRunner::Start(Cow::Borrowed(&request)));
        assert!(start.len() < 11_000, "{}", start.len());
        let mut decoder = Decoder::new(MAX_TO_RUNNER);
        decoder.push(&start);
        decoder.push(&encode(&ToRunner::Command(RunnerCommand::Resume)));
        assert_eq!(
            decoder.next().unwrap(),
            Some(ToRunner::Start(Cow::Owned(request)))
        );
        assert_eq!(
            decoder.next().unwrap(),
            Some(ToRunner::Command(RunnerCommand::Resume))
        );
        let output = RunnerEvent::Output {
            stream: OutputChannel::Stderr,
            bytes: vec![0, 0xff],
        };
        let mut decoder = Decoder::new(MAX_FROM_RUNNER);
        for event in [
            RunnerEvent::Started { pid: 77 },
            output,
            RunnerEvent::Done(Box::new(done())),
        ] {
            decoder.push(&encode(&event));
            assert_eq!(decoder.next().unwrap(), Some(event));
        }
    }

    #[test]
    fn refuses_a_request_with_unknown_fields() {
        let mut decoder = Decoder::new(MAX_TO_RUNNER);
        decoder.push(&encode(&std::collections::BTreeMap::from([(
            "Start",
            std::collections::BTreeMap::from([("new", 1)]),
        )])));
        assert!(decoder.next::<ToRunner<'_>>().is_err());
    }

    proptest! {
        #[test]
        fn never_panics_on_any_bytes(at in 0usize..200, bytes: Vec<u8>) {
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
