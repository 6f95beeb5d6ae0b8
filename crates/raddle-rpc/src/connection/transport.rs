//! How calls travel to a worker: over a link, or by gRPC to a worker that has no links. Nothing above knows which.

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
    reply_stream::{CallEvent, refusal},
    target::ConnectTarget,
};
use crate::{
    RpcError,
    stream::{GRPC, LINK},
};

/// An open way to a worker. What it needs runs on the runtime that has opened it.
pub(super) enum Transport {
    Link(LinkConnection),
    Grpc(GrpcTransport),
}

/// To a worker that has no links.
pub(super) struct GrpcTransport {
    pub(super) client: WorkerClient<transport::Channel>,
    /// How it broke, once a call has found that. The next one connects anew, and so finds out whether the worker can be reached.
    pub(super) lost: Arc<OnceLock<LinkEnd>>,
}

/// Where the answers of one call come from. When it is dropped before the end, the call is cancelled.
pub(super) enum CallReplies {
    Link(LinkCall),
    Grpc(Box<Streaming<v1::Reply>>, Arc<OnceLock<LinkEnd>>),
}

impl Transport {
    /// Connects, and finds out which of the two the worker speaks. Nothing is sent but a greeting.
    pub(super) async fn open(target: &ConnectTarget) -> io::Result<Self> {
        let mut stream = target.connect(&[LINK, GRPC]).await?;
        if stream.is_grpc() {
            return Ok(Self::grpc(target));
        }
        stream.io().write_all(&GREETING).await?;
        let mut greeting = [0; GREETING.len()];
        // A gRPC server begins to speak by itself. One that hangs up without a word was just ending, and has taken nothing.
        stream.io().read_exact(&mut greeting).await?;
        if greeting != GREETING {
            return Ok(Self::grpc(target));
        }
        LinkConnection::new(stream.into_socket()?).map(Self::Link)
    }

    fn grpc(target: &ConnectTarget) -> Self {
        Self::Grpc(GrpcTransport {
            client: target.client(),
            lost: Arc::default(),
        })
    }

    /// How it has ended. `None` while calls can still be sent.
    pub(super) fn lost(&self) -> Option<LinkEnd> {
        match self {
            Self::Link(link) => link.lost(),
            Self::Grpc(grpc) => grpc.lost.get().copied(),
        }
    }

    /// Sends a call.
    pub(super) async fn send(&self, call: v1::Call) -> Result<CallReplies, RpcError> {
        match self {
            Self::Link(link) => link.call(call).map(CallReplies::Link),
            Self::Grpc(grpc) => {
                let answers = grpc.client.clone().dispatch(call).await;
                let answers = answers.map_err(|status| refuse(&status, &grpc.lost))?;
                Ok(CallReplies::Grpc(
                    Box::new(answers.into_inner()),
                    Arc::clone(&grpc.lost),
                ))
            }
        }
    }
}

impl CallReplies {
    pub(super) fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<CallEvent> {
        match self {
            Self::Link(call) => call.poll_step(cx),
            Self::Grpc(replies, lost) => poll_grpc(replies, lost, cx),
        }
    }
}

fn poll_grpc(
    replies: &mut Streaming<v1::Reply>,
    lost: &OnceLock<LinkEnd>,
    cx: &mut Context<'_>,
) -> Poll<CallEvent> {
    loop {
        let step = match ready!(Pin::new(&mut *replies).poll_next(cx)) {
            Some(Ok(v1::Reply { what: Some(what) })) => match what {
                reply::What::Ack(_) => CallEvent::Taken,
                reply::What::Result(result) => CallEvent::Item(result),
                reply::What::Exception(exception) => CallEvent::Exception(exception),
            },
            // Of a later version.
            Some(Ok(v1::Reply { what: None })) => continue,
            Some(Err(status)) => CallEvent::Refused(refuse(&status, lost)),
            None => CallEvent::End,
        };
        return Poll::Ready(step);
    }
}

/// The error of a call that ended with a status. A status with a source was made on this side, by a connection that broke. One that timed out was ended by the
/// kernel, because the worker's machine acknowledges nothing.
fn refuse(status: &Status, lost: &OnceLock<LinkEnd>) -> RpcError {
    if let Some(source) = status.source() {
        let causes = std::iter::successors(Some(source), |error| (*error).source());
        let mut broken = causes.filter_map(|error| error.downcast_ref::<io::Error>());
        let is_silent = broken.any(|error| error.kind() == io::ErrorKind::TimedOut);
        let _ = lost.set(if is_silent {
            LinkEnd::Cut
        } else {
            LinkEnd::Broken
        });
    }
    refusal(status)
}
