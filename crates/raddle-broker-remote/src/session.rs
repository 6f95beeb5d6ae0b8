//! One connection of the server: one task reads and writes, and each running call is a task.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use raddle_model::frame::encode;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixStream, unix::WriteHalf},
    sync::{OwnedSemaphorePermit, watch},
    task::{self, AbortHandle, JoinError, JoinSet},
    time::{Instant, timeout},
};

use super::{
    container_clients::ContainerClient,
    dispatch::{CallInput, EncodedReply, RenewerCache, UndeliveredTasks, answer, perform},
    frames::{ConnectionLost, FrameReader, FrameWriter, STALLED, stalled},
    protocol::{GREETING, MAX_REQUEST, ProtocolError, ToClient, ToServer, Welcome, check_greeting},
    server::{DRAIN, ServerState},
};
use raddle_broker::{Call, Error, Result};

/// While this many bytes of replies wait to be read, no request is read and no call is begun.
const BACKLOG: usize = 16 << 20;
/// The limit of concurrent non-blocking calls. It bounds the replies beyond the backlog for a
/// client that reads slowly. More calls would not be faster: this is enough for group commits.
const AT_ONCE: usize = 32;
/// How long shutdown waits for the client's next request. A client that was just told of the end of
/// a worker has a query or two left, and the worker may be the one that serves it.
const LINGER: Duration = Duration::from_millis(150);

pub(super) struct Session {
    shared: Arc<ServerState>,
    inbox: FrameReader,
    outbox: FrameWriter<Option<UndeliveredTasks>>,
    running: JoinSet<EncodedReply>,
    /// Running calls by the client's id.
    calls: HashMap<u64, RunningCall>,
    /// Calls that have not begun.
    queued: VecDeque<QueuedCall>,
    /// The number of running non-blocking calls.
    busy: usize,
    /// Ids of running calls by their task.
    ids: HashMap<task::Id, u64>,
    renewer_cache: RenewerCache,
    /// The restrictions of a client that is not trusted.
    container_client: Option<Arc<ContainerClient>>,
}

struct RunningCall {
    abort: AbortHandle,
    /// Whether it is a blocking call.
    waits: bool,
}

struct QueuedCall {
    id: u64,
    input: CallInput,
    room: Option<OwnedSemaphorePermit>,
}

/// Tells a client why it is refused.
pub(super) fn refuse(stream: &UnixStream, reason: &str) {
    let mut greeting = GREETING.to_vec();
    greeting.extend(encode(&ToClient::Refused(reason.into())));
    // The socket buffer of a new connection has room for it.
    let _ = stream.try_write(&greeting);
}

impl Session {
    pub(super) fn new(shared: Arc<ServerState>) -> Self {
        let inbox = FrameReader::new(MAX_REQUEST, Some(Arc::clone(&shared.budget)));
        let container_client = shared
            .options
            .container_clients
            .clone()
            .map(|container_clients| Arc::new(ContainerClient::new(container_clients)));
        Self {
            shared,
            inbox,
            outbox: FrameWriter::new(),
            running: JoinSet::new(),
            calls: HashMap::new(),
            queued: VecDeque::new(),
            busy: 0,
            ids: HashMap::new(),
            renewer_cache: RenewerCache::default(),
            container_client,
        }
    }

    /// Serves until the client disconnects or `shutdown` resolves. Returning drops all running
    /// calls and undelivered replies, which releases their claims.
    pub(super) async fn run(
        mut self,
        mut stream: UnixStream,
        mut shutdown: watch::Receiver<bool>,
    ) -> Result<(), ConnectionLost> {
        let (mut from, mut to) = stream.split();
        timeout(STALLED, self.greet(&mut to))
            .await
            .map_err(|_| ConnectionLost::Stalled)??;
        let mut greeting = [0; GREETING.len()];
        tokio::select! {
            greeted = timeout(STALLED, from.read_exact(&mut greeting)) => greeted.map_err(|_| ConnectionLost::Stalled)??,
            _ = shutdown.wait_for(|down| *down) => return Ok(()),
        };
        check_greeting(&greeting)?;
        // The latest end of the shutdown, extended by further requests.
        let (mut closing, mut quiet) = (None, None);
        loop {
            self.begin_queued();
            let reads = self.outbox.bytes() < BACKLOG;
            if !reads {
                self.inbox.touch();
            }
            let inbox_deadline = self.inbox.deadline().filter(|_| reads);
            let outbox_deadline = self.outbox.deadline();
            let leave_at = closing
                .into_iter()
                .chain(quiet.filter(|_| self.is_quiet()))
                .min();
            tokio::select! {
                message = self.inbox.next(&mut from), if reads => match message? {
                    Some((message, room)) => {
                        self.take(message, room)?;
                        quiet = closing.map(|_| Instant::now() + LINGER);
                    }
                    None => return Ok(()),
                },
                Some(ended) = self.running.join_next_with_id(), if !self.running.is_empty() => self.answer(ended),
                written = self.outbox.write(&mut to), if !self.outbox.is_empty() => {
                    written?.into_iter().flatten().for_each(UndeliveredTasks::delivered);
                    quiet = closing.map(|_| Instant::now() + LINGER);
                }
                () = stalled(inbox_deadline, outbox_deadline) => return Err(ConnectionLost::Stalled),
                () = stalled(leave_at, None), if leave_at.is_some() => return Ok(()),
                _ = shutdown.wait_for(|down| *down), if closing.is_none() => {
                    closing = Some(Instant::now() + DRAIN);
                    quiet = Some(Instant::now() + LINGER);
                }
            }
        }
    }

