//! Messages between the container supervisor and process 1 of its container.

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

/// Signals that the runner sends as commands.
pub(super) struct RunnerSignals {
    terminate: Signal,
    pause: Signal,
    resume: Signal,
}

/// Pieces of output that may be queued for the runner.
const OUTPUT_QUEUE: usize = 4;
/// The grace period that process 1 knows: unlimited. The runner ends the container after the real
/// one.
const GRACE: Duration = Duration::from_secs(100 * 365 * 86_400);

impl RunnerSignals {
    /// Installs the handlers. Earlier signals end or stop the process, which has done nothing yet.
    pub(super) fn install() -> io::Result<Self> {
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

/// Reads the parameters from stdin.
pub(super) fn read_params() -> io::Result<ContainerParams> {
    // The runner has limited the size.
    let mut decoder = Decoder::new(usize::MAX);
    io::stdin().lock().read_to_end(decoder.buffer())?;
    decoder
        .next()
        .map_err(io::Error::other)?
        .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// The request for process 1. The container enforces all limits except open files, the runner the
/// timeout. Stdin follows in separate messages.
fn init_request(request: &ExecRequest) -> ExecRequest {
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

/// Runs the request in process 1, and relays messages in both directions. `start` starts the
/// container. Returns the result, if process 1 sent one.
pub(super) async fn run_in_container<E>(
    attached: AttachContainerResults,
    request: &ExecRequest,
    signals: &mut RunnerSignals,
    start: impl Future<Output = Result<(), E>>,
) -> Result<Option<ExecResult>, E> {
    let AttachContainerResults {
        output,
        input: to_init,
    } = attached;
    let mut frames = OutgoingFrames {
        to_init,
        bytes: Vec::new(),
    };
    frames.push(&ToRunner::Version(VERSION));
    frames.push(&ToRunner::Start(Cow::Owned(init_request(request))));
    start.await?;
    // Each item is how much of the input window the command has consumed.
    let (consumed_tx, mut consumed) = mpsc::unbounded_channel();
    let mut reader = tokio::spawn(forward_output(output, consumed_tx));
    let (mut in_flight, mut input) = (0, request.stdin.as_deref());
    let mut heartbeat = interval(HEARTBEAT_INTERVAL);
    loop {
        if let Some(rest) = input
            && in_flight < INPUT_WINDOW
        {
            let (piece, rest) = rest.split_at(rest.len().min(INPUT_WINDOW - in_flight));
            in_flight += piece.len();
            frames.push(&ToRunner::Input(piece.to_vec()));
            input = (!rest.is_empty()).then_some(rest);
            if input.is_none() {
                frames.push(&ToRunner::InputEnds);
            }
        }
        tokio::select! {
            done = &mut reader => return Ok(done.unwrap_or(None)),
            Some(bytes) = consumed.recv() => in_flight -= in_flight.min(bytes),
            command = signals.next() => frames.push(&ToRunner::Command(command)),
            _ = heartbeat.tick() => frames.push(&ToRunner::Heartbeat),
            () = frames.send(), if !frames.bytes.is_empty() => {}
        }
    }
}

/// Encoded messages to process 1.
struct OutgoingFrames {
    to_init: Pin<Box<dyn AsyncWrite + Send>>,
    bytes: Vec<u8>,
}

impl OutgoingFrames {
    fn push(&mut self, message: &ToRunner<'_>) {
        frame::encode_into(&mut self.bytes, message);
    }

    /// Writes what the socket accepts. Cancel-safe: the rest stays queued.
    async fn send(&mut self) {
        match self.to_init.write(&self.bytes).await {
            Ok(len) if len > 0 => drop(self.bytes.drain(..len)),
            // The container or the engine has ended. The reading side finds out which.
            _ => self.bytes.clear(),
        }
        let _ = self.to_init.flush().await;
    }
}

type Output =
    Pin<Box<dyn futures_util::Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>;

/// Forwards the output of the command, and returns the result. Stderr of process 1 itself is an
/// error message.
async fn forward_output(
    mut output: Output,
    consumed: mpsc::UnboundedSender<usize>,
) -> Option<ExecResult> {
    let (out, written) = mpsc::channel(OUTPUT_QUEUE);
    let writer = thread::Builder::new()
        .name("output".into())
        .spawn(move || write_output(written))
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
                Ok(Some(RunnerEvent::InputTaken { bytes })) => _ = consumed.send(bytes),
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
                // Process 1 is not our program.
                Err(_) => break 'listening,
            }
        }
    }
    drop(out);
    // All output must reach the runner before the result.
    let _ = tokio::task::spawn_blocking(move || writer.join()).await;
    last
}

/// Writes output until the runner closes the pipe.
fn write_output(mut written: mpsc::Receiver<(OutputChannel, Vec<u8>)>) {
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
