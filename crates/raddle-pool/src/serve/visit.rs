//! A connection that speaks gRPC, as its server reads and writes it: with an end to how long it may take to begin, and to how long it may stay.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use tokio::{
    io::{AsyncRead, ReadBuf},
    time::{Sleep, sleep},
};
use tonic::transport::server::Connected;

use super::{
    gate::{Caller, Gate, Origin},
    guests::{Clock, Guest},
};
use crate::stream::{Stream, written_through};

/// What every client of HTTP/2 begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection that speaks gRPC.
pub(super) struct Visit {
    stream: Stream,
    visitor: Arc<Visitor>,
    gate: Arc<Gate>,
    /// Until it has said what it is to begin with.
    beginning: Option<Beginning>,
}

/// What is left to be said, and until when.
struct Beginning {
    left: &'static [u8],
    deadline: Pin<Box<Sleep>>,
}

/// Who has come.
pub(super) struct Visitor {
    pub(super) caller: Caller,
    clock: Clock,
    heard: AtomicU64,
    waits: AtomicUsize,
    is_leaving: AtomicBool,
    reader: AtomicWaker,
}

/// That somebody waits for an answer, until it is dropped.
pub(super) struct Waits(Arc<Visitor>);

impl Visit {
    pub(super) fn new(stream: Stream, caller: Caller, clock: Clock, gate: Arc<Gate>, patience: Duration) -> Self {
        let visitor = Visitor {
            caller,
            heard: clock.now().into(),
            clock,
            waits: AtomicUsize::new(0),
            is_leaving: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        };
        let beginning = Beginning { left: PREFACE, deadline: Box::pin(sleep(patience)) };
        Self { stream, visitor: Arc::new(visitor), gate, beginning: Some(beginning) }
    }

    pub(super) fn visitor(&self) -> &Arc<Visitor> {
        &self.visitor
    }

    /// It is not served any longer, because of this.
    fn turned_away(&self, why: io::ErrorKind) -> Poll<io::Result<()>> {
        self.gate.turn_away(&why.into(), self.visitor.caller.from);
        Poll::Ready(Err(why.into()))
    }
}

impl Visitor {
    /// Has it stay until this is dropped.
    pub(super) fn waits(self: &Arc<Self>) -> Waits {
        self.waits.fetch_add(1, Ordering::Relaxed);
        Waits(Arc::clone(self))
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.waits.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Guest for Visitor {
    fn from(&self) -> Origin {
        self.caller.from
    }

    fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    fn make_room(&self) -> bool {
        // A call that comes at this moment is cut off, and its caller cannot tell whether it had begun: as if the way had broken.
        let leaves = self.waits.load(Ordering::Relaxed) == 0 && !self.is_leaving.swap(true, Ordering::Relaxed);
        self.reader.wake();
        leaves
    }

    fn hang_up(&self) {
        // Its server is told that it has, and lets go of it.
    }
}

impl Connected for Visit {
    type ConnectInfo = Arc<Visitor>;

    fn connect_info(&self) -> Arc<Visitor> {
        Arc::clone(&self.visitor)
    }
}

impl AsyncRead for Visit {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.visitor.reader.register(cx.waker());
        if this.visitor.is_leaving.load(Ordering::Relaxed) {
            // As if it had hung up.
            return Poll::Ready(Ok(()));
        }
        if this.beginning.as_mut().is_some_and(|beginning| beginning.deadline.as_mut().poll(cx).is_ready()) {
            return this.turned_away(io::ErrorKind::TimedOut);
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        this.visitor.heard.store(this.visitor.clock.now(), Ordering::Relaxed);
        if let Some(beginning) = &mut this.beginning {
            let said = &buf.filled()[before..];
            let (said, left) = (&said[..said.len().min(beginning.left.len())], beginning.left);
            if !left.starts_with(said) {
                return this.turned_away(io::ErrorKind::InvalidData);
            }
            beginning.left = &left[said.len()..];
            this.beginning.take_if(|beginning| beginning.left.is_empty());
        }
        Poll::Ready(Ok(()))
    }
}

written_through!(Visit);