    async fn greet(&self, to: &mut WriteHalf<'_>) -> Result<(), ConnectionLost> {
        to.write_all(&GREETING).await?;
        let welcome = ToClient::Welcome(Welcome {
            in_flight: self.shared.options.in_flight,
        });
        Ok(to.write_all(&encode(&welcome)).await?)
    }

    /// Whether only blocking calls run. They need not finish: their clients find the connection
    /// closed, and call the next server.
    fn is_quiet(&self) -> bool {
        self.busy == 0 && self.queued.is_empty() && self.outbox.is_empty()
    }

    fn take(
        &mut self,
        message: ToServer<Call>,
        room: Option<OwnedSemaphorePermit>,
    ) -> Result<(), ProtocolError> {
        let (id, input) = match message {
            ToServer::Call { id, call } => (id, CallInput::Call(call)),
            ToServer::Renew { id, renewal } => (id, CallInput::Renew(renewal)),
            ToServer::Cancel { id } => {
                if let Some(at) = self.queued.iter().position(|queued| queued.id == id) {
                    self.queued.remove(at);
                    self.outbox.push(encode(&ToClient::Cancelled { id }), None);
                } else if let Some(call) = self.calls.get(&id) {
                    call.abort.abort();
                }
                // Neither running nor queued: the reply and the cancel have crossed.
                return Ok(());
            }
        };
        // Releases come on top of the agreed number of calls.
        if self.running.len() + self.queued.len() + self.outbox.len()
            >= 2 * self.shared.options.in_flight as usize
        {
            return Err(ProtocolError::TooMany);
        }
        if self.calls.contains_key(&id) || self.queued.iter().any(|queued| queued.id == id) {
            return Err(ProtocolError::Twice(id));
        }
        let queued = QueuedCall { id, input, room };
        // A blocking call may take an hour, so it neither waits for a turn nor takes one.
        if queued.input.max_wait().is_zero() {
            self.queued.push_back(queued);
        } else {
            self.begin(queued);
        }
        Ok(())
    }

    /// Begins queued calls while there is room for their replies.
    fn begin_queued(&mut self) {
        while self.busy < AT_ONCE
            && self.outbox.bytes() < BACKLOG
            && let Some(queued) = self.queued.pop_front()
        {
            self.begin(queued);
        }
    }

    fn begin(&mut self, queued: QueuedCall) {
        let QueuedCall { id, input, room } = queued;
        let waits = !input.max_wait().is_zero();
        self.busy += usize::from(!waits);
        let (broker, returns) = (Arc::clone(&self.shared.broker), self.shared.returns.clone());
        let (renewer_cache, container_client) = (
            Arc::clone(&self.renewer_cache),
            self.container_client.clone(),
        );
        let abort = self.running.spawn(async move {
            let answer = perform(
                broker,
                input,
                id,
                renewer_cache,
                container_client.as_deref(),
                returns,
            )
            .await;
            drop(room);
            answer
        });
        self.ids.insert(abort.id(), id);
        self.calls.insert(id, RunningCall { abort, waits });
    }

    fn answer(&mut self, ended: Result<(task::Id, EncodedReply), JoinError>) {
        let task = ended.as_ref().map_or_else(JoinError::id, |(task, _)| *task);
        let Some(id) = self.ids.remove(&task) else {
            return;
        };
        if self.calls.remove(&id).is_some_and(|call| !call.waits) {
            self.busy -= 1;
        }
        match ended {
            Ok((_, EncodedReply { frame, taken })) => self.outbox.push(frame, taken),
            Err(error) if error.is_cancelled() => {
                self.outbox.push(encode(&ToClient::Cancelled { id }), None)
            }
            Err(error) => {
                tracing::error!(%error, "a call of a client panicked");
                self.outbox.push(answer(id, Err(Error::Closed)), None);
            }
        }
    }
}
