//! One connection, as the client has it. A task of its own reads and writes; calls give it frames and wait for their answers.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use raddle_model::frame::encode;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    frames::{ConnectionLost, FrameReader, FrameWriter, stalled},
    protocol::{
        BUSY, GREETING, MAX_ANSWER, MAX_REQUEST, ProtocolError, ToClient, ToServer, Welcome,
        check_greeting,
    },
    socket,
};
use raddle_broker::{Call, Error, LeasedTask, Release, Reply, Result};

/// How long a server may take to greet, and a place in its queue to become free.
pub(super) const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
const CONNECT_PAUSE: Duration = Duration::from_millis(5);
/// How long an answer may take beyond what the call itself waits for: longer than an engine waits for its lock.
const ANSWER_PATIENCE: Duration = Duration::from_secs(90);
/// Beyond this nobody waits, and a clock could overflow.
const LONGEST_WAIT: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A connection. It is closed when this is dropped.
pub(super) struct RemoteConnection {
    shared: Arc<ConnectionState>,
    orders: mpsc::UnboundedSender<DriverCommand>,
    /// One for each call that may be under way, so that the channel needs no bound of its own.
    permits: Arc<Semaphore>,
    next_id: AtomicU64,
    server: Option<i32>,
}

/// What calls and the connection's task have in common.
struct ConnectionState {
    path: PathBuf,
    table: Mutex<PendingCalls>,
}

#[derive(Default)]
struct PendingCalls {
    calls: HashMap<u64, Pending>,
    /// Why the connection is over, once it is.
    gone: Option<String>,
}

/// A call that has no answer yet.
struct Pending {
    /// `None` when its caller is gone.
    reply: Option<oneshot::Sender<Result<UnreadReply>>>,
    _permit: Option<OwnedSemaphorePermit>,
}

enum DriverCommand {
    /// A frame, and who is to know that it has gone out whole: before that nobody can have acted on it.
    Send(Vec<u8>, Option<Arc<AtomicBool>>),
    /// No caller waits for these claims any more.
    GiveBack(Vec<Release>),
}

/// An answer that nobody has looked at. If it holds claims, dropping it gives them back.
pub(super) struct UnreadReply {
    reply: Option<Reply>,
    orders: mpsc::UnboundedSender<DriverCommand>,
}

/// A call that is waited for. Dropping it cancels the call.
struct PendingReply<'a> {
    link: &'a RemoteConnection,
    id: u64,
}

impl RemoteConnection {
    /// Connects to the agent at `path`.
    pub(super) async fn open(path: &Path) -> Result<Self> {
        let late = || Error::AgentGone {
            path: path.into(),
            reason: "it did not greet in time".into(),
        };
        let deadline = Instant::now() + CONNECT_PATIENCE;
        let stream = connect(path, deadline).await?;
        let peer = stream
            .peer_cred()
            .map_err(|error| socket::unreachable(path, &error))?;
        socket::check_server(path, peer.uid())?;
        let (welcome, inbox, stream) = timeout_at(deadline, greet(path, stream))
            .await
            .map_err(|_| late())??;
        let shared = Arc::new(ConnectionState {
            path: path.into(),
            table: Mutex::default(),
        });
        let (orders, queue) = mpsc::unbounded_channel();
        let driver = Driver {
            shared: Arc::clone(&shared),
            queue,
            next_errand: u64::MAX,
            orders: orders.downgrade(),
        };
        // It ends with the connection, or when nobody is left who could give it an order.
        tokio::spawn(driver.run(stream, inbox));
        let permits = Arc::new(Semaphore::new(welcome.in_flight.max(1) as usize));
        Ok(Self {
            shared,
            orders,
            permits,
            next_id: AtomicU64::new(0),
            server: peer.pid(),
        })
    }

    /// Whether it is of no use any more.
    pub(super) fn is_gone(&self) -> bool {
        self.shared.table().gone.is_some()
    }

    /// The process that serves.
    pub(super) fn server(&self) -> Option<i32> {
        self.server
    }

