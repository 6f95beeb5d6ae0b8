//! Many calls over one connection: the worker's side.
//!
//! It is read on the threads that routines run on: a call that has come is run where it was read, without waking anybody. A routine that then
//! blocks the thread blocks nobody else, for another takes over; and if all are blocked, the links move with the calls that wait.

use std::{
    io,
    net::Shutdown,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::AtomicUsize},
    time::Duration,
};

use bytes::Bytes;
use raddle_wire::{
    DecodeError, Message,
    frame::Frame,
    v1::{self, answer, request::What},
};
use tokio::{
    runtime::{self, Handle},
    sync::Notify,
    task::JoinSet,
    time::timeout,
};

use super::{
    executor::{Executor, Number},
    gate::Gate,
    sink::Sink,
};
use crate::{
    connection::Peer,
    credentials::Action,
    link::{Haste, Inbox, Outbox, Read, Socket},
};

/// How long a client may take to hang up when it has been told everything.
const HANG_UP: Duration = Duration::from_millis(250);

/// The links of a worker that are open.
pub(super) struct Links {
    gate: Arc<Gate>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    links: Vec<Weak<Link>>,
    /// Those who send what is left to be sent.
    writers: JoinSet<()>,
    is_over: bool,
}

/// One of them.
pub(super) struct Link {
    number: u64,
    socket: Arc<Socket>,
    outbox: Arc<Outbox>,
    executor: Arc<Executor>,
    gate: Arc<Gate>,
    peer: Peer,
    /// Calls that were taken and not ended.
    in_flight: Arc<AtomicUsize>,
    reader: Mutex<Reader>,
    /// Nobody wants answers any more.
    ended: Notify,
}

struct Reader {
    inbox: Inbox,
    /// How often somebody else has taken over to read. Who was it before is to leave it.
    turn: usize,
    /// Who has.
    runtime: Option<runtime::Id>,
    is_over: bool,
}

impl Links {
    pub(super) fn new(gate: Arc<Gate>) -> Arc<Self> {
        Arc::new(Self { gate, open: Mutex::default() })
    }

    /// Begins to serve a client. To be called where the writer can run: not on a thread that routines can block.
    pub(super) fn begin(&self, socket: Socket, peer: Peer, executor: &Arc<Executor>) {
        let socket = Arc::new(socket);
        let outbox = Outbox::new(Arc::clone(&socket));
        let link = Arc::new(Link {
            number: executor.new_link(),
            socket,
            outbox: Arc::clone(&outbox),
            executor: Arc::clone(executor),
            gate: Arc::clone(&self.gate),
            peer,
            in_flight: Arc::default(),
            reader: Mutex::new(Reader { inbox: Inbox::new(), turn: 0, runtime: None, is_over: false }),
            ended: Notify::new(),
        });
        let mut open = self.lock();
        if open.is_over {
            // Nothing of it was read, so that nothing was taken.
            return link.leave();
        }
        open.links.retain(|link| link.strong_count() > 0);
        open.links.push(Arc::downgrade(&link));
        while open.writers.try_join_next().is_some() {}
        let ending = Arc::clone(&link);
        open.writers.spawn(async move {
            match outbox.write().await {
                Err(_) => ending.end(),
                // Until the client has hung up: what it has sent and nobody has read would have the system throw away what it has not read.
                Ok(()) => drop(timeout(HANG_UP, ending.ended.notified()).await),
            }
        });
        drop(open);
        link.read_on(&executor.threads());
    }

    /// Has all links read by these threads.
    pub(super) fn move_to(&self, threads: &Handle) {
        self.all().iter().for_each(|link| link.read_on(threads));
    }

    /// Ends all links in good order. Returns when everything was sent, or when it has taken too long.
    pub(super) async fn leave(&self, patience: Duration) {
        self.lock().is_over = true;
        self.all().iter().for_each(|link| link.leave());
        let mut writers = std::mem::take(&mut self.lock().writers);
        let _ = timeout(patience, async { while writers.join_next().await.is_some() {} }).await;
    }

    fn all(&self) -> Vec<Arc<Link>> {
        self.lock().links.iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    /// Has it read by these threads from now on.
    fn read_on(self: &Arc<Self>, threads: &Handle) {
        let turn = {
            let mut reader = self.lock();
            if reader.runtime.replace(threads.id()) == Some(threads.id()) {
                return;
            }
            reader.turn += 1;
            reader.turn
        };
        // Ends with the link.
        threads.spawn(Arc::clone(self).read(turn));
    }

    async fn read(self: Arc<Self>, turn: usize) {
        let Ok(readable) = self.socket.readable() else { return self.end() };
        while let Ok(mut ready) = readable.readable().await {
            match self.read_once(turn) {
                Ok(Some(Read::Some)) => {}
                Ok(Some(Read::All)) => ready.clear_ready(),
                Ok(None) => return,
                Ok(Some(Read::Last)) | Err(_) => break,
            }
        }
        self.end();
    }

    /// Reads once, if it is still this one's turn.
    fn read_once(&self, turn: usize) -> io::Result<Option<Read>> {
        let mut reader = self.lock();
        if reader.turn != turn || reader.is_over {
            return Ok(None);
        }
        let mut wrong = None;
        let read = reader.inbox.read(&self.socket, |frame| {
            if let Err(error) = self.hear(frame) {
                wrong = Some(error);
            }
        })?;
        wrong.map_or(Ok(Some(read)), |error| Err(io::Error::other(error)))
    }

    fn hear(&self, frame: Frame) -> Result<(), DecodeError> {
        let Frame { head, body } = frame;
        let v1::Request { id, what } = v1::Request::decode(head)?;
        let number = Number { link: self.number, id };
        match what {
            Some(What::Call(call)) => {
                let sink = Sink::of_link(id, &self.outbox, &self.in_flight);
                let is_allowed = self.gate.check(&self.peer, Action::Call(&call.routine));
                let call = v1::Call { arguments: body, ..call };
                let begin = |()| {
                    let begun = self.executor.begin(number, call, &sink);
                    begun.inspect_err(|error| self.gate.decline(error))
                };
                if let Err(error) = is_allowed.and_then(begin) {
                    sink.refuse(&error);
                }
            }
            Some(What::Credit(items)) => self.executor.allow(number, items),
            Some(What::Cancel(_)) => self.executor.cancel(number),
            Some(What::Ping(_)) => self.say(answer::What::Pong(v1::Pong {})),
            // Of a later version.
            None => {}
        }
        Ok(())
    }

    /// Says something that is not of a call.
    fn say(&self, what: answer::What) {
        // A client that is gone does not want to know.
        let _ = self.outbox.push(0, &v1::Answer { id: 0, what: Some(what) }, Bytes::new(), Haste::Now);
    }

    /// Says that nothing more will come. All that was taken has been answered.
    fn leave(&self) {
        self.outbox.close(Some(&v1::Answer { id: 0, what: Some(answer::What::Leave(v1::Leave {})) }));
    }

    /// Nobody wants answers any more.
    fn end(&self) {
        self.lock().is_over = true;
        self.executor.cancel_link(self.number);
        self.outbox.abandon();
        self.socket.shut(Shutdown::Both);
        self.ended.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
