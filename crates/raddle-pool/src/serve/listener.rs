//! Where a worker serves.

use std::{
    io,
    path::Path,
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;
use rustix::process::geteuid;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};
use tonic::transport::server::Connected;

use crate::connection::Address;

/// A socket that listens.
pub(super) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A client that has come.
pub(super) enum Client {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListenError {
    #[error("'{0}' is reached from other machines, which needs TLS: serve at a loopback address or a Unix socket")]
    Exposed(String),
    #[error("cannot serve at {0}: {1}")]
    Io(String, #[source] io::Error),
}

impl Listener {
    /// Listens there. Returns what the address has become, where the port was any.
    pub(super) async fn bind(address: &Address) -> Result<(Self, Address), ListenError> {
        let failed = |error| ListenError::Io(address.to_string(), error);
        if let Some(path) = address.socket_path() {
            let bound = match UnixListener::bind(&path) {
                // The file of one that was killed: nobody listens there any more.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_behind(&path) => {
                    std::fs::remove_file(&path).and_then(|()| UnixListener::bind(&path))
                }
                bound => bound,
            };
            return Ok((Self::Unix(bound.map_err(failed)?), address.clone()));
        }
        let listener = TcpListener::bind(address.to_string()).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        if !bound.ip().is_loopback() {
            return Err(ListenError::Exposed(address.to_string()));
        }
        Ok((Self::Tcp(listener), Address::Tcp(bound.to_string())))
    }

    /// The next client that may come. A socket without a file can be found by every user of the machine, so it is looked at who it is.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Client>> {
        loop {
            match self {
                Self::Unix(listener) => match std::task::ready!(listener.poll_accept(cx)) {
                    Ok((client, _)) if is_known(&client) => return Poll::Ready(Ok(Client::Unix(client))),
                    Ok(_) => {}
                    Err(error) => return Poll::Ready(Err(error)),
                },
                Self::Tcp(listener) => {
                    let (client, _) = std::task::ready!(listener.poll_accept(cx))?;
                    client.set_nodelay(true)?;
                    return Poll::Ready(Ok(Client::Tcp(client)));
                }
            }
        }
    }
}

fn is_left_behind(path: &Path) -> bool {
    let met = std::os::unix::net::UnixStream::connect(path);
    met.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn is_known(client: &UnixStream) -> bool {
    client.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == geteuid().as_raw())
}

impl Stream for Listener {
    type Item = io::Result<Client>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_accept(cx).map(Some)
    }
}

impl Connected for Client {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Client {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
