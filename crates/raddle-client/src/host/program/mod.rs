//! A host of a Rust program: the program itself, started again, with one event loop.
//!
//! Messages and `async fn` routines share the loop, so that a `ping` shows whether a routine blocks
//! it. Plain functions run on blocking threads. The worker decides what begins and how much at
//! once; a host that loses its worker exits.

mod attempt;
mod outbox;

use std::{
    collections::HashMap,
    io,
    os::fd::{FromRawFd, OwnedFd},
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use raddle_model::{
    host::{
        AttemptRef, FromHost, HostDecoder, HostHello, HostLog, HostRoutine, PROTOCOL, RoutineKind,
        StartAttempt, StartupFailed, ToHost,
    },
    reply::LogLevel,
    routine::{RoutineFn, Routines, run_shutdown, run_startup},
    spec::Isolation,
};
use tokio::{
    net::UnixStream,
    sync::Notify,
    time::{Instant, timeout_at},
};

use self::attempt::RunningAttempt;
pub(crate) use self::outbox::Outbox;

/// The argument of a program that is started as a host.
pub const ARGUMENT: &str = "__host";
/// Tells a host which queues its worker serves, separated by commas.
pub const QUEUES_VARIABLE: &str = "RADDLE_QUEUES";
/// The descriptor of the connection to the worker.
const SOCKET: i32 = 3;
/// The exit code of a host whose worker is not there, or does not speak the protocol.
const FAULT: i32 = 125;

/// Runs a host and exits, if that is what this process was started for.
pub fn host_main_if_asked() {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == ARGUMENT)
    {
        process::exit(main());
    }
}

fn main() -> i32 {
    let complain = |error: &dyn std::fmt::Display| {
        eprintln!("raddle: cannot run as a host, which only a worker can start: {error}");
        FAULT
    };
    let socket = match take_socket() {
        Ok(socket) => socket,
        Err(error) => return complain(&error),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return complain(&error),
    };
    let code = runtime.block_on(async {
        match serve(socket).await {
            Ok(code) => code,
            Err(error) => complain(&error),
        }
    });
    // Threads of plain functions may never end.
    runtime.shutdown_background();
    code
}

