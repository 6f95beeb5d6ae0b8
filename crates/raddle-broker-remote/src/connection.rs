//! One connection of a client. Its driver task reads and writes; calls send it frames and wait for
//! replies.

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
        BUSY, GREETING, MAX_REPLY, MAX_REQUEST, ProtocolError, ToClient, ToServer, Welcome,
        check_greeting,
    },
    socket,
};
use raddle_broker::{Call, Error, LeasedTask, Release, Reply, Result};

/// How long connecting may take, and waiting for a place in the server's accept queue.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_PAUSE: Duration = Duration::from_millis(5);
/// How long a reply may take beyond the wait of the call itself: longer than an engine waits for
/// its lock.
const REPLY_TIMEOUT: Duration = Duration::from_secs(90);
/// The limit of waits; larger values could overflow the clock.
const LONGEST_WAIT: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A connection, closed on drop.
pub(super) struct RemoteConnection {
    shared: Arc<ConnectionState>,
    commands: mpsc::UnboundedSender<DriverCommand>,
    /// One per concurrent call, so that the channel needs no bound.
    permits: Arc<Semaphore>,
    next_id: AtomicU64,
    server: Option<i32>,
}

/// State that calls share with the driver.
struct ConnectionState {
    path: PathBuf,
    table: Mutex<PendingCalls>,
}

#[derive(Default)]
struct PendingCalls {
    calls: HashMap<u64, Pending>,
    /// Why the connection is closed, once it is.
    gone: Option<String>,
}

/// A call without a reply yet.
struct Pending {
    /// `None` if its caller is gone.
    reply: Option<oneshot::Sender<Result<UnreadReply>>>,
    _permit: Option<OwnedSemaphorePermit>,
}

enum DriverCommand {
    /// A frame, and a flag to set when it is written whole: before that the server cannot have
    /// acted on it.
    Send(Vec<u8>, Option<Arc<AtomicBool>>),
    /// Releases claims whose caller is gone.
    Release(Vec<Release>),
}

/// A reply that its caller has not taken. Dropping it releases the claims in it.
pub(super) struct UnreadReply {
    reply: Option<Reply>,
    commands: mpsc::UnboundedSender<DriverCommand>,
}

/// Cancels its call on drop.
struct PendingReply<'a> {
    link: &'a RemoteConnection,
    id: u64,
}

impl RemoteConnection {
    /// Connects to the server at `path`.
    pub(super) async fn open(path: &Path) -> Result<Self> {
        let late = || Error::AgentGone {
            path: path.into(),
            reason: "it sent no greeting in time".into(),
        };
        let deadline = Instant::now() + CONNECT_TIMEOUT;
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
        let (commands, queue) = mpsc::unbounded_channel();
        let driver = Driver {
            shared: Arc::clone(&shared),
            queue,
            next_own_id: u64::MAX,
            commands: commands.downgrade(),
        };
        // The driver ends with the connection, or when nothing can send it a command any more.
        tokio::spawn(driver.run(stream, inbox));
        let permits = Arc::new(Semaphore::new(welcome.in_flight.max(1) as usize));
        Ok(Self {
            shared,
            commands,
            permits,
            next_id: AtomicU64::new(0),
            server: peer.pid(),
        })
    }

    /// Whether the connection is closed.
    pub(super) fn is_gone(&self) -> bool {
        self.shared.table().gone.is_some()
    }

    /// The process id of the server.
    pub(super) fn server(&self) -> Option<i32> {
        self.server
    }

