//! The way to a worker.
//!
//! A [`Connection`] is a light thing: what costs something, the channel with its socket, is shared by all connections to the same worker, kept
//! for a while when nobody needs it, and bounded in the calls that it carries at a time.

mod address;
mod channel;
mod control;
mod link;
mod pulse;
mod reach;
mod replies;
pub(crate) mod resource;
mod stream;
mod target;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use raddle_wire::v1;

pub use self::{
    address::Address,
    control::{Control, ping},
    replies::Replies,
};
pub(crate) use self::{
    channel::{CONNECTION_WINDOW, Channel, MAX_MESSAGE, MAX_VALUE, STREAM_WINDOW},
    reach::Wait,
    replies::Step,
    stream::{GRPC, LINK, Peer, Stream},
};
use crate::{RpcError, credentials::WorkerCredentials};

/// A call on its way to a worker. Cheap to clone: it may have to be offered to several.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub(crate) call: Arc<v1::Call>,
    /// Calls with the same are to go to the same worker, where a balancer looks at it.
    pub(crate) key: Option<u64>,
}

/// Makes connections to one worker.
#[derive(Clone, Debug)]
pub struct ConnectionFactory(Connection);

/// A way to a worker.
#[derive(Clone, Debug)]
pub struct Connection {
    address: Arc<str>,
    credentials: Option<WorkerCredentials>,
    limit: usize,
}

/// How many calls a channel carries at a time, unless something else is said. Others wait their turn.
pub const LIMIT: usize = 100;

impl Outgoing {
    /// The name of the routine.
    pub fn routine(&self) -> &str {
        &self.call.routine
    }

    /// Its arguments, as they are sent.
    pub fn arguments(&self) -> &Bytes {
        &self.call.arguments
    }

    /// Calls with the same key are to go to the same worker.
    pub fn key(&self) -> Option<u64> {
        self.key
    }
}

impl ConnectionFactory {
    /// For a worker that serves at this address.
    pub fn new(address: &str, limit: usize) -> Self {
        Self(Connection { address: address.into(), credentials: None, limit })
    }

    /// Over TLS, if there are credentials, unless it is a socket of this machine.
    #[must_use]
    pub fn credentials(self, credentials: Option<WorkerCredentials>) -> Self {
        Self(Connection { credentials, ..self.0 })
    }

    /// A connection. Nothing is opened before it is used.
    pub fn connect(&self) -> Connection {
        self.0.clone()
    }
}

impl Connection {
    /// Hands a call to the worker. Returns when it has been taken.
    pub async fn dispatch(&self, call: Outgoing, timeout: Option<Duration>) -> Result<Replies, RpcError> {
        self.dispatch_in_turn(call, timeout, Wait::ForIt, || {}).await
    }

    /// The same, and says when it is the call's turn: how long it waits for that is not up to the worker. `wait` is for one that is not reached.
    pub(crate) async fn dispatch_in_turn(
        &self,
        call: Outgoing,
        timeout: Option<Duration>,
        wait: Wait,
        is_sent: impl FnOnce() + Send,
    ) -> Result<Replies, RpcError> {
        let handing_over = async {
            let channel = Channel::get(&self.address, self.credentials.as_ref(), self.limit)?;
            let turn = channel.turn().await?;
            is_sent();
            let mut replies = channel.dispatch(&call, turn, wait).await?;
            replies.taken().await?;
            Ok(replies)
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
                }),
            },
        }
    }
}
