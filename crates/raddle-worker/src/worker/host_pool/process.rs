//! One host process: its runner and its connection.

use std::{io, sync::Arc, time::Duration};

use raddle_model::{
    ExitStatus, Limits, Tid,
    host::{FromHost, HostDecoder},
};
use raddle_runner::{
    ExecRequest, ExecTarget, LeaseDeadlinePage, OutputChannel, Runner, RunnerCommand, RunnerEvent,
    RunnerOptions,
};
use tokio::{net::UnixStream, sync::mpsc};

use super::core::{HostEvent, HostId};
use crate::host::{ARGUMENT, HostOptions, HostProgram};

/// The parameters for the start of a host.
#[derive(Clone)]
pub(super) struct HostContext {
    pub(super) runner: RunnerOptions,
    /// The worker, whose id is in the title.
    pub(super) worker: Tid,
    pub(super) env: Vec<(String, String)>,
    pub(super) options: Arc<HostOptions>,
    pub(super) lease: Arc<LeaseDeadlinePage>,
}

/// A message to a host process.
pub(super) enum HostCommand {
    Send(Vec<u8>),
    Kill,
}

/// News of a host process.
pub(super) enum HostNews {
    Event(HostEvent),
    /// It printed something.
    Output {
        host: HostId,
        stream: OutputChannel,
        bytes: Vec<u8>,
    },
}

/// Messages of hosts that may wait for the pool. A host that sends more has to wait.
pub(super) const NEWS: usize = 256;
const READ: usize = 64 * 1024;

/// Starts a host and drives it to its end.
pub(super) async fn run_host(
    host: HostId,
    context: HostContext,
    commands: mpsc::UnboundedReceiver<HostCommand>,
    news: mpsc::Sender<HostNews>,
) {
    let event = match start(&context).await {
        Ok((runner, stream)) => drive(host, runner, stream, commands, &news).await,
        Err(error) => HostEvent::not_spawned(host, &error),
    };
    let _ = news.send(HostNews::Event(event)).await;
}

async fn start(context: &HostContext) -> io::Result<(Runner, UnixStream)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let stream = UnixStream::from_std(ours)?;
    let options = RunnerOptions {
        lease_deadline: Some(Arc::clone(&context.lease)),
        ..context.runner.clone()
    };
    let mut runner = Runner::spawn_for_host(&options, theirs.into()).await?;
    let host = &context.options;
    let argv = match &host.program {
        HostProgram::Own => Vec::new(),
        HostProgram::Command(argv) => argv.clone(),
    };
    let request = ExecRequest {
        program: ExecTarget::Host {
            argv,
            argument: ARGUMENT.into(),
        },
        env: context.env.clone(),
        cwd: host.directory.clone(),
        limits: Limits::clone(&host.limits),
        grace: Duration::ZERO,
        ..ExecRequest::command(context.worker, &host.name, [""; 0])
    };
    runner
        .start(&request)
        .await
        .map_err(|gone| io::Error::other(gone.to_string()))?;
    Ok((runner, stream))
}

