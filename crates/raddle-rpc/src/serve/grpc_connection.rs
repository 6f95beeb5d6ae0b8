//! A connection that speaks gRPC, as its server reads and writes it: with an end to how long it may stay.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

use super::{
    authorizer::{AuthorizedPeer, PeerOrigin},
    connection_limiter::{ArrivalClock, ConnectionPermit},
};
use crate::stream::WorkerStream;

/// What every client of HTTP/2 begins with.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection that speaks gRPC.
pub(super) struct GrpcConnection {
    stream: WorkerStream,
    visitor: Arc<GrpcPeer>,
    /// What was read of it at the door, and its server has not seen yet.
    preface: &'static [u8],
}

/// Who has come.
pub(super) struct GrpcPeer {
    pub(super) caller: AuthorizedPeer,
    clock: ArrivalClock,
    heard: AtomicU64,
    waits: AtomicUsize,
    is_leaving: AtomicBool,
    reader: AtomicWaker,
}

/// That somebody waits for an answer, until it is dropped.
pub(super) struct WaitGuard(Arc<GrpcPeer>);

impl GrpcConnection {
    /// Over a connection of which [`PREFACE`] was read.
    pub(super) fn new(stream: WorkerStream, caller: AuthorizedPeer, clock: ArrivalClock) -> Self {
        let visitor = GrpcPeer {
            caller,
            heard: clock.now().into(),
            clock,
            waits: AtomicUsize::new(0),
            is_leaving: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        };
        Self {
            stream,
            visitor: Arc::new(visitor),
            preface: PREFACE,
        }
    }

    pub(super) fn visitor(&self) -> &Arc<GrpcPeer> {
        &self.visitor
    }
}

impl GrpcPeer {
    /// Has it stay until this is dropped.
    pub(super) fn waits(self: &Arc<Self>) -> WaitGuard {
        self.waits.fetch_add(1, Ordering::Relaxed);
        WaitGuard(Arc::clone(self))
    }
}

impl Drop for WaitGuard {
    fn drop(&mut self) {
        self.0.waits.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionPermit for GrpcPeer {
    fn from(&self) -> PeerOrigin {
        self.caller.from
    }

    fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    fn make_room(&self) -> bool {
        // A call that comes at this moment is cut off, and its caller cannot tell whether it had begun: as if the way had broken.
        let leaves = self.waits.load(Ordering::Relaxed) == 0
            && !self.is_leaving.swap(true, Ordering::Relaxed);
        self.reader.wake();
        leaves
    }

    fn hang_up(&self) {
        // Its server is told that it has, and lets go of it.
    }
}

impl Connected for GrpcConnection {
    type ConnectInfo = Arc<GrpcPeer>;

    fn connect_info(&self) -> Arc<GrpcPeer> {
        Arc::clone(&self.visitor)
    }
}

impl AsyncRead for GrpcConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.visitor.reader.register(cx.waker());
        if this.visitor.is_leaving.load(Ordering::Relaxed) {
            // As if it had hung up.
            return Poll::Ready(Ok(()));
        }
        if !this.preface.is_empty() {
            let (next, rest) = this
                .preface
                .split_at(this.preface.len().min(buf.remaining()));
            buf.put_slice(next);
            this.preface = rest;
            return Poll::Ready(Ok(()));
        }
        ready!(this.stream.io().poll_read(cx, buf))?;
        this.visitor
            .heard
            .store(this.visitor.clock.now(), Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for GrpcConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream.io().poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream.io().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.io().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.io().poll_shutdown(cx)
    }
}
