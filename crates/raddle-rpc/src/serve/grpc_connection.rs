//! A gRPC connection, as the tonic server reads and writes it; it can be evicted.

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
    connection_limiter::{ActivityClock, EvictableConnection},
};
use crate::stream::WorkerStream;

/// The HTTP/2 client preface.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A gRPC connection.
pub(super) struct GrpcConnection {
    stream: WorkerStream,
    peer: Arc<GrpcPeer>,
    /// The part of the preface that the acceptor has read and the server has not.
    preface: &'static [u8],
}

/// The peer of a gRPC connection.
pub(super) struct GrpcPeer {
    pub(super) caller: AuthorizedPeer,
    clock: ActivityClock,
    last_active: AtomicU64,
    in_flight: AtomicUsize,
    is_evicted: AtomicBool,
    reader_waker: AtomicWaker,
}

/// Counts a request in flight until dropped.
pub(super) struct RequestGuard(Arc<GrpcPeer>);

impl GrpcConnection {
    /// Wraps a stream of which [`PREFACE`] was read.
    pub(super) fn new(stream: WorkerStream, caller: AuthorizedPeer, clock: ActivityClock) -> Self {
        let peer = GrpcPeer {
            caller,
            last_active: clock.now().into(),
            clock,
            in_flight: AtomicUsize::new(0),
            is_evicted: AtomicBool::new(false),
            reader_waker: AtomicWaker::new(),
        };
        Self {
            stream,
            peer: Arc::new(peer),
            preface: PREFACE,
        }
    }

    pub(super) fn peer(&self) -> &Arc<GrpcPeer> {
        &self.peer
    }
}

impl GrpcPeer {
    /// Protects the connection from eviction until the guard is dropped.
    pub(super) fn track_request(self: &Arc<Self>) -> RequestGuard {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        RequestGuard(Arc::clone(self))
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl EvictableConnection for GrpcPeer {
    fn peer_ip(&self) -> PeerOrigin {
        self.caller.from
    }

    fn last_active(&self) -> u64 {
        self.last_active.load(Ordering::Relaxed)
    }

    fn evict(&self) -> bool {
        // A call that arrives right now is cut off, and its caller cannot tell whether it had
        // begun, as with a broken connection.
        let evicts = self.in_flight.load(Ordering::Relaxed) == 0
            && !self.is_evicted.swap(true, Ordering::Relaxed);
        self.reader_waker.wake();
        evicts
    }

    fn close(&self) {
        // The server sees the end of the stream, and closes the connection.
    }
}

impl Connected for GrpcConnection {
    type ConnectInfo = Arc<GrpcPeer>;

    fn connect_info(&self) -> Arc<GrpcPeer> {
        Arc::clone(&self.peer)
    }
}

impl AsyncRead for GrpcConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.peer.reader_waker.register(cx.waker());
        if this.peer.is_evicted.load(Ordering::Relaxed) {
            // End of stream.
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
        this.peer
            .last_active
            .store(this.peer.clock.now(), Ordering::Relaxed);
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