async fn drive(
    host: HostId,
    mut runner: Runner,
    stream: UnixStream,
    mut commands: mpsc::UnboundedReceiver<HostCommand>,
    news: &mpsc::Sender<HostNews>,
) -> HostEvent {
    let (mut decoder, mut outgoing, mut sent) = (HostDecoder::default(), Vec::new(), 0);
    let (mut is_open, mut is_writable) = (true, true);
    let tell = |event| news.send(HostNews::Event(event));
    loop {
        tokio::select! {
            biased;
            command = commands.recv() => match command {
                Some(HostCommand::Send(bytes)) if sent < outgoing.len() => outgoing.extend(bytes),
                Some(HostCommand::Send(bytes)) => {
                    (outgoing, sent) = (bytes, 0);
                    is_writable &= write(&stream, &outgoing, &mut sent);
                }
                // The pool is gone: so is the worker's interest.
                Some(HostCommand::Kill) | None => {
                    is_writable = false;
                    if runner.send(RunnerCommand::Kill).await.is_err() {
                        return lost(host, runner).await;
                    }
                    if commands.is_closed() && commands.is_empty() {
                        // The pool is gone, but the runner must still be reaped.
                        while !matches!(runner.next().await, Ok(RunnerEvent::Done(_)) | Err(_)) {}
                        runner.close().await;
                        return HostEvent::Exited { host, exit: ExitStatus::Killed };
                    }
                }
            },
            read = read_messages(&stream, &mut decoder), if is_open => match read {
                Ok(messages) => drop(tell(HostEvent::Messages { host, messages }).await),
                Err((messages, reason)) => {
                    (is_open, is_writable) = (false, false);
                    if !messages.is_empty() {
                        let _ = tell(HostEvent::Messages { host, messages }).await;
                    }
                    // A host that has exited says so by its end.
                    if let Some(reason) = reason {
                        let _ = tell(HostEvent::Broken { host, reason }).await;
                    }
                }
            },
            ready = stream.writable(), if is_writable && sent < outgoing.len() => {
                is_writable &= ready.is_ok() && write(&stream, &outgoing, &mut sent);
            }
            event = runner.next() => match event {
                Ok(RunnerEvent::Started { pid }) => drop(tell(HostEvent::Spawned { host, pid }).await),
                Ok(RunnerEvent::Output { stream, bytes }) => drop(news.send(HostNews::Output { host, stream, bytes }).await),
                Ok(RunnerEvent::Done(done)) => {
                    // The last messages of the host.
                    while is_open {
                        match tokio::time::timeout(Duration::from_millis(100), read_messages(&stream, &mut decoder)).await {
                            Ok(Ok(messages)) => drop(tell(HostEvent::Messages { host, messages }).await),
                            Ok(Err((messages, _))) => {
                                is_open = false;
                                let _ = tell(HostEvent::Messages { host, messages }).await;
                            }
                            Err(_) => is_open = false,
                        }
                    }
                    for (channel, bytes) in [(OutputChannel::Stdout, done.stdout), (OutputChannel::Stderr, done.stderr)] {
                        if !bytes.is_empty() {
                            let _ = news.send(HostNews::Output { host, stream: channel, bytes }).await;
                        }
                    }
                    runner.close().await;
                    return HostEvent::Exited { host, exit: done.exit };
                }
                Ok(_) => {}
                Err(_) => return lost(host, runner).await,
            },
        }
    }
}

/// The runner was killed, and the host with it.
async fn lost(host: HostId, runner: Runner) -> HostEvent {
    drop(runner);
    HostEvent::Exited {
        host,
        exit: ExitStatus::Killed,
    }
}

/// Writes what the socket takes. Returns whether the host is there.
fn write(stream: &UnixStream, bytes: &[u8], sent: &mut usize) -> bool {
    while *sent < bytes.len() {
        match stream.try_write(&bytes[*sent..]) {
            Ok(written) => *sent += written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            Err(_) => return false,
        }
    }
    true
}

type Messages = Vec<(FromHost, Option<Vec<u8>>)>;

/// The next messages. At the end of the connection, with what came before it, and the reason if the
/// host did not just exit.
async fn read_messages(
    stream: &UnixStream,
    decoder: &mut HostDecoder,
) -> Result<Messages, (Messages, Option<String>)> {
    let mut messages = Vec::new();
    loop {
        if stream.readable().await.is_err() {
            return Err((messages, None));
        }
        decoder.buffer().reserve(READ);
        match stream.try_read_buf(decoder.buffer()) {
            Ok(0) => return Err((messages, None)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => return Err((messages, None)),
        }
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return Err((messages, Some(error.to_string()))),
            }
        }
        if !messages.is_empty() {
            return Ok(messages);
        }
    }
}