    /// Asks, and waits for the answer.
    pub(super) async fn call(&self, call: &Call) -> Result<UnreadReply> {
        let path = &self.shared.path;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let frame = encode(&ToServer::Call { id, call });
        let size = frame.len();
        if size > MAX_REQUEST {
            let (size, max) = (size >> 20, MAX_REQUEST >> 20);
            let reason = format!(
                "a request of {size} MiB is more than the {max} it takes: ask for less at a time"
            );
            return Err(Error::AgentRefused {
                path: path.clone(),
                reason,
            });
        }
        let busy = || self.shared.gone("too many calls are under way");
        let permit = timeout(ANSWER_PATIENCE, Arc::clone(&self.permits).acquire_owned())
            .await
            .map_err(|_| busy())?;
        let (reply, answer) = oneshot::channel();
        self.shared.enter(
            id,
            Pending {
                reply: Some(reply),
                _permit: permit.ok(),
            },
        )?;
        let waiting = PendingReply { link: self, id };
        let sent = Arc::new(AtomicBool::new(false));
        // Refused only by a connection that is over, which has answered what was entered.
        let _ = self
            .orders
            .send(DriverCommand::Send(frame, Some(Arc::clone(&sent))));
        let patience = ANSWER_PATIENCE + call.max_wait().min(LONGEST_WAIT);
        let lost = match timeout(patience, answer).await {
            Ok(Ok(answer)) => return answer,
            Ok(Err(_)) => self.shared.gone_because(),
            Err(_) => self.shared.gone("it does not answer"),
        };
        drop(waiting);
        Err(match (lost, call.repeated_effect()) {
            (Error::AgentGone { path, reason }, Some(what)) if sent.load(Ordering::Acquire) => {
                Error::Unanswered {
                    place: format!("the agent at {}", path.display()),
                    what: what.into(),
                    reason,
                }
            }
            (lost, _) => lost,
        })
    }
}

impl Drop for PendingReply<'_> {
    fn drop(&mut self) {
        let mut table = self.link.shared.table();
        // No longer there when it has been answered.
        if let Some(pending) = table.calls.get_mut(&self.id) {
            pending.reply = None;
            let _ = self.link.orders.send(DriverCommand::Send(
                encode(&ToServer::<Call>::Cancel { id: self.id }),
                None,
            ));
        }
    }
}

impl UnreadReply {
    /// What was answered. From here on it is the caller's.
    pub(super) fn take(mut self) -> Reply {
        self.reply.take().expect("it is taken once")
    }
}

impl Drop for UnreadReply {
    fn drop(&mut self) {
        let Some(Reply::Claim(claims)) = self.reply.take() else {
            return;
        };
        let release = |claim: LeasedTask| Release {
            attempt_id: claim.attempt_id,
            reason: "its claimer stopped waiting".into(),
        };
        let back: Vec<Release> = claims.into_iter().map(release).collect();
        if !back.is_empty() {
            // Where the connection is over, their worker finds that it holds none of them, and gives them back.
            let _ = self.orders.send(DriverCommand::GiveBack(back));
        }
    }
}

impl ConnectionState {
    fn table(&self) -> MutexGuard<'_, PendingCalls> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, id: u64, pending: Pending) -> Result<()> {
        let mut table = self.table();
        if table.gone.is_some() {
            drop(table);
            return Err(self.gone_because());
        }
        table.calls.insert(id, pending);
        Ok(())
    }

    fn gone(&self, reason: &str) -> Error {
        Error::AgentGone {
            path: self.path.clone(),
            reason: reason.into(),
        }
    }

    fn gone_because(&self) -> Error {
        let reason = self.table().gone.clone();
        self.gone(reason.as_deref().unwrap_or("the connection is closed"))
    }
}

/// The connection's task.
struct Driver {
    shared: Arc<ConnectionState>,
    queue: mpsc::UnboundedReceiver<DriverCommand>,
    /// Calls of its own are numbered from the other end.
    next_errand: u64,
    /// For answers, which may have to send something back. It does not keep the connection open.
    orders: mpsc::WeakUnboundedSender<DriverCommand>,
}

impl Driver {
    async fn run(mut self, stream: UnixStream, inbox: FrameReader) {
        let reason = match self.drive(stream, inbox).await {
            Ok(()) => "it has closed the connection".to_owned(),
            Err(ConnectionLost::Io(error)) => {
                match socket::unreachable(&self.shared.path, &error) {
                    Error::AgentGone { reason, .. } => reason,
                    other => other.to_string(),
                }
            }
            Err(error) => error.to_string(),
        };
        self.shared.table().gone = Some(reason);
        // Dropping it does the rest, as when the runtime ends.
    }

