//! What comes back of a call.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use raddle_discovery::{Encoding, encoding};
use raddle_tls::HandshakeError;
use raddle_wire::{ENCODINGS, v1};
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Code, Status};

use super::{channel::Channel, transport::CallReplies};
use crate::RpcError;

/// What comes back of a call. Whoever drops it before the end cancels the call.
pub struct ReplyStream {
    /// What was read to see whether the call was taken.
    first: Option<CallEvent>,
    from: CallReplies,
    /// That of the call.
    encoding: Encoding,
    /// The worker has taken it, so that it may have begun.
    is_taken: bool,
    /// Let go of when the call is over, whoever keeps this for how long.
    turn: Option<Permit>,
    /// What others have it keep as long.
    guest: Option<Box<dyn Send>>,
    /// Hears that the worker was lost with the call.
    loss: Option<Arc<dyn OnLoss>>,
}

/// Hears that a worker was lost that had taken a call.
pub(crate) trait OnLoss: Send + Sync {
    fn lost(&self);
}

/// What a call keeps while it lasts.
pub(crate) struct Permit {
    pub(super) _permit: Option<OwnedSemaphorePermit>,
    pub(super) _channel: Arc<Channel>,
}

/// One thing that is heard of a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CallEvent {
    /// The worker has taken it.
    Taken,
    /// An item; of a function, the result.
    Item(Bytes),
    /// The result, and the end.
    Result(Bytes),
    /// There are no more items.
    End,
    /// It ended otherwise.
    Exception(v1::Exception),
    /// It was not taken, or nothing more will be heard.
    Refused(RpcError),
}

impl CallEvent {
    pub(crate) fn is_last(&self) -> bool {
        !matches!(self, Self::Taken | Self::Item(_))
    }
}

impl ReplyStream {
    pub(super) fn new(from: CallReplies, encoding: Encoding, turn: Permit) -> Self {
        Self {
            first: None,
            from,
            encoding,
            is_taken: false,
            turn: Some(turn),
            guest: None,
            loss: None,
        }
    }

    /// How values in it are written.
    pub(crate) fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Keeps something until the call is over, which it may be already, or is dropped: for balancers that keep account of calls.
    pub fn hold(&mut self, guest: impl Send + 'static) {
        if self.turn.is_some() {
            self.guest = Some(Box::new((self.guest.take(), guest)));
        }
    }

    /// Tells this if the worker is lost before the call is over.
    pub(crate) fn on_loss(&mut self, loss: Arc<dyn OnLoss>) {
        self.loss = Some(loss);
    }

    /// The same, once the worker has taken the call.
    pub(super) async fn once_taken(mut self) -> Result<Self, RpcError> {
        match self.next().await {
            CallEvent::Refused(error) => Err(error),
            step => Ok(Self {
                first: Some(step),
                ..self
            }),
        }
    }

    /// The next thing that is heard.
    pub(crate) async fn next(&mut self) -> CallEvent {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<CallEvent> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(first);
        }
        let step = ready!(self.from.poll_step(cx));
        if step.is_last() {
            self.turn = None;
            self.guest = None;
        }
        Poll::Ready(match step {
            CallEvent::Refused(error) if self.is_taken && error.code != Code::InvalidArgument => {
                self.loss.take().into_iter().for_each(|loss| loss.lost());
                CallEvent::Refused(RpcError {
                    may_have_begun: true,
                    ..error
                })
            }
            step => {
                self.is_taken |= matches!(step, CallEvent::Taken | CallEvent::Item(_));
                step
            }
        })
    }
}

/// What a status says: of a worker that does not take the call, or of the way to it.
pub(super) fn refusal(status: &Status) -> RpcError {
    let mut source = std::error::Error::source(status);
    let is_ours = source.is_some();
    let mut message = status.message().to_owned();
    while let Some(error) = source {
        if let Some(refusal) = error
            .downcast_ref::<std::io::Error>()
            .and_then(HandshakeError::of)
        {
            return distrusted(&refusal);
        }
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && matches!(
                io.kind(),
                std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound
            )
        {
            return RpcError::nobody(io);
        }
        message = error.to_string();
        // In TLS 1.3 a caller hears with the first answer that he was refused, and h2 keeps no more of that than its words.
        if let Some(alert) = message.strip_prefix("received fatal alert: ") {
            let why =
                format!("there is no trust between worker and caller: it has refused us ({alert})");
            return RpcError::refused(Code::Unavailable, why);
        }
        source = error.source();
    }
    // A status with a source was made on this side, by a connection that broke. Any other is the worker's, which sends an `Ack` before it begins.
    let reads = status
        .metadata()
        .get(ENCODINGS)
        .and_then(|names| names.to_str().ok())
        .map(encoding::of_names);
    RpcError {
        code: status.code(),
        message,
        may_have_begun: is_ours,
        reads: reads.unwrap_or_default(),
    }
}

/// Worker and caller do not trust each other.
pub(super) fn distrusted(refusal: &HandshakeError) -> RpcError {
    RpcError::refused(
        Code::Unavailable,
        format!("there is no trust between worker and caller: {refusal}"),
    )
}

impl std::fmt::Debug for ReplyStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replies").finish_non_exhaustive()
    }
}
