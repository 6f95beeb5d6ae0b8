//! A connection, of whatever kind, for those who read and write it by a runtime.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use rustix::{net::sockopt, process::geteuid};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tonic::transport::server::Connected;

use super::{Address, channel::ALIVE};
use crate::link::Socket;

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// To whoever serves there.
    pub(crate) async fn connect(address: &Address) -> io::Result<Self> {
        let stream = match address.socket_path() {
            Some(path) => Self::Unix(UnixStream::connect(path).await?),
            None => Self::Tcp(TcpStream::connect(address.to_string()).await?),
        };
        stream.checked().map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                let message = "somebody else listens there: the worker is gone, and its name was taken";
                io::Error::new(io::ErrorKind::ConnectionRefused, message)
            }
            _ => error,
        })
    }

    /// Looks at who is at the other end of a Unix socket: every user of the machine can listen, and connect, under a name that has no file. It
    /// may be this user, or root.
    pub(crate) fn checked(self) -> io::Result<Self> {
        match &self {
            Self::Unix(stream) => {
                let user = stream.peer_cred()?.uid();
                if user != 0 && user != geteuid().as_raw() {
                    return Err(io::ErrorKind::PermissionDenied.into());
                }
            }
            Self::Tcp(stream) => {
                stream.set_nodelay(true)?;
                // A machine that is gone says nothing: whoever has nothing to say to it either finds out all the same.
                sockopt::set_socket_keepalive(stream, true)?;
                sockopt::set_tcp_keepidle(stream, ALIVE)?;
                sockopt::set_tcp_keepintvl(stream, ALIVE / 4)?;
                sockopt::set_tcp_keepcnt(stream, 4)?;
            }
        }
        Ok(self)
    }

    /// The same, without a runtime.
    pub(crate) fn into_socket(self) -> io::Result<Socket> {
        Ok(match self {
            Self::Unix(stream) => Socket::Unix(stream.into_std()?),
            Self::Tcp(stream) => Socket::Tcp(stream.into_std()?),
        })
    }

    /// Waits for the first byte, and leaves it where it is. `None` if there will be none.
    pub(crate) async fn peek(&self) -> io::Result<Option<u8>> {
        let mut first = [0];
        let read = match self {
            Self::Tcp(stream) => stream.peek(&mut first).await?,
            Self::Unix(stream) => {
                let look = || Ok(rustix::net::recv(stream, &mut first, rustix::net::RecvFlags::PEEK)?.0);
                stream.async_io(tokio::io::Interest::READABLE, look).await?
            }
        };
        Ok((read > 0).then_some(first[0]))
    }
}

impl Connected for Stream {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
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