    async fn drive(
        &mut self,
        mut stream: UnixStream,
        mut inbox: FrameReader,
    ) -> Result<(), ConnectionLost> {
        let (mut from, mut to) = stream.split();
        let mut outbox = FrameWriter::new();
        let mut leaving = false;
        loop {
            if leaving && outbox.is_empty() {
                return Ok(());
            }
            let deadlines = (inbox.deadline(), outbox.deadline());
            tokio::select! {
                message = inbox.next(&mut from) => match message? {
                    Some((message, _)) => self.hear(message)?,
                    None => return Ok(()),
                },
                order = self.queue.recv(), if !leaving => match order {
                    Some(DriverCommand::Send(frame, sent)) => outbox.push(frame, sent),
                    Some(DriverCommand::GiveBack(back)) => outbox.push(self.errand(back), None),
                    None => leaving = true,
                },
                written = outbox.write(&mut to), if !outbox.is_empty() => {
                    written?.into_iter().flatten().for_each(|sent| sent.store(true, Ordering::Release));
                }
                () = stalled(deadlines.0, deadlines.1) => return Err(ConnectionLost::Stalled),
            }
        }
    }

    /// A call that nobody waits for.
    fn errand(&mut self, back: Vec<Release>) -> Vec<u8> {
        let id = self.next_errand;
        self.next_errand -= 1;
        self.shared.table().calls.insert(
            id,
            Pending {
                reply: None,
                _permit: None,
            },
        );
        encode(&ToServer::Call {
            id,
            call: Call::Release { batch: back },
        })
    }

    fn hear(&mut self, message: ToClient) -> Result<(), ProtocolError> {
        let (id, outcome) = match message {
            ToClient::Done { id, reply } => (id, Some(Ok(reply))),
            ToClient::Failed { id, error } => (id, Some(Err(error))),
            ToClient::Cancelled { id } => (id, None),
            ToClient::Welcome(_) | ToClient::Refused(_) | ToClient::Renewed { .. } => {
                return Err(ProtocolError::Unexpected);
            }
        };
        let Some(pending) = self.shared.table().calls.remove(&id) else {
            return Ok(());
        };
        let Pending { reply, _permit } = pending;
        let answer = match outcome {
            // Without a handle that could send it back there is no caller that could have claimed either.
            Some(Ok(reply)) => self.orders.upgrade().map(|orders| {
                Ok(UnreadReply {
                    reply: Some(reply),
                    orders,
                })
            }),
            Some(Err(error)) => Some(Err(error)),
            None => None,
        };
        // Where the caller is gone, dropping the answer gives back what is in it.
        if let (Some(reply), Some(answer)) = (reply, answer) {
            let _ = reply.send(answer);
        }
        Ok(())
    }
}

/// Callers that wait get an error: their `reply` is dropped.
impl Drop for Driver {
    fn drop(&mut self) {
        let mut table = self.shared.table();
        table
            .gone
            .get_or_insert_with(|| "the connection is closed".into());
        table.calls.clear();
    }
}

async fn connect(path: &Path, deadline: Instant) -> Result<UnixStream> {
    socket::address(path).map_err(|reason| Error::AgentRefused {
        path: path.into(),
        reason,
    })?;
    loop {
        match UnixStream::connect(path).await {
            // Its queue is full, which a thousand clients at once can bring about, and soon over.
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline =>
            {
                sleep(CONNECT_PAUSE).await;
            }
            outcome => return outcome.map_err(|error| socket::unreachable(path, &error)),
        }
    }
}

async fn greet(path: &Path, mut stream: UnixStream) -> Result<(Welcome, FrameReader, UnixStream)> {
    let broken = |error: io::Error| socket::unreachable(path, &error);
    // A server that refuses has closed already: what it had to say can still be read.
    let _ = stream.write_all(&GREETING).await;
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting).await.map_err(broken)?;
    check_greeting(&greeting).map_err(|error| refused(path, error.to_string()))?;
    let mut inbox = FrameReader::new(MAX_ANSWER, None);
    let first = inbox.next(&mut stream).await.map_err(|error| match error {
        ConnectionLost::Io(error) => broken(error),
        other => refused(path, other.to_string()),
    })?;
    Ok((
        welcome(path, first.map(|(message, _)| message))?,
        inbox,
        stream,
    ))
}

/// Reads the end of a server's greeting.
pub(super) fn welcome(path: &Path, message: Option<ToClient>) -> Result<Welcome> {
    match message {
        Some(ToClient::Welcome(welcome)) => Ok(welcome),
        Some(ToClient::Refused(reason)) if reason == BUSY => Err(Error::AgentGone {
            path: path.into(),
            reason,
        }),
        Some(ToClient::Refused(reason)) => Err(refused(path, reason)),
        Some(_) => Err(refused(path, ProtocolError::Unexpected.to_string())),
        None => Err(socket::unreachable(
            path,
            &io::ErrorKind::UnexpectedEof.into(),
        )),
    }
}

pub(super) fn refused(path: &Path, reason: String) -> Error {
    Error::AgentRefused {
        path: path.into(),
        reason,
    }
}
