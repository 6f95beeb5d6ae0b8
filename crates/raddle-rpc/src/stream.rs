//! A byte stream between caller and worker (Unix, TCP or TLS), and the protocol constants that both
//! sides share.

use std::{io, net::IpAddr, pin::Pin, time::Duration};

use raddle_discovery::Address;
use raddle_tls::{Identity, IdentityError, WorkerCredentials};
use rustix::{net::sockopt, process::geteuid};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::link::LinkSocket;

/// ALPN protocols of links and gRPC.
pub(crate) const LINK: &[u8] = b"raddle/1";
pub(crate) const GRPC: &[u8] = b"h2";
/// HTTP/2 flow control windows.
pub(crate) const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
pub(crate) const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// The largest gRPC message. Larger data belongs into a file.
pub(crate) const MAX_MESSAGE: usize = 256 * 1024 * 1024;
/// The largest value in a message, which leaves room for the rest of it.
pub(crate) const MAX_VALUE: usize = raddle_wire::frame::MAX_BODY;
/// Keep-alive interval, and how long a peer may take to answer a keep-alive ping.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// `TCP_USER_TIMEOUT`: a machine that leaves data unacknowledged, or reads nothing, for this long
/// is gone. Longer than the worker's own timeout for callers that read nothing (which it counts by
/// reason), so that the worker notices first.
const UNACKED_TIMEOUT: Duration = KEEP_ALIVE.saturating_mul(4);

