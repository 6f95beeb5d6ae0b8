//! Where a worker serves.

use std::{io, path::Path, time::Duration};

use tokio::{
    net::{TcpListener, UnixListener, lookup_host},
    time::sleep,
};
use tracing::warn;

use crate::connection::{Address, Stream};

/// How long nobody is let in after somebody could not be: no descriptor is to be had, and one that ends gives its own back.
const PAUSE: Duration = Duration::from_millis(50);

/// A socket that listens.
pub(super) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListenError {
    #[error("'{0}' is reached from other machines: give credentials for TLS, or say that it may be insecure")]
    Exposed(String),
    #[error("cannot serve at {0}: {1}")]
    Io(String, #[source] io::Error),
}

impl Listener {
    /// Listens there. Returns what the address has become, where the port was any.
    pub(super) async fn bind(address: &Address, may_be_exposed: bool) -> Result<(Self, Address), ListenError> {
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
        // Before anything listens there.
        let places: Vec<_> = lookup_host(address.to_string()).await.map_err(failed)?.collect();
        if !may_be_exposed && !places.iter().all(|place| place.ip().is_loopback()) {
            return Err(ListenError::Exposed(address.to_string()));
        }
        let listener = TcpListener::bind(&places[..]).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        Ok((Self::Tcp(listener), Address::Tcp(bound.to_string())))
    }

    /// The next client that may come. A socket without a file can be found by every user of the machine, so it is looked at who it is.
    pub(super) async fn accept(&self) -> Stream {
        loop {
            let accepted = match self {
                Self::Unix(listener) => listener.accept().await.map(|(client, _)| Stream::Unix(client)),
                Self::Tcp(listener) => listener.accept().await.map(|(client, _)| Stream::Tcp(client)),
            };
            match accepted.and_then(Stream::checked) {
                Ok(client) => return client,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(error) => {
                    warn!(%error, "a client could not be let in");
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

fn is_left_behind(path: &Path) -> bool {
    let met = std::os::unix::net::UnixStream::connect(path);
    met.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
