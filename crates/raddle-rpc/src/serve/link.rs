//! Many calls over one connection: the worker's side.
//!
//! It is read on the threads that `async fn`s run on: a call runs where it was read, without waking another thread. While routines block all of those threads,
//! links are read on the control runtime (`Executor::watch_for_blocking`).

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
    connection_limiter::{ArrivalClock, ConnectionLimiter, ConnectionPermit},
    executor::{CallId, Executor},
    reply_sink::ReplySink,
};
use crate::{
    RpcError,
    link::{FEW_CALLS, FlushMode, LinkReader, LinkSocket, LinkWriter, ReadAmount},
};

/// How long a client may take to hang up when it has been told everything.
const HANG_UP: Duration = Duration::from_millis(250);
/// How long a client may read nothing of what waits for it.
const UNREAD: Duration = Duration::from_secs(30);
/// Calls of a link in flight at a time. More than any client of ours has.
const CALLS: usize = 65_536;
/// How often a link is read before it is the turn of others, if there is always more to read.
const IN_A_ROW: u32 = 2;

/// The links of a worker that are open.
pub(super) struct LinkServer {
    pub(super) guests: Arc<ConnectionLimiter>,
    open: Mutex<OpenLinks>,
}

#[derive(Default)]
struct OpenLinks {
    links: Vec<Weak<LinkSession>>,
    /// Those who send what is left to be sent.
    writers: JoinSet<()>,
    is_over: bool,
}

/// One of them.
pub(super) struct LinkSession {
    number: u64,
    socket: Arc<LinkSocket>,
    writer: Arc<LinkWriter>,
    executor: Arc<Executor>,
    caller: AuthorizedPeer,
    /// Calls that were taken and not ended.
    in_flight: Arc<AtomicUsize>,
    clock: ArrivalClock,
    /// When it was last heard.
    heard: AtomicU64,
    reader: Mutex<LinkSessionReader>,
    /// Nobody wants answers any more.
    ended: Notify,
}

/// Why nothing more is taken of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkCloseReason {
    /// The worker ends.
    Stops,
    /// Others need the room.
    Crowded,
}

struct LinkSessionReader {
    inbox: LinkReader,
    /// The task that reads, and the runtime that it is on.
    task: Option<(runtime::Id, AbortHandle)>,
    /// It was told that nothing more is taken, and what it says is passed over.
    is_leaving: bool,
    is_over: bool,
}

impl LinkServer {
    pub(super) fn new(guests: Arc<ConnectionLimiter>) -> Arc<Self> {
        Arc::new(Self {
            guests,
            open: Mutex::default(),
        })
    }

    /// Begins to serve a client. To be called where the writer can run: not on a thread that routines can block.
    pub(super) fn begin(
        &self,
        socket: LinkSocket,
        caller: AuthorizedPeer,
        executor: &Arc<Executor>,
    ) {
        let socket = Arc::new(socket);
        let (writer, clock) = (LinkWriter::new(Arc::clone(&socket)), self.guests.clock());
        let reader = LinkSessionReader {
            inbox: LinkReader::new(),
            task: None,
            is_leaving: false,
            is_over: false,
        };
        let link = Arc::new(LinkSession {
            number: executor.new_link(),
            socket,
            writer: Arc::clone(&writer),
            executor: Arc::clone(executor),
            caller,
            in_flight: Arc::default(),
            heard: clock.now().into(),
            clock,
            reader: Mutex::new(reader),
            ended: Notify::new(),
        });
        let mut open = self.lock();
        // Nothing of it was read, so that nothing was taken.
        if open.is_over {
            return link.leave(LinkCloseReason::Stops);
        }
        if !self.guests.admit(&link) {
            return link.leave(LinkCloseReason::Crowded);
        }
        open.links.retain(|link| link.strong_count() > 0);
        open.links.push(Arc::downgrade(&link));
        while open.writers.try_join_next().is_some() {}
        let ending = Arc::clone(&link);
        open.writers.spawn(async move {
            match writer.write(UNREAD).await {
                Err(error) => ending.hang_up_for(&error),
                // Until the client has hung up: what it has sent and nobody has read would have the system throw away what it has not read.
                Ok(()) => drop(timeout(HANG_UP, ending.ended.notified()).await),
            }
            ending.end();
        });
        drop(open);
        link.read_on(&executor.setup.threads);
    }

    /// Has all links read by these threads.
    pub(super) fn move_to(&self, threads: &Handle) {
        self.all().iter().for_each(|link| link.read_on(threads));
    }

