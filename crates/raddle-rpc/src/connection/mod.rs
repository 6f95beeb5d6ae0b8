//! The way to a worker.
//!
//! A [`Connection`] is a light thing: the channel with its socket is shared by all connections that one [`ConnectionFactory`] has made, belongs to its proxy, and is
//! bounded in the calls that it carries at a time.

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
    reply_stream::{CallEvent, OnLoss},
};
use crate::RpcError;

/// Makes connections to one worker. All of them, and those of its clones, go over the same socket.
#[derive(Clone, Debug)]
pub struct ConnectionFactory(Connection);

/// A way to a worker.
#[derive(Clone, Debug)]
pub struct Connection {
    channel: Arc<Channel>,
    /// What the worker is thought to read.
    encoding: Encoding,
}

/// How many calls a channel carries at a time, unless something else is said. Others wait their turn.
pub const LIMIT: usize = 100;

impl ConnectionFactory {
    /// For a worker that serves at this address.
    pub fn new(address: &str, limit: usize) -> Self {
        let channel = Arc::new(Channel::new(address, None, limit));
        Self(Connection {
            channel,
            encoding: Encoding::default(),
        })
    }

    /// In the best of these encodings, which the worker is said to read.
    #[must_use]
    pub fn encodings(self, reads: &Encodings) -> Self {
        Self(Connection {
            encoding: encoding::best(reads),
            ..self.0
        })
    }

    /// Over TLS, if there are credentials. There is none at a Unix socket: with credentials, nobody is called there.
    #[must_use]
    pub fn credentials(self, credentials: Option<WorkerCredentials>) -> Self {
        let channel = Arc::new(self.0.channel.with_credentials(credentials));
        Self(Connection { channel, ..self.0 })
    }

    /// With a proof that calls come from the worker's pool.
    #[must_use]
    pub(crate) fn member(self, proof: Bytes) -> Self {
        let channel = Arc::new(self.0.channel.with_member(proof));
        Self(Connection { channel, ..self.0 })
    }

    /// Goes on with the connection of another, if that leads to the same place.
    pub(crate) fn adopt(&mut self, other: &Self) {
        if self.0.channel.is_like(&other.0.channel) {
            self.0.channel = Arc::clone(&other.0.channel);
        }
    }

    /// What is known of the way there.
    pub(crate) fn way(&self) -> ChannelState {
        self.0.channel.way()
    }

    /// Finds out whether the worker can be reached, without handing it anything.
    pub(crate) async fn reach(&self, wait: ConnectWait) -> Result<(), RpcError> {
        self.0.channel.reach(wait).await
    }

    /// A connection. Nothing is opened before it is used.
    pub fn connect(&self) -> Connection {
        self.0.clone()
    }
}

impl Connection {
    /// Hands a call to the worker. Returns when it has been taken.
    pub async fn dispatch(
        &self,
        call: CallRequest,
        timeout: Option<Duration>,
    ) -> Result<ReplyStream, RpcError> {
        self.dispatch_in_turn(call, timeout, ConnectWait::ForIt, || {})
            .await
    }

    /// The same, and says when it is the call's turn: how long it waits for that is not up to the worker. `wait` is for one that is not reached.
    pub(crate) async fn dispatch_in_turn(
        &self,
        call: CallRequest,
        timeout: Option<Duration>,
        wait: ConnectWait,
        is_sent: impl FnOnce() + Send,
    ) -> Result<ReplyStream, RpcError> {
        let handing_over = async {
            let channel = &self.channel;
            let encoding = channel.encoding().unwrap_or(self.encoding);
            let turn = channel.turn(call.depth()).await?;
            is_sent();
            let refused = match channel.dispatch(&call, encoding, turn, wait).await {
                Err(error) => error,
                taken => return taken,
            };
            // It was not taken if the worker says that it is to be written otherwise.
            let instead =
                encoding::instead_of(encoding, &refused.reads).filter(|_| !refused.may_have_begun);
            let Some(instead) = instead else {
                return Err(refused);
            };
            channel.is_to_be_called_in(instead);
            let turn = channel.turn(call.depth()).await?;
            channel.dispatch(&call, instead, turn, wait).await
        };
        match timeout {
            None => handing_over.await,
            Some(timeout) => match tokio::time::timeout(timeout, handing_over).await {
                Ok(outcome) => outcome,
                // It may be anywhere: it was cancelled, wherever it is.
                Err(_) => Err(RpcError {
                    code: tonic::Code::DeadlineExceeded,
                    message: "the call did not end in the time it had".into(),
                    may_have_begun: true,
                    reads: Encodings::new(),
                }),
            },
        }
    }
}

#[cfg(test)]
mod tests;
