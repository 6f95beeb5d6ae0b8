//! Where a worker serves, and as whom it is spoken to.

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
    stream::{ALIVE, CONNECTION_WINDOW, GRPC, MAX_MESSAGE, PoolStream, STREAM_WINDOW},
};

/// How long it may take to connect. A worker that listens accepts at once.
pub(super) const CONNECT: Duration = Duration::from_secs(5);

/// How long the machine of a worker without links may take to acknowledge what it is sent. The kernel retransmits meanwhile, and then ends the connection. It
/// does so as well when the worker reads nothing and the TCP window is full, so that this is as long as a worker may stand still.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// Where a worker serves, and as whom it is spoken to. Whoever has the same can have the same connection.
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
            address: address.reached_here(),
            credentials: credentials.cloned(),
        })
    }

    /// The same place, spoken to as somebody else.
    pub(super) fn with_credentials(self, credentials: Option<WorkerCredentials>) -> Self {
        Self {
            credentials,
            ..self
        }
    }

    /// Whether it serves at a port, and not at a Unix socket.
    pub(super) fn is_at_a_port(&self) -> bool {
        matches!(self.address, Address::Tcp(_))
    }

    /// A connection in one of these protocols.
    pub(super) async fn connect(&self, protocols: &[&[u8]]) -> io::Result<PoolStream> {
        let connecting = PoolStream::connect(&self.address, self.credentials.as_ref(), protocols);
        tokio::time::timeout(CONNECT, connecting)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// A client that connects when it is first used, and again after it was lost. The kernel ends its connection when the worker's machine does not
    /// acknowledge a call: there is no ping to find out with, as a link has.
    pub(super) fn client(&self) -> WorkerClient<Channel> {
        let target = self.clone();
        let connect = service_fn(move |_: Uri| {
            let target = target.clone();
            async move {
                let stream = target.connect(&[GRPC]).await?;
                stream.set_user_timeout(UNACKNOWLEDGED)?;
                io::Result::Ok(TokioIo::new(stream.into_io()))
            }
        });
        // Where it leads is up to the connector; a request has to have some host.
        let channel = Endpoint::from_static("http://worker")
            .connect_timeout(CONNECT)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(ALIVE)
            .keep_alive_timeout(ALIVE)
            .connect_with_connector_lazy(connect);
        WorkerClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE)
    }
}
