//! `Rig`: a runner for a test, and a search for every process that the test has started.

use std::{
    fs,
    future::Future,
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use raddle_model::{ExitStatus, Tid};
use raddle_runner::{
    ExecRequest, ExecResult, ExecTarget, OutputChannel, Runner, RunnerEvent, RunnerLost,
    RunnerOptions,
};

/// Maximum duration of any single step of a test.
pub(crate) const DEADLINE: Duration = Duration::from_secs(90);
const MARK: &str = "RADDLE_TEST_MARK";

/// A runner whose commands carry a variable that all their descendants inherit.
pub(crate) struct Rig {
    pub(crate) runner: Runner,
    mark: String,
}

/// Result of an attempt.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) done: ExecResult,
    pub(crate) pid: Option<u32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) reply: String,
}

pub(crate) fn options() -> RunnerOptions {
    RunnerOptions {
        program: env!("CARGO_BIN_EXE_raddle-exec-runner").into(),
        title_idle: "raddle-test:idle".into(),
        ..RunnerOptions::default()
    }
}

pub(crate) fn mark() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!(
        "{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future)
        .await
        .expect("took longer than any step may")
}

/// Waits until `done` returns true.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < DEADLINE, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) fn code(code: i32) -> ExitStatus {
    ExitStatus::Code { code }
}

impl Rig {
    pub(crate) async fn new() -> Self {
        Self::with(&options()).await
    }

    pub(crate) async fn with(options: &RunnerOptions) -> Self {
        Self {
            runner: Runner::spawn(options).await.unwrap(),
            mark: mark(),
        }
    }

    pub(crate) fn command(&self, argv: &[&str]) -> ExecRequest {
        ExecRequest {
            env: vec![(MARK.into(), self.mark.clone())],
            grace: Duration::from_secs(20),
            timeout_grace: Duration::from_secs(20),
            ..ExecRequest::command(
                Tid::from_u64(1_763_000_123_456_789_012).unwrap(),
                "test",
                argv.iter().copied(),
            )
        }
    }

    pub(crate) fn function(&self, name: &str, input: &str) -> ExecRequest {
        ExecRequest {
            program: ExecTarget::Function(name.into()),
            stdin: Some(input.into()),
            ..self.command(&[])
        }
    }

    pub(crate) fn sh(&self, script: &str) -> ExecRequest {
        self.command(&["sh", "-c", script])
    }

    pub(crate) async fn start(&mut self, request: &ExecRequest) {
        within(self.runner.start(request)).await.unwrap();
    }

    pub(crate) async fn next(&mut self) -> Result<RunnerEvent, RunnerLost> {
        within(self.runner.next()).await
    }

    /// Waits for `Started`.
    pub(crate) async fn started(&mut self) -> u32 {
        match self.next().await.unwrap() {
            RunnerEvent::Started { pid } => pid,
            other => panic!("not started but {other:?}"),
        }
    }

    /// Starts a command and waits until it has written its first line.
    pub(crate) async fn start_until_output(&mut self, request: &ExecRequest) -> u32 {
        self.start(request).await;
        let pid = self.started().await;
        match self.next().await.unwrap() {
            RunnerEvent::Output { .. } => pid,
            other => panic!("no output but {other:?}"),
        }
    }

    /// Collects all events until the end of the attempt.
    pub(crate) async fn end(&mut self) -> Outcome {
        let (mut pid, mut stdout, mut stderr, mut reply) =
            (None, Vec::new(), Vec::new(), Vec::new());
        loop {
            match self.next().await.unwrap() {
                RunnerEvent::Started { pid: started } => pid = Some(started),
                RunnerEvent::Output {
                    stream: OutputChannel::Stdout,
                    bytes,
                } => stdout.extend(bytes),
                RunnerEvent::Output {
                    stream: OutputChannel::Stderr,
                    bytes,
                } => stderr.extend(bytes),
                RunnerEvent::Output {
                    stream: OutputChannel::Reply,
                    bytes,
                } => reply.extend(bytes),
                RunnerEvent::Done(done) => {
                    stdout.extend_from_slice(&done.stdout);
                    stderr.extend_from_slice(&done.stderr);
                    reply.extend_from_slice(&done.reply);
                    let reply = String::from_utf8(reply).unwrap();
                    // `Done` means that none of its processes is left.
                    assert_eq!(self.leftover_processes(), Vec::<String>::new());
                    return Outcome {
                        done: *done,
                        pid,
                        stdout,
                        stderr,
                        reply,
                    };
                }
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    pub(crate) async fn run(&mut self, request: &ExecRequest) -> Outcome {
        self.start(request).await;
        self.end().await
    }

    /// Live processes of this rig's commands.
    pub(crate) fn leftover_processes(&self) -> Vec<String> {
        alive(&self.mark)
    }

    pub(crate) fn mark(&self) -> &str {
        &self.mark
    }

    /// Closes the runner and asserts that no process is left.
    pub(crate) async fn finish(self) {
        let pid = self.runner.pid();
        within(self.runner.close()).await;
        assert!(
            !Path::new(&format!("/proc/{pid}")).exists(),
            "the runner is still running"
        );
        assert_eq!(alive(&self.mark), Vec::<String>::new());
    }
}

/// Processes with this mark in their environment, as pid and command line.
pub(crate) fn alive(mark: &str) -> Vec<String> {
    let entry = format!("{MARK}={mark}");
    let is_marked = |pid: &str| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ
            .split(|b| *b == 0)
            .any(|variable| variable == entry.as_bytes())
    };
    let pids = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let pids = pids.filter(|name| name.bytes().all(|b| b.is_ascii_digit()));
    pids.filter(|pid| is_marked(pid))
        .map(|pid| format!("{pid} {}", cmdline(&pid)))
        .collect()
}

/// Command line of a process from /proc.
pub(crate) fn cmdline(pid: &str) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default())
        .into_owned()
}

/// State letter of a process. `None` if it is gone.
pub(crate) fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 2..].chars().next()
}
