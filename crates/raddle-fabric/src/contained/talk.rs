//! Talking to process 1 of a container, from its first word to its last.

use std::{
    future::Future,
    io::{self, Read, Write},
    pin::Pin,
    thread,
};

use bollard::container::{AttachContainerResults, LogOutput};
use futures_util::StreamExt;
use raddle_exec::contained::{BEAT, Ended, FromInit, PIECE, ToInit, WINDOW};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    time::interval,
};

use super::Charge;

/// What the runner sends.
pub(super) struct Signals {
    terminate: Signal,
    pause: Signal,
    resume: Signal,
}

/// The standard input of a leash behind its charge. A thread reads it, since nothing else can.
pub(super) type Input = mpsc::Receiver<Vec<u8>>;

/// A few pieces on their way to who is waiting for them, or not.
const AHEAD: usize = 4;

impl Signals {
    /// From here on they are heard. Before, they end or stop the process, which has done nothing yet.
    pub(super) fn catch() -> io::Result<Self> {
        let pause = SignalKind::from_raw(rustix::process::Signal::TSTP.as_raw());
        let resume = SignalKind::from_raw(rustix::process::Signal::CONT.as_raw());
        Ok(Self { terminate: signal(SignalKind::terminate())?, pause: signal(pause)?, resume: signal(resume)? })
    }

    async fn next(&mut self) -> ToInit {
        tokio::select! {
            _ = self.terminate.recv() => ToInit::Terminate,
            _ = self.pause.recv() => ToInit::Pause,
            _ = self.resume.recv() => ToInit::Resume,
        }
    }
}

/// Reads the charge, and has the rest read.
pub(super) fn listen() -> io::Result<(Charge, Input)> {
    let mut stdin = io::stdin().lock();
    let charge = Charge::read(&mut stdin)?;
    drop(stdin);
    let (send, input) = mpsc::channel(AHEAD);
    // Left behind when the command is over before its input is.
    thread::Builder::new().name("stdin".into()).spawn(move || {
        let mut stdin = io::stdin().lock();
        loop {
            let mut piece = vec![0; PIECE];
            match stdin.read(&mut piece) {
                Ok(0) => return,
                Ok(len) => {
                    piece.truncate(len);
                    if send.blocking_send(piece).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    })?;
    Ok((charge, input))
}

/// Has process 1 run what is to be run, and passes on what both sides say. `start` starts the container. The result is its last word, or
/// nothing if there was none.
pub(super) async fn talk<E>(
    attached: AttachContainerResults,
    charge: &Charge,
    mut input: Input,
    signals: &mut Signals,
    start: impl Future<Output = Result<(), E>>,
) -> Result<Option<Ended>, E> {
    let AttachContainerResults { output, input: to_init } = attached;
    let mut said = Outgoing { to_init, bytes: Vec::new() };
    said.say(&ToInit::Begin(Box::new(charge.begin.clone())));
    start.await?;
    // Each is what the command has taken of at most a window.
    let (tell, mut taken) = mpsc::unbounded_channel();
    let mut heard = tokio::spawn(hear(output, tell));
    let (mut on_its_way, mut has_more) = (0, charge.begin.has_input);
    let mut beat = interval(BEAT);
    loop {
        tokio::select! {
            ended = &mut heard => return Ok(ended.unwrap_or(None)),
            Some(count) = taken.recv() => on_its_way -= count.min(on_its_way),
            piece = input.recv(), if has_more && on_its_way < WINDOW => match piece {
                Some(piece) => {
                    on_its_way += piece.len();
                    said.say(&ToInit::Input(piece));
                }
                None => {
                    has_more = false;
                    said.say(&ToInit::InputEnds);
                }
            },
            word = signals.next() => said.say(&word),
            _ = beat.tick() => said.say(&ToInit::Beat),
            () = said.send(), if !said.bytes.is_empty() => {}
        }
    }
}

/// What is on its way to process 1.
struct Outgoing {
    to_init: Pin<Box<dyn AsyncWrite + Send>>,
    bytes: Vec<u8>,
}

impl Outgoing {
    fn say(&mut self, word: &ToInit) {
        word.put(&mut self.bytes);
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

type Output = Pin<Box<dyn futures_util::Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>;

/// Passes on what the command writes, and returns the last word, if there is one. What process 1 writes to its standard error is a complaint.
async fn hear(mut output: Output, taken: mpsc::UnboundedSender<usize>) -> Option<Ended> {
    let (out, written) = mpsc::channel(AHEAD);
    let writer = thread::Builder::new().name("output".into()).spawn(move || write(written)).ok()?;
    let (mut incoming, mut last) = (Vec::new(), None);
    'listening: while let Some(Ok(word)) = output.next().await {
        match word {
            LogOutput::StdOut { message } => incoming.extend_from_slice(&message),
            LogOutput::StdErr { message } => _ = out.send((Stream::Stderr, message.to_vec())).await,
            LogOutput::StdIn { .. } | LogOutput::Console { .. } => {}
        }
        loop {
            match FromInit::take(&mut incoming) {
                Ok(Some(FromInit::Stdout(bytes))) => _ = out.send((Stream::Stdout, bytes)).await,
                Ok(Some(FromInit::Stderr(bytes))) => _ = out.send((Stream::Stderr, bytes)).await,
                Ok(Some(FromInit::Taken(count))) => _ = taken.send(count as usize),
                Ok(Some(FromInit::Ended(ended))) => last = Some(*ended),
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

#[derive(Clone, Copy)]
enum Stream {
    Stdout,
    Stderr,
}

/// Writes for as long as the runner takes it.
fn write(mut written: mpsc::Receiver<(Stream, Vec<u8>)>) {
    while let Some((stream, bytes)) = written.blocking_recv() {
        let _ = match stream {
            Stream::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(&bytes).and_then(|()| stdout.flush())
            }
            Stream::Stderr => io::stderr().lock().write_all(&bytes),
        };
    }
}
