//! The two transports of a call: a link, or gRPC for workers without links. Nothing above this
//! module knows which.

use std::{
    error::Error,
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use raddle_wire::{
    frame::GREETING,
    v1::{self, reply, worker_client::WorkerClient},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{Status, Streaming, transport};

use super::{
    link::{LinkCall, LinkConnection, LinkEnd},
    reply_stream::{CallEvent, error_of_status},
    target::ConnectTarget,
};
use crate::{
    RpcError,
    stream::{GRPC, LINK},
};

/// An open connection to a worker. Its background tasks run on the runtime that has opened it.
pub(super) enum Transport {
    Link(LinkConnection),
    Grpc(GrpcTransport),
}

/// gRPC, for a worker without links.
pub(super) struct GrpcTransport {
    pub(super) client: WorkerClient<transport::Channel>,
    /// How the connection broke, once a call has found out. The next call then opens a new
    /// transport, which shows whether the worker can be reached.
    pub(super) end: Arc<OnceLock<LinkEnd>>,
}

/// The replies of one call. Dropping it before the end cancels the call.
pub(super) enum CallReplies {
    Link(LinkCall),
    Grpc(Box<Streaming<v1::Reply>>, Arc<OnceLock<LinkEnd>>),
}

impl Transport {
    /// Connects, and detects which transport the worker speaks. Sends nothing but a greeting.
    pub(super) async fn open(target: &ConnectTarget) -> io::Result<Self> {
        let mut stream = target.connect(&[LINK, GRPC]).await?;
        if stream.is_grpc() {
            return Ok(Self::grpc(target));
        }
        stream.io().write_all(&GREETING).await?;
        let mut greeting = [0; GREETING.len()];
        // A gRPC server sends its preface first. A server that closes without a greeting was just
        // stopping and has accepted nothing.
        stream.io().read_exact(&mut greeting).await?;
        if greeting != GREETING {
            return Ok(Self::grpc(target));
        }
        LinkConnection::new(stream.into_socket()?).map(Self::Link)
    }

    fn grpc(target: &ConnectTarget) -> Self {
        Self::Grpc(GrpcTransport {
            client: target.client(),
            end: Arc::default(),
        })
    }

    /// How the transport has ended. `None` while calls can still be sent.
    pub(super) fn end(&self) -> Option<LinkEnd> {
        match self {
            Self::Link(link) => link.end(),
            Self::Grpc(grpc) => grpc.end.get().copied(),
        }
    }

    /// Sends a call.
    pub(super) async fn send(&self, call: v1::Call) -> Result<CallReplies, RpcError> {
        match self {
            Self::Link(link) => link.call(call).map(CallReplies::Link),
            Self::Grpc(grpc) => {
                let replies = grpc.client.clone().dispatch(call).await;
                let replies = replies.map_err(|status| failed_call(&status, &grpc.end))?;
                Ok(CallReplies::Grpc(
                    Box::new(replies.into_inner()),
                    Arc::clone(&grpc.end),
                ))
            }
        }
    }
}

impl CallReplies {
    pub(super) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<CallEvent> {
        match self {
            Self::Link(call) => call.poll_event(cx),
            Self::Grpc(replies, end) => poll_grpc(replies, end, cx),
        }
    }
}

fn poll_grpc(
    replies: &mut Streaming<v1::Reply>,
    end: &OnceLock<LinkEnd>,
    cx: &mut Context<'_>,
) -> Poll<CallEvent> {
    loop {
        let event = match ready!(Pin::new(&mut *replies).poll_next(cx)) {
            Some(Ok(v1::Reply { what: Some(what) })) => match what {
                reply::What::Ack(_) => CallEvent::Accepted,
                reply::What::Result(result) => CallEvent::Item(result),
                reply::What::Exception(exception) => CallEvent::Exception(exception),
            },
            // From a later protocol version.
            Some(Ok(v1::Reply { what: None })) => continue,
            Some(Err(status)) => CallEvent::Failed(failed_call(&status, end)),
            None => CallEvent::End,
        };
        return Poll::Ready(event);
    }
}

/// Converts the status of a failed call. A status with a source was made on this side, by a
/// connection that broke; `TimedOut` comes from `TCP_USER_TIMEOUT`: the worker's machine
/// acknowledges nothing.
fn failed_call(status: &Status, end: &OnceLock<LinkEnd>) -> RpcError {
    if let Some(source) = status.source() {
        let causes = std::iter::successors(Some(source), |error| (*error).source());
        let mut broken = causes.filter_map(|error| error.downcast_ref::<io::Error>());
        let is_timeout = broken.any(|error| error.kind() == io::ErrorKind::TimedOut);
        let _ = end.set(if is_timeout {
            LinkEnd::Unresponsive
        } else {
            LinkEnd::Broken
        });
    }
    error_of_status(status)
}
