//! The socket that a worker listens on.

use std::{io, path::Path};

use raddle_discovery::Address;
use tokio::net::{TcpListener, UnixListener};

use crate::stream::WorkerStream;

/// A listening socket.
pub(super) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Why the worker cannot listen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    #[error(
        "'{0}' can be reached from other machines: give TLS credentials (--credentials-ca, --credentials-cert and --credentials-key; \
         'raddle cert' makes them), or allow plain connections (--insecure)"
    )]
    Exposed(String),
    #[error("{0} is in use: give another port, or 0 for any free one")]
    InUse(String),
    #[error("this machine has no address {0}: give one of its addresses, or 0.0.0.0 for all")]
    NoSuchAddress(String),
    #[error("cannot serve at {0}: {1}")]
    Io(String, #[source] io::Error),
}

impl ListenError {
    fn from_io(address: &Address, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::AddrInUse => Self::InUse(address.to_string()),
            io::ErrorKind::AddrNotAvailable => Self::NoSuchAddress(address.to_string()),
            _ => Self::Io(address.to_string(), error),
        }
    }
}

impl Listener {
    /// Listens on `address`. Returns the address with the actual port.
    pub(super) async fn bind(
        address: &Address,
        may_be_exposed: bool,
    ) -> Result<(Self, Address), ListenError> {
        let failed = |error| ListenError::from_io(address, error);
        if let Some(path) = address.socket_path() {
            let bound = match UnixListener::bind(&path) {
                // A socket file that a killed worker has left: no process listens there.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(&path) => {
                    std::fs::remove_file(&path).and_then(|()| UnixListener::bind(&path))
                }
                bound => bound,
            };
            return Ok((Self::Unix(bound.map_err(failed)?), address.clone()));
        }
        // Check before listening.
        let (host, port) = (
            address.host().unwrap_or_default(),
            address.port().unwrap_or_default(),
        );
        let addresses = raddle_dns::lookup_host(host, port).await.map_err(failed)?;
        if !may_be_exposed && !addresses.iter().all(|address| address.ip().is_loopback()) {
            return Err(ListenError::Exposed(address.to_string()));
        }
        let listener = TcpListener::bind(&addresses[..]).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        Ok((Self::Tcp(listener), Address::Tcp(bound.to_string())))
    }

    /// The next connection. On a Unix socket the peer's user is checked, because any user of the
    /// machine can connect to an abstract name.
    pub(super) async fn accept(&self) -> io::Result<WorkerStream> {
        let accepted = match self {
            Self::Unix(listener) => WorkerStream::Unix(listener.accept().await?.0),
            Self::Tcp(listener) => WorkerStream::Tcp(listener.accept().await?.0),
        };
        accepted.into_checked()
    }
}

fn is_stale(path: &Path) -> bool {
    let connected = std::os::unix::net::UnixStream::connect(path);
    connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
