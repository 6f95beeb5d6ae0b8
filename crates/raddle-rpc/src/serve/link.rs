//! The worker's side of links.
//!
//! Links are read on the threads that run `async fn`s: a call runs where it was read, without
//! waking another thread. While routines block all of those threads, links are read on the control
//! runtime (`Executor::watch_for_blocking`).

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use raddle_wire::{
    Message,
    frame::Frame,
    v1::{self, answer, request::What},
};
use tokio::{
    runtime::{self, Handle},
    sync::Notify,
    task::{AbortHandle, JoinSet, yield_now},
    time::timeout,
};
use tonic::Code;

use super::{
    authorizer::{AuthorizedPeer, PeerOrigin},
    connection_limiter::{ActivityClock, ConnectionLimiter, EvictableConnection},
    executor::{CallId, Executor},
    reply_sink::ReplySink,
};
use crate::{
    RpcError,
    link::{FEW_CALLS, FlushMode, LinkReader, LinkSocket, LinkWriter, ReadAmount},
};

/// How long a client may take to close after it has received everything.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(250);
/// How long a client may read none of its replies.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Calls in flight per link. Honest clients have fewer.
const MAX_CALLS: usize = 65_536;
/// Consecutive reads of a busy link before the task yields to others.
const MAX_CONSECUTIVE_READS: u32 = 2;

/// The open links of a worker.
pub(super) struct LinkServer {
    pub(super) limiter: Arc<ConnectionLimiter>,
    open: Mutex<OpenLinks>,
}

#[derive(Default)]
struct OpenLinks {
    links: Vec<Weak<LinkSession>>,
    /// The tasks that send queued replies.
    writers: JoinSet<()>,
    is_closed: bool,
}

/// A link to one client.
pub(super) struct LinkSession {
    id: u64,
    socket: Arc<LinkSocket>,
    writer: Arc<LinkWriter>,
    executor: Arc<Executor>,
    caller: AuthorizedPeer,
    /// Number of calls in flight.
    in_flight: Arc<AtomicUsize>,
    clock: ActivityClock,
    /// When data was last received, by the limiter's clock.
    last_active: AtomicU64,
    reader: Mutex<LinkSessionReader>,
    /// Notified when the link is closed.
    ended: Notify,
}

/// Why the worker closes a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkCloseReason {
    /// The worker is stopping.
    Stopping,
    /// Other connections need the room.
    Evicted,
}

struct LinkSessionReader {
    decoder: LinkReader,
    /// The reading task, and its runtime.
    task: Option<(runtime::Id, AbortHandle)>,
    /// The limiter evicted the link: `Leave` was sent, and further requests are ignored.
    is_evicted: bool,
    is_closed: bool,
}

impl LinkServer {
    pub(super) fn new(limiter: Arc<ConnectionLimiter>) -> Arc<Self> {
        Arc::new(Self {
            limiter,
            open: Mutex::default(),
        })
    }

    /// Starts serving a client. The writer task runs on the current runtime, which must not be the
    /// one that routines can block.
    pub(super) fn start(
        &self,
        socket: LinkSocket,
        caller: AuthorizedPeer,
        executor: &Arc<Executor>,
    ) {
        let socket = Arc::new(socket);
        let (writer, clock) = (LinkWriter::new(Arc::clone(&socket)), self.limiter.clock());
        let reader = LinkSessionReader {
            decoder: LinkReader::new(),
            task: None,
            is_evicted: false,
            is_closed: false,
        };
        let link = Arc::new(LinkSession {
            id: executor.next_link_id(),
            socket,
            writer: Arc::clone(&writer),
            executor: Arc::clone(executor),
            caller,
            in_flight: Arc::default(),
            last_active: clock.now().into(),
            clock,
            reader: Mutex::new(reader),
            ended: Notify::new(),
        });
        let mut open = self.lock();
        // No request was read, so none was accepted.
        if open.is_closed {
            return link.announce_end(LinkCloseReason::Stopping);
        }
        if !self.limiter.admit(&link) {
            return link.announce_end(LinkCloseReason::Evicted);
        }
        open.links.retain(|link| link.strong_count() > 0);
        open.links.push(Arc::downgrade(&link));
        while open.writers.try_join_next().is_some() {}
        let session = Arc::clone(&link);
        open.writers.spawn(async move {
            match writer.write(READ_TIMEOUT).await {
                Err(error) => session.record_disconnect(&error),
                // Wait until the client has closed. Closing a socket with unread input sends a
                // reset, which discards replies that the client has not read yet.
                Ok(()) => drop(timeout(CLOSE_TIMEOUT, session.ended.notified()).await),
            }
            session.cancel_and_close();
        });
        drop(open);
        link.read_on(&executor.setup.runtime);
    }

    /// Has all links read on this runtime.
    pub(super) fn read_on(&self, runtime: &Handle) {
        self.all().iter().for_each(|link| link.read_on(runtime));
    }

    /// Closes all links gracefully. Returns when everything was sent, or after `limit`.
    pub(super) async fn close_all(&self, limit: Duration) {
        self.lock().is_closed = true;
        self.all()
            .iter()
            .for_each(|link| link.announce_end(LinkCloseReason::Stopping));
        let mut writers = std::mem::take(&mut self.lock().writers);
        let _ = timeout(limit, async {
            while writers.join_next().await.is_some() {}
        })
        .await;
    }

