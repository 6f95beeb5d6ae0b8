//! Control requests to a worker: status and stop.

use raddle_tls::WorkerCredentials;
use raddle_wire::v1::{self, worker_client::WorkerClient};
use tonic::{Response, transport};

use super::{channel::control_error, target::ConnectTarget};
use crate::{RpcError, worker::StopMode};

/// A connection for control requests. It is separate from those of calls, so that calls do not
/// delay it, and closes on drop.
#[derive(Clone, Debug)]
pub struct ControlConnection(WorkerClient<transport::Channel>);

impl ControlConnection {
    /// For the worker at `address`. It opens nothing before the first request.
    pub fn new(address: &str) -> Result<Self, RpcError> {
        Self::with_credentials(address, None)
    }

    /// Like `new`, over TLS if there are credentials.
    pub fn with_credentials(
        address: &str,
        credentials: Option<&WorkerCredentials>,
    ) -> Result<Self, RpcError> {
        ConnectTarget::new(address, credentials).map(|target| Self(target.client()))
    }

    /// Requests the worker's identity, load and counters.
    pub async fn info(&mut self) -> Result<v1::InfoReply, RpcError> {
        let info = self.0.info(v1::InfoRequest {}).await;
        info.map(Response::into_inner)
            .map_err(|status| control_error(&status))
    }

    /// Stops the worker, whichever process has started it. The worker replies when no call is in
    /// flight any more, and then exits.
    pub async fn stop(&mut self, mode: StopMode) -> Result<v1::StopReply, RpcError> {
        let stopped = self
            .0
            .stop(v1::StopRequest {
                timeout: mode.seconds(),
            })
            .await;
        stopped
            .map(Response::into_inner)
            .map_err(|status| control_error(&status))
    }
}

/// Requests a worker's status once.
pub async fn ping(address: &str) -> Result<v1::InfoReply, RpcError> {
    ControlConnection::new(address)?.info().await
}
