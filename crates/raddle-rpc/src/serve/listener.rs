//! Where a worker serves.

use std::{io, path::Path};

use raddle_discovery::Address;
use tokio::net::{TcpListener, UnixListener};

use crate::stream::WorkerStream;

/// A socket that listens.
pub(super) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    #[error(
        "'{0}' is reached from other machines: give credentials for TLS (--credentials-ca, --credentials-cert and --credentials-key; \
         'raddle cert' makes them), or say that it may be insecure (--insecure)"
    )]
    Exposed(String),
    #[error("{0} is taken: somebody serves there already; give another port, or 0 for any")]
    Taken(String),
    #[error("this machine has no address {0}: give one that it has, or 0.0.0.0 for all of them")]
    Elsewhere(String),
    #[error("cannot serve at {0}: {1}")]
    Io(String, #[source] io::Error),
}

impl ListenError {
    fn of(address: &Address, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::AddrInUse => Self::Taken(address.to_string()),
            io::ErrorKind::AddrNotAvailable => Self::Elsewhere(address.to_string()),
            _ => Self::Io(address.to_string(), error),
        }
    }
}

impl Listener {
    /// Listens there. Returns what the address has become, where the port was any.
    pub(super) async fn bind(
        address: &Address,
        may_be_exposed: bool,
    ) -> Result<(Self, Address), ListenError> {
        let failed = |error| ListenError::of(address, error);
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
        // Before anything listens there.
        let (host, port) = (
            address.host().unwrap_or_default(),
            address.port().unwrap_or_default(),
        );
        let places = raddle_dns::lookup_host(host, port).await.map_err(failed)?;
        if !may_be_exposed && !places.iter().all(|place| place.ip().is_loopback()) {
            return Err(ListenError::Exposed(address.to_string()));
        }
        let listener = TcpListener::bind(&places[..]).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        Ok((Self::Tcp(listener), Address::Tcp(bound.to_string())))
    }

    /// The next client. A socket without a file can be found by every user of the machine, so it is looked at who it is.
    pub(super) async fn accept(&self) -> io::Result<WorkerStream> {
        let accepted = match self {
            Self::Unix(listener) => WorkerStream::Unix(listener.accept().await?.0),
            Self::Tcp(listener) => WorkerStream::Tcp(listener.accept().await?.0),
        };
        accepted.into_checked()
    }
}

fn is_left_behind(path: &Path) -> bool {
    let met = std::os::unix::net::UnixStream::connect(path);
    met.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