    fn all(&self) -> Vec<Arc<LinkSession>> {
        self.lock().links.iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, OpenLinks> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LinkSession {
    /// Has the link read on this runtime from now on.
    fn read_on(self: &Arc<Self>, runtime: &Handle) {
        let mut reader = self.lock();
        if reader
            .task
            .as_ref()
            .is_some_and(|(current, _)| *current == runtime.id())
        {
            return;
        }
        // The task ends with the link, or when it is replaced.
        let task = runtime.spawn(Arc::clone(self).read()).abort_handle();
        if let Some((_, before)) = reader.task.replace((runtime.id(), task)) {
            before.abort();
        }
    }

    async fn read(self: Arc<Self>) {
        let Ok(readable) = self.socket.readable() else {
            return self.cancel_and_close();
        };
        let mut consecutive_reads = 0;
        while let Ok(mut ready) = readable.readable().await {
            match self.read_once() {
                Ok(ReadAmount::Some) => consecutive_reads += 1,
                Ok(ReadAmount::All) => {
                    ready.clear_ready();
                    consecutive_reads = 0;
                }
                Ok(ReadAmount::Last) => break,
                Err(error) => {
                    self.record_disconnect(&error);
                    break;
                }
            }
            drop(ready);
            // Yield, so that one busy client does not starve others.
            if consecutive_reads == MAX_CONSECUTIVE_READS {
                consecutive_reads = 0;
                yield_now().await;
            }
            // Backpressure: read no more requests while the client does not read its replies.
            if self.writer.is_full() {
                self.writer.wait_for_room().await;
            }
        }
        self.cancel_and_close();
    }

    fn read_once(&self) -> io::Result<ReadAmount> {
        let mut reader = self.lock();
        if reader.is_closed {
            return Ok(ReadAmount::Last);
        }
        self.last_active.store(self.clock.now(), Ordering::Relaxed);
        let LinkSessionReader {
            decoder,
            is_evicted,
            ..
        } = &mut *reader;
        let mut frames = 0;
        decoder.read(&self.socket, |frame| {
            if *is_evicted {
                return Ok(());
            }
            frames += 1;
            // Replies to many requests that arrive together are sent together.
            let mode = if frames <= FEW_CALLS {
                FlushMode::Now
            } else {
                FlushMode::Deferred
            };
            self.handle_request(frame, mode)
        })
    }

    fn handle_request(&self, frame: Frame, mode: FlushMode) -> io::Result<()> {
        let Frame { head, body } = frame;
        let v1::Request { id, what } = v1::Request::decode(head)?;
        let call_id = CallId { link: self.id, id };
        match what {
            Some(What::Call(call)) => {
                let sink = ReplySink::of_link(id, &self.writer, &self.in_flight);
                let call = v1::Call {
                    arguments: body,
                    ..call
                };
                let outcome = self
                    .has_room()
                    .and_then(|()| self.executor.start_call(call_id, call, &self.caller, &sink));
                if let Err(error) = outcome {
                    sink.refuse(&error, mode);
                }
            }
            Some(What::Credit(items)) if !self.executor.add_credit(call_id, items) => {
                let message = "the client granted more credit than the limit";
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            Some(What::Credit(_)) => {}
            Some(What::Cancel(_)) => self.executor.cancel(call_id),
            Some(What::Ping(_)) => self.send_control(answer::What::Pong(v1::Pong {}), mode),
            // From a later protocol version.
            None => {}
        }
        Ok(())
    }

    /// Refuses the call, and counts the refusal, if the link has too many calls in flight. The
    /// sink of the call is counted already.
    fn has_room(&self) -> Result<(), RpcError> {
        if self.in_flight.load(Ordering::Relaxed) <= MAX_CALLS {
            return Ok(());
        }
        let message = format!("the link has {MAX_CALLS} calls in flight");
        let full = RpcError::refused(Code::ResourceExhausted, message);
        self.executor
            .setup
            .authorizer
            .record_refused_call(&full, self.caller.from);
        Err(full)
    }

    /// Records why the link is closed.
    fn record_disconnect(&self, error: &io::Error) {
        self.executor
            .setup
            .authorizer
            .record_disconnect(error, self.caller.from);
    }

    /// Sends a message that belongs to no call.
    fn send_control(&self, what: answer::What, mode: FlushMode) {
        // Fails when the link is closed.
        let _ = self.writer.push(
            0,
            &v1::Answer {
                id: 0,
                what: Some(what),
            },
            Bytes::new(),
            mode,
        );
    }

    /// Announces the end. Every accepted call was answered.
    fn announce_end(&self, reason: LinkCloseReason) {
        let leave = v1::Leave {
            crowded: reason == LinkCloseReason::Evicted,
        };
        self.writer.close(Some(&v1::Answer {
            id: 0,
            what: Some(answer::What::Leave(leave)),
        }));
    }

    /// Cancels the link's calls and closes it.
    fn cancel_and_close(&self) {
        if std::mem::replace(&mut self.lock().is_closed, true) {
            return;
        }
        self.executor.cancel_link(self.id);
        self.writer.abandon();
        self.ended.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, LinkSessionReader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EvictableConnection for LinkSession {
    fn peer_ip(&self) -> PeerOrigin {
        self.caller.from
    }

    fn last_active(&self) -> u64 {
        self.last_active.load(Ordering::Relaxed)
    }

    fn evict(&self) -> bool {
        let mut reader = self.lock();
        // The lock keeps the reader out, so no call arrives meanwhile.
        if self.in_flight.load(Ordering::Relaxed) > 0
            || std::mem::replace(&mut reader.is_evicted, true)
        {
            return false;
        }
        drop(reader);
        self.announce_end(LinkCloseReason::Evicted);
        true
    }

    fn close(&self) {
        self.cancel_and_close();
    }
}

#[cfg(test)]
mod tests;
