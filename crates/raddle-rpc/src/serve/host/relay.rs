//! The calls of a host: out as `start`, back as replies.
//!
//! The task that reads from the host also sends the replies, so that a call wakes no task on its
//! way back. Only the items of a stream go through the task of their call, which waits for the
//! credit of the caller.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use raddle_model::{
    Trace,
    host::{
        CancelAttempt, CancelReason, FromHost, HostDecoder, HostError, HostHello, HostLog,
        RoutineKind, StartAttempt, StreamCredit, ToHost,
    },
    reply::LogLevel,
    routine::{
        Encoding, Routine, RoutineFailure, RoutineFn, RoutineFuture, RoutineInput, RoutineOutput,
        Routines,
    },
    spec::Isolation,
};
use raddle_wire::v1::{self, exception::Kind};
use tokio::{
    sync::{
        Semaphore,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    },
    time::{Instant, sleep},
};

use super::socket::HostSocket;
use crate::serve::reply_sink::{ReplySink, exception};

/// Calls at a time of a host that names no limit.
const CONCURRENCY: usize = 1024;
/// Items that a host may send ahead of the caller.
const WINDOW: u32 = 256;
/// How long a cancelled call may take to end, before it is cancelled by force.
const GRACE: Duration = Duration::from_secs(2);
/// How long it may take then, before the host is killed.
const FORCED: Duration = Duration::from_millis(500);

/// The calls of a host.
pub(crate) struct HostRelay {
    socket: HostSocket,
    kinds: HashMap<&'static str, RoutineKind>,
    encodings: Vec<String>,
    calls: Mutex<HashMap<u64, RelayedCall>>,
    next_id: AtomicU64,
    /// Permits of async routines and streams.
    shared: Semaphore,
    /// Permits of plain routines.
    plain: Semaphore,
}

/// A call that the host has.
struct RelayedCall {
    sink: ReplySink,
    encoding: Encoding,
    is_stream: bool,
    /// Wakes the task of the call.
    events: UnboundedSender<HostEvent>,
}

enum HostEvent {
    Item(Vec<u8>),
    /// The end. Of a stream, its error: it must not overtake the items.
    End(Option<Box<HostError>>),
}

/// A call for the host.
pub(crate) struct HostCall<'a> {
    pub(crate) routine: &'static str,
    pub(crate) encoding: Encoding,
    pub(crate) arguments: Bytes,
    pub(crate) deadline: Option<Instant>,
    pub(crate) trace: Option<&'a Trace>,
    pub(crate) sink: &'a ReplySink,
}