    /// Sends a call and waits for the reply.
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
        let permit = timeout(REPLY_TIMEOUT, Arc::clone(&self.permits).acquire_owned())
            .await
            .map_err(|_| busy())?;
        let (reply, answer) = oneshot::channel();
        self.shared.add_pending(
            id,
            Pending {
                reply: Some(reply),
                _permit: permit.ok(),
            },
        )?;
        let waiting = PendingReply { link: self, id };
        let sent = Arc::new(AtomicBool::new(false));
        // Fails only if the connection is closed, and then the driver has failed the pending call.
        let _ = self
            .commands
            .send(DriverCommand::Send(frame, Some(Arc::clone(&sent))));
        let patience = REPLY_TIMEOUT + call.max_wait().min(LONGEST_WAIT);
        let lost = match timeout(patience, answer).await {
            Ok(Ok(answer)) => return answer,
            Ok(Err(_)) => self.shared.gone_because(),
            Err(_) => self.shared.gone("it does not reply"),
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
        // Absent if the reply has arrived.
        if let Some(pending) = table.calls.get_mut(&self.id) {
            pending.reply = None;
            let _ = self.link.commands.send(DriverCommand::Send(
                encode(&ToServer::<Call>::Cancel { id: self.id }),
                None,
            ));
        }
    }
}

impl UnreadReply {
    /// The reply. From here on its claims are the caller's.
    pub(super) fn take(mut self) -> Reply {
        self.reply.take().expect("a reply is taken once")
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
            // If the connection is closed, the worker finds that it does not know these tasks, and
            // releases them.
            let _ = self.commands.send(DriverCommand::Release(back));
        }
    }
}

impl ConnectionState {
    fn table(&self) -> MutexGuard<'_, PendingCalls> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_pending(&self, id: u64, pending: Pending) -> Result<()> {
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

/// The task that drives a connection.
struct Driver {
    shared: Arc<ConnectionState>,
    queue: mpsc::UnboundedReceiver<DriverCommand>,
    /// The driver's own calls are numbered downwards.
    next_own_id: u64,
    /// For replies, which may have to release claims. Weak: does not keep the connection open.
    commands: mpsc::WeakUnboundedSender<DriverCommand>,
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
        // `Drop` does the rest, as it does when the runtime ends.
    }

    async fn drive(
        &mut self,
        mut stream: UnixStream,
        mut inbox: FrameReader,
    ) -> Result<(), ConnectionLost> {
        let (mut from, mut to) = stream.split();
        let mut outbox = FrameWriter::new();
        let mut closing = false;
        loop {
            if closing && outbox.is_empty() {
                return Ok(());
            }
            let deadlines = (inbox.deadline(), outbox.deadline());
            tokio::select! {
                message = inbox.next(&mut from) => match message? {
                    Some((message, _)) => self.handle_message(message)?,
                    None => return Ok(()),
                },
                command = self.queue.recv(), if !closing => match command {
                    Some(DriverCommand::Send(frame, sent)) => outbox.push(frame, sent),
                    Some(DriverCommand::Release(back)) => outbox.push(self.encode_release(back), None),
                    None => closing = true,
                },
                written = outbox.write(&mut to), if !outbox.is_empty() => {
                    written?.into_iter().flatten().for_each(|sent| sent.store(true, Ordering::Release));
                }
                () = stalled(deadlines.0, deadlines.1) => return Err(ConnectionLost::Stalled),
            }
        }
    }

    /// Encodes a call that no caller waits for.
    fn encode_release(&mut self, back: Vec<Release>) -> Vec<u8> {
        let id = self.next_own_id;
        self.next_own_id -= 1;
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

    fn handle_message(&mut self, message: ToClient) -> Result<(), ProtocolError> {
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
            // Without a sender that could release claims there is no caller that could have
            // claimed.
            Some(Ok(reply)) => self.commands.upgrade().map(|commands| {
                Ok(UnreadReply {
                    reply: Some(reply),
                    commands,
                })
            }),
            Some(Err(error)) => Some(Err(error)),
            None => None,
        };
        // If the caller is gone, dropping the reply releases its claims.
        if let (Some(reply), Some(answer)) = (reply, answer) {
            let _ = reply.send(answer);
        }
        Ok(())
    }
}

/// Fails pending calls by dropping their reply senders.
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
            // The accept queue is full: a thousand clients may connect at once.
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
    // A server that refuses has closed already, but its greeting can still be read.
    let _ = stream.write_all(&GREETING).await;
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting).await.map_err(broken)?;
    check_greeting(&greeting).map_err(|error| refused(path, error.to_string()))?;
    let mut inbox = FrameReader::new(MAX_REPLY, None);
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

/// Evaluates the last message of a greeting.
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
