//! A connection, of whatever kind, for those who read and write it by a runtime.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use raddle_wire::frame::GREETING;
use rustix::{
    net::{RecvFlags, sockopt},
    process::geteuid,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tonic::transport::server::Connected;

use super::{Address, channel::ALIVE};
use crate::{
    credentials::{Identity, IdentityError, WorkerCredentials},
    link::{Raw, Socket},
};

/// What speaks over TLS can be either of these.
pub(crate) const LINK: &[u8] = b"raddle/1";
pub(crate) const GRPC: &[u8] = b"h2";

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// To whoever serves there; with credentials, to whoever proves to be a worker, and in one of these protocols.
    pub(crate) async fn connect(
        address: &Address,
        credentials: Option<&WorkerCredentials>,
        protocols: &[&[u8]],
    ) -> io::Result<Self> {
        let stream = match address.socket_path() {
            Some(path) => Self::Unix(UnixStream::connect(path).await?),
            None => Self::Tcp(TcpStream::connect(address.to_string()).await?),
        };
        let stream = stream.checked().map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                let message = "somebody else listens there: the worker is gone, and its name was taken";
                io::Error::new(io::ErrorKind::ConnectionRefused, message)
            }
            _ => error,
        })?;
        match (stream, credentials) {
            (Self::Tcp(stream), Some(credentials)) => {
                let host = address.host().unwrap_or_default();
                let name = WorkerCredentials::server_name(host).map_err(io::Error::other)?;
                let connector = TlsConnector::from(credentials.client_config(protocols));
                Ok(Self::Tls(Box::new(connector.connect(name, stream).await?.into())))
            }
            // Of a socket of this machine the system says who has it.
            (stream, _) => Ok(stream),
        }
    }

    /// The same with a client that proves who it is.
    pub(crate) async fn accepted(self, acceptor: &TlsAcceptor) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => Ok(Self::Tls(Box::new(acceptor.accept(stream).await?.into()))),
            stream => Ok(stream),
        }
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
            Self::Tls(_) => {}
        }
        Ok(self)
    }

    /// The same, without a runtime.
    pub(crate) fn into_socket(self) -> io::Result<Socket> {
        let (raw, tls) = match self {
            Self::Unix(stream) => return Ok(Socket::new(Raw::Unix(stream.into_std()?), None)),
            Self::Tcp(stream) => (stream, None),
            Self::Tls(stream) => match *stream {
                TlsStream::Client(stream) => {
                    let (stream, tls) = stream.into_inner();
                    (stream, Some(tls.into()))
                }
                TlsStream::Server(stream) => {
                    let (stream, tls) = stream.into_inner();
                    (stream, Some(tls.into()))
                }
            },
        };
        Ok(Socket::new(Raw::Tcp(raw.into_std()?), tls))
    }

    /// Whether a client wants a link: by the protocol that was agreed on, else by its first byte, which is left where it is.
    pub(crate) async fn wants_link(&self) -> io::Result<bool> {
        let mut first = [0];
        let read = match self {
            Self::Tls(stream) => return Ok(stream.get_ref().1.alpn_protocol() == Some(LINK)),
            Self::Tcp(stream) => stream.peek(&mut first).await?,
            Self::Unix(stream) => {
                let look = || Ok(rustix::net::recv(stream, &mut first, RecvFlags::PEEK)?.0);
                stream.async_io(tokio::io::Interest::READABLE, look).await?
            }
        };
        Ok(read > 0 && first[0] == GREETING[0])
    }

    /// Whether gRPC was agreed on, and nothing else.
    pub(crate) fn is_grpc(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.get_ref().1.alpn_protocol() != Some(LINK))
    }

    /// Who is at the other end.
    pub(crate) fn peer(&self) -> Result<Peer, IdentityError> {
        Ok(match self {
            Self::Unix(_) => Peer::User,
            Self::Tcp(_) => Peer::Anybody,
            Self::Tls(stream) => Peer::Proven(Identity::of_peer(stream.get_ref().1.peer_certificates())?),
        })
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// This user, on this machine.
    User,
    /// Nobody knows.
    Anybody,
    /// Whom a certificate names, if one was asked for.
    Proven(Option<Identity>),
}

impl Connected for Stream {
    /// What cannot be read proves nothing.
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer().unwrap_or(Peer::Proven(None))
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
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
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
