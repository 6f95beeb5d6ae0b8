//! Talking to process 1 of a container, from its first word to its last.

use std::{
    borrow::Cow,
    future::Future,
    io::{self, Read, Write},
    pin::Pin,
    thread,
    time::Duration,
};

use bollard::container::{AttachContainerResults, LogOutput};
use futures_util::StreamExt;
use raddle_model::{
    Limits,
    frame::{self, Decoder},
};
use raddle_runner::{
    ExecRequest, ExecResult, MAX_FROM_RUNNER, OutputChannel, RunnerCommand, RunnerEvent, ToRunner,
    container::{HEARTBEAT_INTERVAL, INPUT_WINDOW, VERSION},
};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    time::interval,
};

use super::ContainerParams;

/// What the runner sends.
pub(super) struct RunnerSignals {
    terminate: Signal,
    pause: Signal,
    resume: Signal,
}

/// A few pieces of output on their way to the runner.
const AHEAD: usize = 4;
/// How long a command has after SIGTERM, as process 1 sees it. The runner outside knows better, and ends the container when that is over.
const GRACE: Duration = Duration::from_secs(100 * 365 * 86_400);

impl RunnerSignals {
    /// From here on they are heard. Before, they end or stop the process, which has done nothing yet.
    pub(super) fn catch() -> io::Result<Self> {
        let pause = SignalKind::from_raw(rustix::process::Signal::TSTP.as_raw());
        let resume = SignalKind::from_raw(rustix::process::Signal::CONT.as_raw());
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            pause: signal(pause)?,
            resume: signal(resume)?,
        })
    }

    async fn next(&mut self) -> RunnerCommand {
        tokio::select! {
            _ = self.terminate.recv() => RunnerCommand::Stop,
            _ = self.pause.recv() => RunnerCommand::Pause,
            _ = self.resume.recv() => RunnerCommand::Resume,
        }
    }
}

/// Reads what the runner was given for its standard input.
pub(super) fn read_charge() -> io::Result<ContainerParams> {
    // The runner, whose input it was, has bounded it.
    let mut decoder = Decoder::new(usize::MAX);
    io::stdin().lock().read_to_end(decoder.buffer())?;
    decoder
        .next()
        .map_err(io::Error::other)?
        .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// What process 1 is asked to run: limits but that of open files are the container's, and time is the runner's outside. Its standard input follows.
fn inside(request: &ExecRequest) -> ExecRequest {
    ExecRequest {
        stdin: request.stdin.as_ref().map(|_| Vec::new()),
        timeout: None,
        limits: Limits {
            max_fds: request.limits.max_fds,
            ..Limits::default()
        },
        grace: GRACE,
        program: request.program.clone(),
        env: request.env.clone(),
        name: request.name.clone(),
        cwd: None,
        sandbox: None,
        ..*request
    }
}

/// Has process 1 run what is to be run, and passes on what both sides say. `start` starts the container. The result is its last word, or
/// nothing if there was none.
pub(super) async fn talk<E>(
    attached: AttachContainerResults,
    request: &ExecRequest,
    signals: &mut RunnerSignals,
    start: impl Future<Output = Result<(), E>>,
) -> Result<Option<ExecResult>, E> {
    let AttachContainerResults {
        output,
        input: to_init,
    } = attached;
    let mut said = OutgoingFrames {
        to_init,
        bytes: Vec::new(),
    };
    said.say(&ToRunner::Version(VERSION));
    said.say(&ToRunner::Start(Cow::Owned(inside(request))));
    start.await?;
    // Each is what the command has taken of at most a window.
    let (tell, mut taken) = mpsc::unbounded_channel();
    let mut heard = tokio::spawn(hear(output, tell));
    let (mut on_its_way, mut input) = (0, request.stdin.as_deref());
    let mut heartbeat = interval(HEARTBEAT_INTERVAL);
    loop {
        if let Some(rest) = input
            && on_its_way < INPUT_WINDOW
        {
            let (piece, rest) = rest.split_at(rest.len().min(INPUT_WINDOW - on_its_way));
            on_its_way += piece.len();
            said.say(&ToRunner::Input(piece.to_vec()));
            input = (!rest.is_empty()).then_some(rest);
            if input.is_none() {
                said.say(&ToRunner::InputEnds);
            }
        }
        tokio::select! {
            done = &mut heard => return Ok(done.unwrap_or(None)),
            Some(bytes) = taken.recv() => on_its_way -= on_its_way.min(bytes),
            order = signals.next() => said.say(&ToRunner::Command(order)),
            _ = heartbeat.tick() => said.say(&ToRunner::Heartbeat),
            () = said.send(), if !said.bytes.is_empty() => {}
        }
    }
}

/// What is on its way to process 1.
struct OutgoingFrames {
    to_init: Pin<Box<dyn AsyncWrite + Send>>,
    bytes: Vec<u8>,
}

impl OutgoingFrames {
    fn say(&mut self, message: &ToRunner<'_>) {
        frame::encode_into(&mut self.bytes, message);
    }

    /// Sends what is taken at once. Cancel-safe: what was not written is still there.
    async fn send(&mut self) {
        match self.to_init.write(&self.bytes).await {
            Ok(len) if len > 0 => drop(self.bytes.drain(..len)),
            // The container has ended, or the engine: the other direction tells which.
            _ => self.bytes.clear(),
        }
        let _ = self.to_init.flush().await;
    }
}

type Output =
    Pin<Box<dyn futures_util::Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>;

/// Passes on what the command writes, and returns the last word, if there is one. What process 1 writes to its standard error is a complaint.
async fn hear(mut output: Output, taken: mpsc::UnboundedSender<usize>) -> Option<ExecResult> {
    let (out, written) = mpsc::channel(AHEAD);
    let writer = thread::Builder::new()
        .name("output".into())
        .spawn(move || write(written))
        .ok()?;
    let (mut incoming, mut last) = (Decoder::new(MAX_FROM_RUNNER), None);
    'listening: while let Some(Ok(word)) = output.next().await {
        match word {
            LogOutput::StdOut { message } => incoming.push(&message),
            LogOutput::StdErr { message } => {
                _ = out.send((OutputChannel::Stderr, message.to_vec())).await
            }
            LogOutput::StdIn { .. } | LogOutput::Console { .. } => {}
        }
        loop {
            match incoming.next() {
                Ok(Some(RunnerEvent::Output { stream, bytes })) => {
                    _ = out.send((stream, bytes)).await
                }
                Ok(Some(RunnerEvent::InputTaken { bytes })) => _ = taken.send(bytes),
                Ok(Some(RunnerEvent::Done(mut done))) => {
                    for (stream, rest) in [
                        (OutputChannel::Stdout, &mut done.stdout),
                        (OutputChannel::Stderr, &mut done.stderr),
                    ] {
                        let _ = out.send((stream, std::mem::take(rest))).await;
                    }
                    last = Some(*done);
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                // Whoever that is, it is not ours.
                Err(_) => break 'listening,
            }
        }
    }
    drop(out);
    // All of it is with the runner before the end is told.
    let _ = tokio::task::spawn_blocking(move || writer.join()).await;
    last
}

/// Writes for as long as the runner takes it.
fn write(mut written: mpsc::Receiver<(OutputChannel, Vec<u8>)>) {
    while let Some((stream, bytes)) = written.blocking_recv() {
        let _ = match stream {
            OutputChannel::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(&bytes).and_then(|()| stdout.flush())
            }
            OutputChannel::Stderr | OutputChannel::Reply => io::stderr().lock().write_all(&bytes),
        };
    }
}