    /// Ends all links in good order. Returns when everything was sent, or when it has taken too long.
    pub(super) async fn leave(&self, patience: Duration) {
        self.lock().is_over = true;
        self.all()
            .iter()
            .for_each(|link| link.leave(LinkCloseReason::Stops));
        let mut writers = std::mem::take(&mut self.lock().writers);
        let _ = timeout(patience, async {
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
    /// Has it read by these threads from now on.
    fn read_on(self: &Arc<Self>, threads: &Handle) {
        let mut reader = self.lock();
        if reader
            .task
            .as_ref()
            .is_some_and(|(runtime, _)| *runtime == threads.id())
        {
            return;
        }
        // Ends with the link, or when another takes over.
        let task = threads.spawn(Arc::clone(self).read()).abort_handle();
        if let Some((_, before)) = reader.task.replace((threads.id(), task)) {
            before.abort();
        }
    }

    async fn read(self: Arc<Self>) {
        let Ok(readable) = self.socket.readable() else {
            return self.end();
        };
        let mut in_a_row = 0;
        while let Ok(mut ready) = readable.readable().await {
            match self.read_once() {
                Ok(ReadAmount::Some) => in_a_row += 1,
                Ok(ReadAmount::All) => {
                    ready.clear_ready();
                    in_a_row = 0;
                }
                Ok(ReadAmount::Last) => break,
                Err(error) => {
                    self.hang_up_for(&error);
                    break;
                }
            }
            drop(ready);
            // Nobody gets to speak for ever while others want to.
            if in_a_row == IN_A_ROW {
                in_a_row = 0;
                yield_now().await;
            }
            // Nobody is asked what more it wants who does not take what it has got.
            if self.writer.is_full() {
                self.writer.wait_for_room().await;
            }
        }
        self.end();
    }

    fn read_once(&self) -> io::Result<ReadAmount> {
        let mut reader = self.lock();
        if reader.is_over {
            return Ok(ReadAmount::Last);
        }
        self.heard.store(self.clock.now(), Ordering::Relaxed);
        let LinkSessionReader {
            inbox, is_leaving, ..
        } = &mut *reader;
        let mut frames = 0;
        inbox.read(&self.socket, |frame| {
            if *is_leaving {
                return Ok(());
            }
            frames += 1;
            // What comes with many others is answered with them.
            let haste = if frames <= FEW_CALLS {
                FlushMode::Now
            } else {
                FlushMode::Deferred
            };
            self.hear(frame, haste)
        })
    }

    fn hear(&self, frame: Frame, haste: FlushMode) -> io::Result<()> {
        let Frame { head, body } = frame;
        let v1::Request { id, what } = v1::Request::decode(head)?;
        let number = CallId {
            link: self.number,
            id,
        };
        match what {
            Some(What::Call(call)) => {
                let sink = ReplySink::of_link(id, &self.writer, &self.in_flight);
                let call = v1::Call {
                    arguments: body,
                    ..call
                };
                let begun = self
                    .has_room()
                    .and_then(|()| self.executor.begin(number, call, &self.caller, &sink));
                if let Err(error) = begun {
                    sink.refuse(&error, haste);
                }
            }
            Some(What::Credit(items)) if !self.executor.allow(number, items) => {
                let message = "more credit is given than anybody can need";
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            Some(What::Credit(_)) => {}
            Some(What::Cancel(_)) => self.executor.cancel(number),
            Some(What::Ping(_)) => self.say(answer::What::Pong(v1::Pong {}), haste),
            // Of a later version.
            None => {}
        }
        Ok(())
    }

    /// Whether one more call may be in flight.
    fn has_room(&self) -> Result<(), RpcError> {
        if self.in_flight.load(Ordering::Relaxed) <= CALLS {
            return Ok(());
        }
        let message = format!("{CALLS} calls of this link are in flight");
        let full = RpcError::refused(Code::ResourceExhausted, message);
        self.executor.setup.gate.decline(&full, self.caller.from);
        Err(full)
    }

    /// Says why it is hung up on.
    fn hang_up_for(&self, error: &io::Error) {
        self.executor.setup.gate.hang_up_on(error, self.caller.from);
    }

    /// Says something that is not of a call.
    fn say(&self, what: answer::What, haste: FlushMode) {
        // A client that is gone does not want to know.
        let _ = self.writer.push(
            0,
            &v1::Answer {
                id: 0,
                what: Some(what),
            },
            Bytes::new(),
            haste,
        );
    }

    /// Says that nothing more will come. All that was taken has been answered.
    fn leave(&self, why: LinkCloseReason) {
        let leave = v1::Leave {
            crowded: why == LinkCloseReason::Crowded,
        };
        self.writer.close(Some(&v1::Answer {
            id: 0,
            what: Some(answer::What::Leave(leave)),
        }));
    }

    /// Nobody wants answers any more.
    fn end(&self) {
        if std::mem::replace(&mut self.lock().is_over, true) {
            return;
        }
        self.executor.cancel_link(self.number);
        self.writer.abandon();
        self.ended.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, LinkSessionReader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit for LinkSession {
    fn from(&self) -> PeerOrigin {
        self.caller.from
    }

    fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    fn make_room(&self) -> bool {
        let mut reader = self.lock();
        // Nothing is read meanwhile, so that nothing is taken.
        if self.in_flight.load(Ordering::Relaxed) > 0
            || std::mem::replace(&mut reader.is_leaving, true)
        {
            return false;
        }
        drop(reader);
        self.leave(LinkCloseReason::Crowded);
        true
    }

    fn hang_up(&self) {
        self.end();
    }
}

#[cfg(test)]
mod tests;
