//! The replies of a call.

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

/// The replies of a call. Dropping it before the end cancels the call.
pub struct ReplyStream {
    /// The event that was read to see whether the call was accepted.
    buffered: Option<CallEvent>,
    replies: CallReplies,
    /// The encoding of the call and its results.
    encoding: Encoding,
    /// The worker has accepted the call, so the routine may have begun.
    is_accepted: bool,
    /// Released when the call is over, even if the stream is kept longer.
    permit: Option<Permit>,
    /// A value that lives as long as the permit, see [`hold`](Self::hold).
    guard: Option<Box<dyn Send>>,
    /// Notified if the worker is lost during the call.
    loss_listener: Option<Arc<dyn LossListener>>,
}

/// Is notified when a worker that had accepted a call is lost.
pub(crate) trait LossListener: Send + Sync {
    fn record_loss(&self);
}

/// Permission to send a call, held while the call lasts.
pub(crate) struct Permit {
    pub(super) _permit: Option<OwnedSemaphorePermit>,
    pub(super) _channel: Arc<Channel>,
}

/// An event of a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CallEvent {
    /// The worker has accepted the call.
    Accepted,
    /// An item of a stream. Over gRPC also the result of a function.
    Item(Bytes),
    /// The result of a function, and the end.
    Result(Bytes),
    /// The end of a stream.
    End,
    /// The routine ended with an exception.
    Exception(v1::Exception),
    /// The worker did not accept the call, or the connection was lost.
    Failed(RpcError),
}

impl CallEvent {
    pub(crate) fn is_last(&self) -> bool {
        !matches!(self, Self::Accepted | Self::Item(_))
    }
}

impl ReplyStream {
    pub(super) fn new(replies: CallReplies, encoding: Encoding, permit: Permit) -> Self {
        Self {
            buffered: None,
            replies,
            encoding,
            is_accepted: false,
            permit: Some(permit),
            guard: None,
            loss_listener: None,
        }
    }

    /// The encoding of the values.
    pub(crate) fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Keeps `guard` until the call is over or the stream is dropped: for balancers that count
    /// calls in flight. If the call is over already, `guard` is dropped at once.
    pub fn hold(&mut self, guard: impl Send + 'static) {
        if self.permit.is_some() {
            self.guard = Some(Box::new((self.guard.take(), guard)));
        }
    }

    /// Notifies `listener` if the worker is lost before the call is over.
    pub(crate) fn notify_loss(&mut self, listener: Arc<dyn LossListener>) {
        self.loss_listener = Some(listener);
    }

    /// Waits until the worker has accepted the call.
    pub(super) async fn until_accepted(mut self) -> Result<Self, RpcError> {
        match self.next().await {
            CallEvent::Failed(error) => Err(error),
            event => Ok(Self {
                buffered: Some(event),
                ..self
            }),
        }
    }

    /// The next event.
    pub(crate) async fn next(&mut self) -> CallEvent {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<CallEvent> {
        if let Some(event) = self.buffered.take() {
            return Poll::Ready(event);
        }
        let event = ready!(self.replies.poll_event(cx));
        if event.is_last() {
            self.permit = None;
            self.guard = None;
        }
        Poll::Ready(match event {
            CallEvent::Failed(error) if self.is_accepted && error.code != Code::InvalidArgument => {
                self.loss_listener
                    .take()
                    .into_iter()
                    .for_each(|loss| loss.record_loss());
                CallEvent::Failed(RpcError {
                    may_have_begun: true,
                    ..error
                })
            }
            event => {
                self.is_accepted |= matches!(event, CallEvent::Accepted | CallEvent::Item(_));
                event
            }
        })
    }
}

/// Converts a status: either the worker refused the call, or the connection failed.
pub(super) fn error_of_status(status: &Status) -> RpcError {
    let mut source = std::error::Error::source(status);
    let is_local = source.is_some();
    let mut message = status.message().to_owned();
    while let Some(error) = source {
        if let Some(refusal) = error
            .downcast_ref::<std::io::Error>()
            .and_then(HandshakeError::from_io)
        {
            return handshake_failure(&refusal);
        }
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && matches!(
                io.kind(),
                std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound
            )
        {
            return RpcError::no_listener(io);
        }
        message = error.to_string();
        // In TLS 1.3 a client learns only with the first answer that the server refused it. h2
        // drops the alert itself and keeps its text.
        if let Some(alert) = message.strip_prefix("received fatal alert: ") {
            let why = format!("the TLS handshake failed: the worker refused us ({alert})");
            return RpcError::refused(Code::Unavailable, why);
        }
        source = error.source();
    }
    // A status with a source was made on this side, by a connection that broke. Any other comes
    // from the worker, which sends an `Ack` before the routine begins.
    let encodings = status
        .metadata()
        .get(ENCODINGS)
        .and_then(|names| names.to_str().ok())
        .map(encoding::from_names);
    RpcError {
        code: status.code(),
        message,
        may_have_begun: is_local,
        encodings: encodings.unwrap_or_default(),
    }
}

/// The error of a failed TLS handshake.
pub(super) fn handshake_failure(refusal: &HandshakeError) -> RpcError {
    RpcError::refused(
        Code::Unavailable,
        format!("the TLS handshake failed: {refusal}"),
    )
}

impl std::fmt::Debug for ReplyStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplyStream").finish_non_exhaustive()
    }
}
