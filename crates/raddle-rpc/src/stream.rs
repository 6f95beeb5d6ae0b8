//! A connection, of whatever kind, for those who read and write it by a runtime: callers and workers, by links or gRPC. And what both sides have to agree on.

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

/// What speaks over TLS can be either of these.
pub(crate) const LINK: &[u8] = b"raddle/1";
pub(crate) const GRPC: &[u8] = b"h2";
/// How much may be on its way before the other side has taken it.
pub(crate) const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
pub(crate) const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// The largest message. What is larger belongs into a file.
pub(crate) const MAX_MESSAGE: usize = 256 * 1024 * 1024;
/// The largest value in one, which leaves room for what comes with it.
pub(crate) const MAX_VALUE: usize = raddle_wire::frame::MAX_BODY;
/// A worker that says nothing for so long when it is asked whether it is there is not.
pub(crate) const ALIVE: Duration = Duration::from_secs(10);

/// A machine that does not acknowledge for so long what it is sent, or takes none of it, is gone. Longer than a worker waits for a caller who is there
/// and reads nothing, of whom it says so.
const UNHEARD: Duration = ALIVE.saturating_mul(4);

/// A connection.
#[derive(Debug)]
pub(crate) enum PoolStream {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// What a runtime reads and writes.
pub(crate) trait RuntimeStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> RuntimeStream for T {}

impl PoolStream {
    /// To whoever serves there; with credentials, to whoever proves to be a worker, and in one of these protocols.
    pub(crate) async fn connect(
        address: &Address,
        credentials: Option<&WorkerCredentials>,
        protocols: &[&[u8]],
    ) -> io::Result<Self> {
        let stream = match address.socket_path() {
            // Whoever is to prove who it is cannot at such a socket: where somebody says that it does, he means something else.
            Some(_) if credentials.is_some() => {
                let message = "there is no TLS at a Unix socket, and who calls with credentials calls nobody without";
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
        let stream = stream.checked().map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                let message =
                    "somebody else listens there: the worker is gone, and its name was taken";
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
                // While something is on its way to it, the system does not ask: it sends that again, for a quarter of an hour if nobody says otherwise.
                sockopt::set_tcp_user_timeout(stream, UNHEARD.as_millis() as u32)?;
            }
            Self::Tls(_) => {}
        }
        Ok(self)
    }

    /// The same, without a runtime.
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

    /// Reads and writes it.
    pub(crate) fn io(&mut self) -> Pin<&mut dyn RuntimeStream> {
        match self {
            Self::Unix(stream) => Pin::new(stream),
            Self::Tcp(stream) => Pin::new(stream),
            Self::Tls(stream) => Pin::new(stream),
        }
    }

    /// The same, for a library that reads and writes it.
    pub(crate) fn into_io(self) -> Pin<Box<dyn RuntimeStream>> {
        match self {
            Self::Unix(stream) => Box::pin(stream),
            Self::Tcp(stream) => Box::pin(stream),
            Self::Tls(stream) => Box::pin(stream),
        }
    }

    /// The socket, if it may lead to another machine.
    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp(stream) => Some(stream),
            Self::Tls(stream) => Some(stream.get_ref().0),
        }
    }

    /// Has the kernel end the connection when the other machine does not acknowledge for so long what it was sent (`TCP_USER_TIMEOUT`).
    pub(crate) fn set_user_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.tcp().map_or(Ok(()), |stream| {
            Ok(sockopt::set_tcp_user_timeout(
                stream,
                timeout.as_millis() as u32,
            )?)
        })
    }

    /// The address that it comes from, if it may be on another machine.
    pub(crate) fn origin(&self) -> Option<IpAddr> {
        self.tcp()?
            .peer_addr()
            .ok()
            .map(|address| address.ip().to_canonical())
    }

    /// Whether gRPC was agreed on, and nothing else.
    pub(crate) fn is_grpc(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.get_ref().1.alpn_protocol() != Some(LINK))
    }

    /// Whether the other end is certainly on this machine: it has the same address, or that of the loopback.
    pub(crate) fn is_from_here(&self) -> bool {
        let is_same = |peer: IpAddr, own: IpAddr| peer == own || peer.to_canonical().is_loopback();
        self.tcp()
            .is_none_or(|stream| match (stream.peer_addr(), stream.local_addr()) {
                (Ok(peer), Ok(own)) => is_same(peer.ip(), own.ip()),
                _ => false,
            })
    }

    /// Who is at the other end.
    pub(crate) fn peer(&self) -> Result<PeerIdentity, IdentityError> {
        Ok(match self {
            Self::Unix(_) => PeerIdentity::User,
            Self::Tcp(_) => PeerIdentity::Anybody,
            Self::Tls(stream) => {
                PeerIdentity::Proven(Identity::of_peer(stream.get_ref().1.peer_certificates())?)
            }
        })
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PeerIdentity {
    /// This user, on this machine.
    User,
    /// Nobody knows.
    Anybody,
    /// Whom a certificate names, if one was asked for.
    Proven(Option<Identity>),
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Of both sides: who calls and who serves can each lose the other.
    #[tokio::test]
    async fn a_machine_that_is_gone_is_noticed_while_something_is_on_its_way_to_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let (connected, accepted) =
            tokio::join!(PoolStream::connect(&address, None, &[]), listener.accept());
        let accepted = PoolStream::Tcp(accepted.unwrap().0).checked().unwrap();
        assert!(accepted.is_from_here());
        for stream in [connected.unwrap(), accepted] {
            let PoolStream::Tcp(stream) = stream else {
                panic!("a port")
            };
            assert!(sockopt::socket_keepalive(&stream).unwrap());
            assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 40_000);
        }
    }
}