impl HostRelay {
    /// The relay, and the routines that the host has announced.
    pub(super) fn new(
        socket: HostSocket,
        hello: &HostHello,
    ) -> Result<(Arc<Self>, Routines), String> {
        // A worker has one host, so the names live as long as the process.
        let kinds: HashMap<&'static str, RoutineKind> = hello
            .routines
            .iter()
            .map(|(name, routine)| (&*name.clone().leak(), routine.kind))
            .collect();
        let routine = |name: &&'static str| Routine {
            name,
            place: "the host",
            isolation: Isolation::Shared,
            run: RoutineFn::Async(refuse),
        };
        let routines =
            Routines::new(kinds.keys().map(routine)).map_err(|clash| clash.to_string())?;
        let limit = |limit: Option<u32>, default: usize| {
            Semaphore::new(limit.map_or(default, |limit| limit as usize).max(1))
        };
        let relay = Self {
            socket,
            kinds,
            encodings: hello.encodings.clone(),
            calls: Mutex::default(),
            next_id: AtomicU64::new(1),
            shared: limit(hello.concurrency, CONCURRENCY),
            plain: limit(hello.threads, 1),
        };
        Ok((Arc::new(relay), routines))
    }

    pub(super) fn push(&self, message: &ToHost<'_>) {
        self.socket.push(message, None);
    }

    /// Runs a call in the host. Dropping the future cancels it there.
    pub(crate) async fn run(self: &Arc<Self>, call: HostCall<'_>) {
        let kind = self.kinds.get(call.routine).copied().unwrap_or_default();
        let permits = match kind {
            RoutineKind::Plain => &self.plain,
            RoutineKind::Async | RoutineKind::Stream => &self.shared,
        };
        // The semaphores are never closed.
        let Ok(_permit) = permits.acquire().await else {
            return;
        };
        if !self.reads(call.encoding) {
            let unreadable = format!("the host does not read {}", call.encoding);
            return call.sink.failure(RoutineFailure::Unfit(unreadable));
        }
        let (sink, encoding) = (call.sink.clone(), call.encoding);
        let (id, mut events) = self.start(call, kind);
        let _guard = CancelOnDrop {
            relay: Arc::clone(self),
            id,
        };
        let mut taken = 0;
        while let Some(event) = events.recv().await {
            match event {
                HostEvent::Item(item) => {
                    sink.item(item).await;
                    taken += 1;
                }
                HostEvent::End(Some(error)) => return send_error(&sink, encoding, *error),
                HostEvent::End(None) if kind == RoutineKind::Stream => return sink.end(),
                HostEvent::End(None) => return,
            }
            if taken == WINDOW / 2 {
                self.push(&ToHost::Credit(StreamCredit { id, items: taken }));
                taken = 0;
            }
        }
    }

    fn reads(&self, encoding: Encoding) -> bool {
        match self.encodings.as_slice() {
            [] => encoding == Encoding::Json,
            known => known.iter().any(|name| name == encoding.name()),
        }
    }

    fn start(&self, call: HostCall<'_>, kind: RoutineKind) -> (u64, UnboundedReceiver<HostEvent>) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        // Unbounded, because the credit that the host was given bounds it.
        let (events, received) = unbounded_channel();
        let is_stream = kind == RoutineKind::Stream;
        let relayed = RelayedCall {
            sink: call.sink.clone(),
            encoding: call.encoding,
            is_stream,
            events,
        };
        self.calls().insert(id, relayed);
        let mut start = StartAttempt::new(id, call.routine);
        start.attempt = 1;
        if call.encoding != Encoding::Json {
            start.encoding = Some(call.encoding.name().into());
        }
        let left = call
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        start.timeout_ms = left.map(|left| left.as_millis() as u64);
        start.traceparent = call.trace.map(|trace| trace.parent);
        start.tracestate = call.trace.and_then(|trace| trace.state.clone());
        self.socket
            .push(&ToHost::Start(start), Some(&call.arguments));
        if is_stream {
            self.push(&ToHost::Credit(StreamCredit { id, items: WINDOW }));
        }
        (id, received)
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<u64, RelayedCall>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads from the host until it closes the socket. The end of the process is seen elsewhere.
    pub(super) async fn read(self: Arc<Self>, mut decoder: HostDecoder) {
        let read = async {
            loop {
                while let Some((message, payload)) = decoder
                    .next_message::<FromHost>()
                    .map_err(io::Error::other)?
                {
                    self.handle(message, payload);
                }
                self.socket.stream.readable().await?;
                match self.socket.stream.try_read_buf(decoder.buffer()) {
                    Ok(0) => return Ok(()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
                decoder.buffer().reserve(64 * 1024);
            }
        };
        let read: io::Result<()> = read.await;
        if let Err(error) = read {
            tracing::error!(%error, "the host does not speak the host protocol");
            end_worker();
        }
    }

    /// Writes what the socket did not take at once.
    pub(super) async fn write(self: Arc<Self>) {
        // A host that is gone shows in the reader.
        drop(self.socket.write_rest().await);
    }

    fn handle(self: &Arc<Self>, message: FromHost, payload: Option<Vec<u8>>) {
        match message {
            FromHost::Ack(call) => {
                if let Some(relayed) = self.calls().get(&call.id) {
                    relayed.sink.send_ack();
                }
            }
            FromHost::Item(call) => {
                if let Some(relayed) = self.calls().get(&call.id) {
                    let _ = relayed
                        .events
                        .send(HostEvent::Item(payload.unwrap_or_default()));
                }
            }
            FromHost::Result(call) => {
                let ended = self.calls().remove(&call.id);
                if let Some(relayed) = ended {
                    relayed.succeed(payload);
                }
            }
            FromHost::Error(error) => {
                let ended = self.calls().remove(&error.id);
                if let Some(relayed) = ended {
                    relayed.fail(error);
                }
            }
            FromHost::Log(log) => write_log(&log),
            FromHost::Chain(_) => {
                tracing::warn!("a call cannot chain a task: submit it instead");
            }
            _ => {}
        }
    }

    /// Cancels a call that its caller has given up, by force if it does not end.
    async fn cancel(self: Arc<Self>, id: u64) {
        let mut cancel = CancelAttempt {
            id,
            reason: CancelReason::Stop,
            force: false,
        };
        self.push(&ToHost::Cancel(cancel));
        sleep(GRACE).await;
        if !self.calls().contains_key(&id) {
            return;
        }
        cancel.force = true;
        self.push(&ToHost::Cancel(cancel));
        sleep(FORCED).await;
        if self.calls().contains_key(&id) {
            tracing::error!(
                "a cancelled call did not end: the host is killed, and its other calls are lost"
            );
            end_worker();
        }
    }
}

impl RelayedCall {
    fn succeed(self, payload: Option<Vec<u8>>) {
        if !self.is_stream {
            let null = || match self.encoding {
                Encoding::MessagePack => vec![0xc0],
                Encoding::Json => b"null".to_vec(),
            };
            let value = payload.unwrap_or_else(null);
            self.sink.outcome(Ok(RoutineOutput::Bytes(value)));
        }
        let _ = self.events.send(HostEvent::End(None));
    }

    fn fail(self, error: HostError) {
        let error = if self.is_stream {
            Some(Box::new(error))
        } else {
            send_error(&self.sink, self.encoding, error);
            None
        };
        let _ = self.events.send(HostEvent::End(error));
    }
}

/// Sends the error of a call, which ends it.
fn send_error(sink: &ReplySink, encoding: Encoding, error: HostError) {
    let HostError {
        kind,
        message,
        causes,
        panicked_at,
        cancelled,
        value,
        ..
    } = error;
    let mut text = match kind {
        Some(kind) if message.is_empty() => kind,
        Some(kind) => format!("{kind}: {message}"),
        None => message,
    };
    for cause in causes {
        text.push_str(": ");
        text.push_str(&cause);
    }
    let value = value.and_then(|value| encoding.write(&value).ok());
    match (value, panicked_at) {
        _ if cancelled => sink.exception(exception(Kind::Cancelled)),
        (Some(value), _) => sink.failure(RoutineFailure::Failed {
            message: text,
            value: Some(RoutineOutput::Bytes(value)),
        }),
        (None, place) => sink.exception(v1::Exception {
            message: text,
            place: place.unwrap_or_else(|| "the host".into()),
            ..exception(Kind::Panicked)
        }),
    }
}

/// Cancels a call in the host when its task ends before the call.
struct CancelOnDrop {
    relay: Arc<HostRelay>,
    id: u64,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let is_running = self.relay.calls().contains_key(&self.id);
        if is_running && let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // Ends with the call, or with this process.
            runtime.spawn(Arc::clone(&self.relay).cancel(self.id));
        }
    }
}

/// The function of a host's routine: `HostRelay` runs it, nothing calls this.
fn refuse(_: RoutineInput<'_>) -> Result<RoutineFuture, RoutineFailure> {
    Err(RoutineFailure::Unfit("the routine is in the host".into()))
}

fn write_log(log: &HostLog) {
    let HostLog {
        level,
        message,
        fields,
        ..
    } = log;
    let fields = if fields.is_empty() {
        String::new()
    } else {
        serde_json::Value::Object(fields.clone()).to_string()
    };
    match level {
        LogLevel::Error => tracing::error!(%fields, "{message}"),
        LogLevel::Warn => tracing::warn!(%fields, "{message}"),
        LogLevel::Info => tracing::info!(%fields, "{message}"),
        _ => tracing::debug!(%fields, "{message}"),
    }
}

/// Ends this process at once: its callers see that their calls are lost, and its pool starts
/// another worker. The host dies with it.
pub(crate) fn end_worker() -> ! {
    std::process::exit(1)
}
