//! Connections to workers.
//!
//! A [`Connection`] is cheap to clone: all connections of one [`ConnectionFactory`] share a channel
//! with its socket. The channel belongs to the proxy and bounds the calls in flight.

mod call_request;
mod channel;
mod connect_state;
mod control;
mod link;
mod liveness_probe;
mod reply_stream;
mod target;
mod transport;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use raddle_discovery::{Encoding, Encodings, encoding};
use raddle_tls::WorkerCredentials;

use self::channel::Channel;
pub use self::{
    call_request::CallRequest,
    control::{ControlConnection, ping},
    reply_stream::ReplyStream,
};
pub(crate) use self::{
    channel::ChannelState,
    connect_state::ConnectWait,
    reply_stream::{CallEvent, LossListener},
};
use crate::RpcError;

/// Makes connections to one worker. All of them, and those of its clones, share one socket.
#[derive(Clone, Debug)]
pub struct ConnectionFactory(Connection);

/// A connection to a worker.
#[derive(Clone, Debug)]
pub struct Connection {
    channel: Arc<Channel>,
    /// The encoding that the worker is expected to read.
    encoding: Encoding,
}

/// Default number of calls that a channel carries at a time. Further calls wait for a permit.
pub const LIMIT: usize = 100;

impl ConnectionFactory {
    /// A factory for the worker at `address`.
    pub fn new(address: &str, limit: usize) -> Self {
        let channel = Arc::new(Channel::new(address, None, limit));
        Self(Connection {
            channel,
            encoding: Encoding::default(),
        })
    }

    /// Sets the call encoding: the best of those that the worker is published with.
    #[must_use]
    pub fn encodings(self, encodings: &Encodings) -> Self {
        Self(Connection {
            encoding: encoding::preferred(encodings),
            ..self.0
        })
    }

    /// Calls over TLS with these credentials, if any. A Unix socket has no TLS: with credentials,
    /// calls to one fail.
    #[must_use]
    pub fn credentials(self, credentials: Option<WorkerCredentials>) -> Self {
        let channel = Arc::new(self.0.channel.with_credentials(credentials));
        Self(Connection { channel, ..self.0 })
    }

    /// Sends `proof` with each call, which shows the worker that calls come from its own pool.
    #[must_use]
    pub(crate) fn with_membership(self, proof: Bytes) -> Self {
        let channel = Arc::new(self.0.channel.with_membership(proof));
        Self(Connection { channel, ..self.0 })
    }

    /// Takes over the channel of `other` if both have the same target, credentials and limit.
    pub(crate) fn share_channel(&mut self, other: &Self) {
        if self.0.channel.is_equivalent(&other.0.channel) {
            self.0.channel = Arc::clone(&other.0.channel);
        }
    }

    /// The state of the channel, without I/O.
    pub(crate) fn channel_state(&self) -> ChannelState {
        self.0.channel.state()
    }

    /// Connects if necessary, without sending a call.
    pub(crate) async fn ensure_connected(&self, wait: ConnectWait) -> Result<(), RpcError> {
        self.0.channel.ensure_connected(wait).await
    }

    /// A connection. It opens nothing before the first call.
    pub fn connect(&self) -> Connection {
        self.0.clone()
    }
}

impl Connection {
    /// Sends a call. Returns when the worker has accepted it.
    pub async fn dispatch(
        &self,
        call: CallRequest,
        timeout: Option<Duration>,
    ) -> Result<ReplyStream, RpcError> {
        self.dispatch_with(call, timeout, ConnectWait::UntilDone, || {})
            .await
    }

    /// Like `dispatch`, and calls `on_permit` when the call gets its permit: the time before that
    /// does not count against the worker. `wait` says how long to wait for a worker that is not
    /// connected.
    pub(crate) async fn dispatch_with(
        &self,
        call: CallRequest,
        timeout: Option<Duration>,
        wait: ConnectWait,
        on_permit: impl FnOnce() + Send,
    ) -> Result<ReplyStream, RpcError> {
        let dispatching = async {
            let channel = &self.channel;
            let encoding = channel.encoding().unwrap_or(self.encoding);
            let permit = channel.acquire_permit(call.depth()).await?;
            on_permit();
            let refused = match channel.dispatch(&call, encoding, permit, wait).await {
                Err(error) => error,
                outcome => return outcome,
            };
            // A worker that names the encodings it reads has not accepted the call.
            let instead = encoding::alternative(encoding, &refused.encodings)
                .filter(|_| !refused.may_have_begun);
            let Some(instead) = instead else {
                return Err(refused);
            };
            channel.set_encoding(instead);
            let permit = channel.acquire_permit(call.depth()).await?;
            channel.dispatch(&call, instead, permit, wait).await
        };
        match timeout {
            None => dispatching.await,
            Some(timeout) => match tokio::time::timeout(timeout, dispatching).await {
                Ok(outcome) => outcome,
                // The call may have been sent; dropping its future has cancelled it.
                Err(_) => Err(RpcError {
                    code: tonic::Code::DeadlineExceeded,
                    message: "the call timed out".into(),
                    may_have_begun: true,
                    encodings: Encodings::new(),
                }),
            },
        }
    }
}

#[cfg(test)]
mod tests;
