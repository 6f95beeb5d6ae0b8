//! What a worker and its runner say to each other, as values. [`crate::frame`] gives them their form on the wire.

use std::time::Duration;

use jiff::Timestamp;
use raddle_core::{Exit, Limits, Tid, Usage, spec::Network};
use serde::{Deserialize, Serialize};

/// One attempt to be run.
#[derive(Clone, Debug)]
pub struct Request {
    /// The task.
    pub tid: Tid,
    /// The number of the attempt.
    pub attempt: u32,
    /// The task's name, for the process title.
    pub name: String,
    /// What to run.
    pub program: Program,
    /// Set on top of the environment that the runner inherited from its worker.
    pub env: Vec<(String, String)>,
    /// The folder to run in; the worker's own when absent.
    pub cwd: Option<String>,
    /// Written to a command's standard input, which is then closed, or handed to a function; at most 1 GiB, which the runner holds in
    /// memory. Without it the input is empty.
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
    pub sandbox: Option<Sandbox>,
}

impl Request {
    /// The first attempt to run a command: where its worker is, with nothing to read and no bounds, and killed at once when it is to end.
    pub fn command(tid: Tid, name: impl Into<String>, argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            tid,
            attempt: 1,
            name: name.into(),
            program: Program::Command(argv.into_iter().map(Into::into).collect()),
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
pub struct Sandbox {
    /// What is reached of the network.
    pub network: Network,
    /// Whether it may lack what the system refuses. Else the attempt fails there.
    pub fallback: bool,
    /// A folder of the host that is seen inside as [`HANDLER`], cannot be written, and is begun in.
    pub folder: Option<String>,
}

/// Where a sandbox shows the one folder of the host that it may show.
pub const HANDLER: &str = "/handler";

/// What an attempt runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    /// A program and its arguments. One without a slash is searched in the `PATH` of the attempt's environment.
    Command(Vec<String>),
    /// A function of the runner's own program, by the name that its [`crate::Call`] knows. It runs in a process that is forked for it from one that has
    /// never heard of a task, and so has nothing in it but what every run begins with.
    Function(String),
    /// The runner's own program with these arguments, which keeps the command somewhere else. It answers with how that ended
    /// ([`Stream::Reply`]), and is paused by SIGTSTP, so that it can pause what it keeps.
    Keeper(Vec<String>),
}

/// An order about the attempt that is running. One that comes when nothing runs is ignored: it crossed the attempt's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// SIGTERM to the process group; SIGKILL to the whole tree after the grace, or when asked a second time.
    Stop,
    /// SIGKILL to the whole tree.
    Kill,
    /// SIGSTOP to the whole tree.
    Pause,
    /// SIGCONT to the whole tree.
    Resume,
}

/// What a runner tells its worker about an attempt: `Started`, any number of `Output`, then one `Done`. A command that could
/// not be started has no `Started`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Notice {
    /// The command runs.
    Started {
        /// Its process id.
        pid: u32,
    },
    /// It wrote something.
    Output {
        /// Where to.
        stream: Stream,
        /// What, in the order it was written to this stream.
        bytes: Vec<u8>,
    },
    /// The attempt is over, and no process of it is left.
    Done(Box<Done>),
}

/// The account of an attempt.
#[derive(Clone, Debug)]
pub struct Done {
    /// How it ended.
    pub exit: Exit,
    /// What it used.
    pub usage: Usage,
    /// All that was written to standard output.
    pub stdout_bytes: u64,
    /// All that was written to standard error.
    pub stderr_bytes: u64,
    /// The end of standard output, not sent as [`Notice::Output`].
    pub stdout: Vec<u8>,
    /// The end of standard error, not sent as [`Notice::Output`].
    pub stderr: Vec<u8>,
    /// The end of what a function answered, not sent as [`Notice::Output`].
    pub reply: Vec<u8>,
    /// When the command began to run; absent when it could not be started.
    pub started_at: Option<Timestamp>,
    /// When it was over.
    pub ended_at: Timestamp,
}

impl Done {
    /// The account of an attempt whose command never ran.
    pub(crate) fn without_start(exit: Exit) -> Self {
        Self {
            exit,
            usage: Usage::default(),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// File descriptor 1.
    Stdout,
    /// File descriptor 2.
    Stderr,
    /// What a function answers, apart from what it prints.
    Reply,
}
