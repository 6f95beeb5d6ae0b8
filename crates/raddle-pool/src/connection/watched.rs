//! A connection to a worker that has no links, and whose machine may go without a word.
//!
//! Over a link a silent worker is asked whether it is there. Here there is nothing to ask with, and no need to: a call is something that was sent, and a
//! machine that is there acknowledges it at once, however long its worker then takes.

use std::{
    io,
    net::Shutdown,
    os::fd::AsFd,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, ReadBuf},
    task::AbortHandle,
    time::{Instant, sleep},
};

use super::pulse::{FAR, Unacknowledged};
use crate::{
    link::{Raw, Socket},
    stream::{Stream, written_through},
};

/// A connection that is ended when the machine at its other end is gone.
pub(super) struct Watched {
    stream: Stream,
    /// Who looks. Nobody, where a machine cannot go without this one.
    watch: Option<AbortHandle>,
}

impl Watched {
    /// `is_cut` is set when the machine is found to be gone.
    pub(super) fn new(stream: Stream, is_cut: Arc<AtomicBool>) -> Self {
        let socket = match &stream {
            Stream::Unix(_) => None,
            Stream::Tcp(stream) => stream.as_fd().try_clone_to_owned().ok(),
            Stream::Tls(stream) => stream.get_ref().0.as_fd().try_clone_to_owned().ok(),
        };
        let socket = socket.map(|socket| Socket::new(Raw::Tcp(socket.into()), None));
        // Ends with the connection.
        let watch = socket.map(|socket| tokio::spawn(watch(socket, is_cut)).abort_handle());
        Self { stream, watch }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

async fn watch(socket: Socket, is_cut: Arc<AtomicBool>) {
    let mut unacknowledged = Unacknowledged::default();
    while let Some(acknowledged) = socket.acknowledged() {
        if unacknowledged.is_too_long(acknowledged, Instant::now()) {
            is_cut.store(true, Ordering::Relaxed);
            return socket.shut(Shutdown::Both);
        }
        sleep(FAR).await;
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

written_through!(Watched);
