//! Where a worker serves.

use std::{
    future::Future,
    io,
    path::Path,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream, lookup_host},
    time::{Sleep, sleep},
};
use tonic::transport::server::Connected;

use crate::connection::{Address, is_trusted};

/// How long nobody is let in after somebody could not be: no descriptor is to be had, and one that ends gives its own back.
const PAUSE: Duration = Duration::from_millis(50);

/// A socket that listens.
pub(super) struct Listener {
    socket: Socket,
    pause: Option<Pin<Box<Sleep>>>,
}

enum Socket {
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
    fn new(socket: Socket) -> Self {
        Self { socket, pause: None }
    }

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
            return Ok((Self::new(Socket::Unix(bound.map_err(failed)?)), address.clone()));
        }
        // Before anything listens there.
        let places: Vec<_> = lookup_host(address.to_string()).await.map_err(failed)?.collect();
        if !places.iter().all(|place| place.ip().is_loopback()) {
            return Err(ListenError::Exposed(address.to_string()));
        }
        let listener = TcpListener::bind(&places[..]).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        Ok((Self::new(Socket::Tcp(listener)), Address::Tcp(bound.to_string())))
    }
}

impl Socket {
    /// The next client that may come. A socket without a file can be found by every user of the machine, so it is looked at who it is.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Client>> {
        loop {
            match self {
                Self::Unix(listener) => match ready!(listener.poll_accept(cx)) {
                    Ok((client, _)) if is_trusted(&client) => return Poll::Ready(Ok(Client::Unix(client))),
                    Ok(_) => {}
                    Err(error) => return Poll::Ready(Err(error)),
                },
                Self::Tcp(listener) => {
                    let (client, _) = ready!(listener.poll_accept(cx))?;
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

impl Stream for Listener {
    type Item = io::Result<Client>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        let accepted = ready!(self.socket.poll_accept(cx));
        if accepted.is_err() {
            self.pause = Some(Box::pin(sleep(PAUSE)));
        }
        Poll::Ready(Some(accepted))
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
