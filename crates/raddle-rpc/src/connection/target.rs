//! The target of a connection: an address, and the credentials to present there.

use std::{io, time::Duration};

use hyper_util::rt::TokioIo;
use raddle_discovery::Address;
use raddle_tls::WorkerCredentials;
use raddle_wire::v1::worker_client::WorkerClient;
use tonic::{
    Code,
    transport::{Channel, Endpoint, Uri},
};
use tower::service_fn;

use crate::{
    RpcError,
    stream::{CONNECTION_WINDOW, GRPC, KEEP_ALIVE, MAX_MESSAGE, STREAM_WINDOW, WorkerStream},
};

/// Time limit of connecting. A worker that listens accepts at once.
pub(super) const CONNECT: Duration = Duration::from_secs(5);

/// `TCP_USER_TIMEOUT` of gRPC connections: how long the worker's machine may leave data
/// unacknowledged while the kernel retransmits. The timeout also strikes when the worker reads
/// nothing and the TCP window is full, so this is the longest stall that a worker survives.
const UNACKED_TIMEOUT: Duration = Duration::from_secs(10);

/// An address, and the credentials to present there. Channels with equal targets can share a
/// connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConnectTarget {
    address: Address,
    credentials: Option<WorkerCredentials>,
}

impl ConnectTarget {
    pub(super) fn new(
        address: &str,
        credentials: Option<&WorkerCredentials>,
    ) -> Result<Self, RpcError> {
        let address: Address = address
            .parse()
            .map_err(|error| RpcError::refused(Code::Internal, format!("{error}")))?;
        Ok(Self {
            address: address.connect_address(),
            credentials: credentials.cloned(),
        })
    }

    /// The same address with other credentials.
    pub(super) fn with_credentials(self, credentials: Option<WorkerCredentials>) -> Self {
        Self {
            credentials,
            ..self
        }
    }

    /// Whether the address is a TCP port rather than a Unix socket.
    pub(super) fn is_tcp(&self) -> bool {
        matches!(self.address, Address::Tcp(_))
    }

    /// Opens a connection that speaks one of `protocols`.
    pub(super) async fn connect(&self, protocols: &[&[u8]]) -> io::Result<WorkerStream> {
        let connecting = WorkerStream::connect(&self.address, self.credentials.as_ref(), protocols);
        tokio::time::timeout(CONNECT, connecting)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// A gRPC client that connects on first use, and reconnects. Links have pings; here
    /// `TCP_USER_TIMEOUT` ends the connection when the worker's machine does not acknowledge a
    /// call.
    pub(super) fn client(&self) -> WorkerClient<Channel> {
        let target = self.clone();
        let connect = service_fn(move |_: Uri| {
            let target = target.clone();
            async move {
                let stream = target.connect(&[GRPC]).await?;
                stream.set_user_timeout(UNACKED_TIMEOUT)?;
                io::Result::Ok(TokioIo::new(stream.into_io()))
            }
        });
        // The connector ignores the host; a request must have one.
        let channel = Endpoint::from_static("http://worker")
            .connect_timeout(CONNECT)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .connect_with_connector_lazy(connect);
        WorkerClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE)
    }
}