/// A connection between caller and worker.
#[derive(Debug)]
pub(crate) enum WorkerStream {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A stream of any kind, for a runtime.
pub(crate) trait RuntimeStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> RuntimeStream for T {}

impl WorkerStream {
    /// Connects to `address`; with credentials, over TLS with one of `protocols`.
    pub(crate) async fn connect(
        address: &Address,
        credentials: Option<&WorkerCredentials>,
        protocols: &[&[u8]],
    ) -> io::Result<Self> {
        let stream = match address.socket_path() {
            // A Unix socket has no TLS, so its peer could not prove its identity: credentials mean
            // that the caller wants that proof.
            Some(_) if credentials.is_some() => {
                let message = "credentials were given, and a Unix socket has no TLS: use a TCP address, or no credentials";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
            }
            Some(path) => Self::Unix(UnixStream::connect(path).await?),
            None => {
                let (host, port) = (
                    address.host().unwrap_or_default(),
                    address.port().unwrap_or_default(),
                );
                Self::Tcp(raddle_dns::connect(host, port).await?)
            }
        };
        let stream = stream.into_checked().map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                let message =
                    "another user listens at this address: the worker is gone, and its name was taken";
                io::Error::new(io::ErrorKind::ConnectionRefused, message)
            }
            _ => error,
        })?;
        match (stream, credentials) {
            (Self::Tcp(stream), Some(credentials)) => {
                let host = address.host().unwrap_or_default();
                let name = WorkerCredentials::server_name(host).map_err(io::Error::other)?;
                let connector = TlsConnector::from(credentials.client_config(protocols));
                Ok(Self::Tls(Box::new(
                    connector.connect(name, stream).await?.into(),
                )))
            }
            // The kernel names the peer of a Unix socket (`SO_PEERCRED`).
            (stream, _) => Ok(stream),
        }
    }

    /// Accepts a TLS client on a TCP stream.
    pub(crate) async fn accept_tls(self, acceptor: &TlsAcceptor) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => Ok(Self::Tls(Box::new(acceptor.accept(stream).await?.into()))),
            stream => Ok(stream),
        }
    }

    /// Checks the peer of a Unix socket, and sets the timeouts of a TCP one. Any user of the
    /// machine can bind, and connect to, an abstract name; only this user and root are accepted.
    pub(crate) fn into_checked(self) -> io::Result<Self> {
        match &self {
            Self::Unix(stream) => {
                let user = stream.peer_cred()?.uid();
                if user != 0 && user != geteuid().as_raw() {
                    return Err(io::ErrorKind::PermissionDenied.into());
                }
            }
            Self::Tcp(stream) => {
                stream.set_nodelay(true)?;
                // A machine that is gone sends nothing. Keep-alive detects that on an idle
                // connection.
                sockopt::set_socket_keepalive(stream, true)?;
                sockopt::set_tcp_keepidle(stream, KEEP_ALIVE)?;
                sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE / 4)?;
                sockopt::set_tcp_keepcnt(stream, 4)?;
                // While data is unacknowledged, the kernel retransmits instead of probing, for a
                // quarter of an hour by default.
                sockopt::set_tcp_user_timeout(stream, UNACKED_TIMEOUT.as_millis() as u32)?;
            }
            Self::Tls(_) => {}
        }
        Ok(self)
    }

    /// Converts into a socket without a runtime.
    pub(crate) fn into_socket(self) -> io::Result<LinkSocket> {
        let (raw, tls) = match self {
            Self::Unix(stream) => {
                return Ok(LinkSocket::new(stream.into_std()?.into(), false, None));
            }
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
        Ok(LinkSocket::new(raw.into_std()?.into(), true, tls))
    }

    /// For reading and writing.
    pub(crate) fn io(&mut self) -> Pin<&mut dyn RuntimeStream> {
        match self {
            Self::Unix(stream) => Pin::new(stream),
            Self::Tcp(stream) => Pin::new(stream),
            Self::Tls(stream) => Pin::new(stream),
        }
    }

    /// For a library that reads and writes it.
    pub(crate) fn into_io(self) -> Pin<Box<dyn RuntimeStream>> {
        match self {
            Self::Unix(stream) => Box::pin(stream),
            Self::Tcp(stream) => Box::pin(stream),
            Self::Tls(stream) => Box::pin(stream),
        }
    }

    /// The TCP socket, if any.
    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp(stream) => Some(stream),
            Self::Tls(stream) => Some(stream.get_ref().0),
        }
    }

    /// Sets `TCP_USER_TIMEOUT`: the kernel closes the connection when the peer leaves data
    /// unacknowledged for this long.
    pub(crate) fn set_user_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.tcp().map_or(Ok(()), |stream| {
            Ok(sockopt::set_tcp_user_timeout(
                stream,
                timeout.as_millis() as u32,
            )?)
        })
    }

    /// The peer's IP address. `None` on a Unix socket.
    pub(crate) fn peer_ip(&self) -> Option<IpAddr> {
        self.tcp()?
            .peer_addr()
            .ok()
            .map(|address| address.ip().to_canonical())
    }

    /// Whether ALPN has selected gRPC.
    pub(crate) fn is_grpc(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.get_ref().1.alpn_protocol() != Some(LINK))
    }

    /// Whether the peer is certainly on this machine: it has the same IP address, or a loopback
    /// address.
    pub(crate) fn is_local(&self) -> bool {
        let is_same = |peer: IpAddr, own: IpAddr| peer == own || peer.to_canonical().is_loopback();
        self.tcp()
            .is_none_or(|stream| match (stream.peer_addr(), stream.local_addr()) {
                (Ok(peer), Ok(own)) => is_same(peer.ip(), own.ip()),
                _ => false,
            })
    }

    /// The identity of the peer.
    pub(crate) fn peer(&self) -> Result<PeerIdentity, IdentityError> {
        Ok(match self {
            Self::Unix(_) => PeerIdentity::SameUser,
            Self::Tcp(_) => PeerIdentity::Unknown,
            Self::Tls(stream) => PeerIdentity::Certificate(Identity::from_peer_chain(
                stream.get_ref().1.peer_certificates(),
            )?),
        })
    }
}

/// The identity of a connection's peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PeerIdentity {
    /// This user, on this machine (`SO_PEERCRED`).
    SameUser,
    /// Unknown.
    Unknown,
    /// The identity in the peer's certificate, if the peer has shown one.
    Certificate(Option<Identity>),
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Caller and worker can each lose the other's machine.
    #[tokio::test]
    async fn both_ends_detect_a_lost_machine() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let (connected, accepted) = tokio::join!(
            WorkerStream::connect(&address, None, &[]),
            listener.accept()
        );
        let accepted = WorkerStream::Tcp(accepted.unwrap().0)
            .into_checked()
            .unwrap();
        assert!(accepted.is_local());
        for stream in [connected.unwrap(), accepted] {
            let WorkerStream::Tcp(stream) = stream else {
                panic!("a port")
            };
            assert!(sockopt::socket_keepalive(&stream).unwrap());
            assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 40_000);
        }
    }
}
