//! Words to a worker that are no calls: how it is, and that it is to stop.

use raddle_tls::WorkerCredentials;
use raddle_wire::v1::{self, worker_client::WorkerClient};
use tonic::{Response, transport};

use super::{channel::unanswered, target::ConnectTarget};
use crate::{RpcError, worker::StopMode};

/// A connection to a worker for what is no call. It is nobody else's, so that calls do not hold it up, and is closed when this is dropped.
#[derive(Clone, Debug)]
pub struct ControlConnection(WorkerClient<transport::Channel>);

impl ControlConnection {
    /// To the worker that serves at this address. Nothing is opened before it is used.
    pub fn new(address: &str) -> Result<Self, RpcError> {
        Self::with_credentials(address, None)
    }

    /// The same, over TLS if there are credentials.
    pub fn with_credentials(
        address: &str,
        credentials: Option<&WorkerCredentials>,
    ) -> Result<Self, RpcError> {
        ConnectTarget::new(address, credentials).map(|target| Self(target.client()))
    }

    /// Asks the worker what it is, and what it is doing.
    pub async fn info(&mut self) -> Result<v1::InfoReply, RpcError> {
        let info = self.0.info(v1::InfoRequest {}).await;
        info.map(Response::into_inner)
            .map_err(|status| unanswered(&status))
    }

    /// Stops the worker, whoever has started it. It answers when it has dealt with the calls in flight, and then exits.
    pub async fn stop(&mut self, patience: StopMode) -> Result<v1::StopReply, RpcError> {
        let stopped = self
            .0
            .stop(v1::StopRequest {
                timeout: patience.seconds(),
            })
            .await;
        stopped
            .map(Response::into_inner)
            .map_err(|status| unanswered(&status))
    }
}

/// Asks a worker once what it is, and what it is doing.
pub async fn ping(address: &str) -> Result<v1::InfoReply, RpcError> {
    ControlConnection::new(address)?.info().await
}