fn take_socket() -> io::Result<std::os::unix::net::UnixStream> {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::metadata(format!("/proc/self/fd/{SOCKET}"))
        .is_ok_and(|found| found.file_type().is_socket());
    if !is_socket {
        return Err(io::Error::other("descriptor 3 is not a socket"));
    }
    // SAFETY: the descriptor is open, and nothing else in this process has taken it: this is the
    // first thing that it does.
    let socket = unsafe { OwnedFd::from_raw_fd(SOCKET) };
    // Children of routines must not keep the connection open.
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The attempts of this host.
#[derive(Default)]
pub(super) struct Attempts {
    running: Mutex<HashMap<u64, RunningAttempt>>,
    ended: Notify,
}

impl Attempts {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, RunningAttempt>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn end(&self, id: u64) {
        self.lock().remove(&id);
        self.ended.notify_one();
    }
}

async fn serve(socket: std::os::unix::net::UnixStream) -> io::Result<i32> {
    let stream = Arc::new(UnixStream::from_std(socket)?);
    let outbox = Outbox::new(Arc::clone(&stream));
    let routines = Routines::of_this_program().map_err(io::Error::other)?;
    let shared = routines
        .names()
        .filter_map(|name| routines.get(name))
        .filter(|routine| routine.isolation == Isolation::Shared);
    let hello = HostHello {
        protocol: PROTOCOL,
        language: format!("rust, raddle {}", env!("CARGO_PKG_VERSION")),
        routines: shared
            .map(|routine| {
                let kind = kind_of(&routine.run);
                (routine.name.to_owned(), HostRoutine { kind })
            })
            .collect(),
        concurrency: None,
        threads: None,
        encodings: vec!["json".into(), "messagepack".into()],
    };
    outbox.send(&FromHost::Hello(hello), None);
    outbox.drain().await?;
    attempt::install_panic_hook();
    let mut reading = Reading {
        stream: Arc::clone(&stream),
        decoder: HostDecoder::default(),
    };
    let attempts = Arc::new(Attempts::default());
    let started = tokio::select! {
        started = run_startup() => started,
        // The worker sends nothing before `ready` but `ping` and `stop`.
        gone = reading.wait_for_end() => return gone.map(|()| 0),
    };
    if let Err(error) = started {
        let message = error.to_string();
        outbox.send(&FromHost::Failed(StartupFailed { message }), None);
        outbox.drain().await?;
        return Ok(1);
    }
    outbox.send(&FromHost::Ready {}, None);
    outbox.drain().await?;
    let writing = tokio::spawn(Arc::clone(&outbox).write_all());
    let stop = loop {
        match reading.next_batch(&outbox).await? {
            Some(batch) => {
                if let Some(timeout) = handle(batch, &routines, &attempts, &outbox).await? {
                    break Some(timeout);
                }
            }
            None => break None,
        }
    };
    let Some(within) = stop else {
        // The worker is gone, and its runner kills this process.
        return Ok(0);
    };
    let deadline = Instant::now() + within;
    let idle = async {
        while !attempts.lock().is_empty() {
            attempts.ended.notified().await;
        }
    };
    let _ = timeout_at(deadline, idle).await;
    let failures = timeout_at(deadline, run_shutdown())
        .await
        .unwrap_or_default();
    for message in failures {
        let line = HostLog {
            id: None,
            level: LogLevel::Error,
            message,
            fields: serde_json::Map::new(),
        };
        outbox.send(&FromHost::Log(line), None);
    }
    outbox.drain().await?;
    writing.abort();
    Ok(0)
}

fn kind_of(run: &RoutineFn) -> RoutineKind {
    match run {
        RoutineFn::Plain(_) => RoutineKind::Plain,
        RoutineFn::Async(_) => RoutineKind::Async,
        RoutineFn::Stream(_) => RoutineKind::Stream,
    }
}

type Received = (ToHost<'static>, Option<Vec<u8>>);

/// The reading side of the connection.
struct Reading {
    stream: Arc<UnixStream>,
    decoder: HostDecoder,
}

impl Reading {
    /// All messages that have arrived; `None` when the worker is gone.
    async fn next_batch(&mut self, outbox: &Outbox) -> io::Result<Option<Vec<Received>>> {
        loop {
            let mut batch = Vec::new();
            while let Some((message, payload)) =
                self.decoder.next_message().map_err(io::Error::other)?
            {
                match message {
                    ToHost::Ping(ping) => outbox.send(&FromHost::Pong(ping), None),
                    message => batch.push((message, payload)),
                }
            }
            if !batch.is_empty() {
                return Ok(Some(batch));
            }
            self.stream.readable().await?;
            self.decoder.buffer().reserve(64 * 1024);
            match self.stream.try_read_buf(self.decoder.buffer()) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns when the worker asks to stop, or is gone, during start-up.
    async fn wait_for_end(&mut self) -> io::Result<()> {
        let quiet = Outbox::new(Arc::clone(&self.stream));
        while let Some(batch) = self.next_batch(&quiet).await? {
            quiet.drain().await?;
            if batch
                .iter()
                .any(|(message, _)| matches!(message, ToHost::Stop(_)))
            {
                break;
            }
        }
        Ok(())
    }
}

/// Acts on messages. Returns how long this host has to shut down, if it was asked to.
async fn handle(
    batch: Vec<Received>,
    routines: &Routines,
    attempts: &Arc<Attempts>,
    outbox: &Arc<Outbox>,
) -> io::Result<Option<Duration>> {
    let mut starts: Vec<(StartAttempt<'static>, Option<Vec<u8>>)> = Vec::new();
    let mut stop = None;
    for (message, payload) in batch {
        match message {
            ToHost::Start(start) => {
                outbox.send(&FromHost::Ack(AttemptRef { id: start.id }), None);
                starts.push((start, payload));
            }
            ToHost::Cancel(cancel) => {
                // It may be in this batch.
                start_all(&mut starts, routines, attempts, outbox).await?;
                let running = attempts.lock().get(&cancel.id).cloned();
                if let Some(running) = running {
                    running.cancel(cancel.force);
                }
            }
            ToHost::Stop(asked) => stop = Some(Duration::from_millis(asked.timeout_ms)),
            _ => {}
        }
    }
    start_all(&mut starts, routines, attempts, outbox).await?;
    Ok(stop)
}

async fn start_all(
    starts: &mut Vec<(StartAttempt<'static>, Option<Vec<u8>>)>,
    routines: &Routines,
    attempts: &Arc<Attempts>,
    outbox: &Arc<Outbox>,
) -> io::Result<()> {
    if starts.is_empty() {
        return Ok(());
    }
    // If an attempt crashes this process, the worker must know which had begun.
    outbox.drain().await?;
    for (start, payload) in starts.drain(..) {
        attempt::start(
            start,
            payload.unwrap_or_default(),
            routines,
            attempts,
            outbox,
        );
    }
    Ok(())
}
