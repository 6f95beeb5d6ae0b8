//! How calls travel to a worker: over a link, or by gRPC to a worker that has no links. Nothing above knows which.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use raddle_wire::{
    frame::GREETING,
    v1::{self, reply, worker_client::WorkerClient},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{Streaming, transport};

use super::{
    link::{Link, LinkCall},
    replies::{Step, refusal},
    target::Target,
};
use crate::{
    RpcError,
    stream::{GRPC, LINK},
};

/// An open way to a worker. What it needs runs on the runtime that has opened it.
pub(super) enum Transport {
    Link(Link),
    Grpc(Grpc),
}

/// To a worker that has no links.
pub(super) struct Grpc {
    client: WorkerClient<transport::Channel>,
    /// The worker's machine was found to be gone.
    is_cut: Arc<AtomicBool>,
    /// A call found it broken.
    is_broken: AtomicBool,
}

/// Where the answers of one call come from. When it is dropped before the end, the call is cancelled.
pub(super) enum Answers {
    Link(LinkCall),
    Grpc(Box<Streaming<v1::Reply>>),
}

impl Transport {
    /// Connects, and finds out which of the two the worker speaks. Nothing is sent but a greeting.
    pub(super) async fn open(target: &Target) -> io::Result<Self> {
        let mut stream = target.connect(&[LINK, GRPC]).await?;
        if stream.is_grpc() {
            return Ok(Self::grpc(target));
        }
        stream.write_all(&GREETING).await?;
        let mut greeting = [0; GREETING.len()];
        // A gRPC server begins to speak by itself. One that hangs up without a word was just ending, and has taken nothing.
        stream.read_exact(&mut greeting).await?;
        if greeting != GREETING {
            return Ok(Self::grpc(target));
        }
        Link::new(stream.into_socket()?).map(Self::Link)
    }

    fn grpc(target: &Target) -> Self {
        let is_cut = Arc::default();
        Self::Grpc(Grpc { client: target.client(&is_cut), is_cut, is_broken: AtomicBool::new(false) })
    }

    /// Whether calls can still be sent.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::Link(link) => link.is_open(),
            Self::Grpc(grpc) => !grpc.is_cut.load(Ordering::Relaxed) && !grpc.is_broken.load(Ordering::Relaxed),
        }
    }

    /// Whether it ended because the worker's machine is silent.
    pub(super) fn is_cut(&self) -> bool {
        match self {
            Self::Link(link) => link.is_cut(),
            Self::Grpc(grpc) => grpc.is_cut.load(Ordering::Relaxed),
        }
    }

    /// Whether the worker has closed it to make room for other callers: calls that it refuses were not taken, and may be sent again.
    pub(super) fn has_made_room(&self) -> bool {
        matches!(self, Self::Link(link) if link.has_made_room())
    }

    /// Sends a call.
    pub(super) async fn send(&self, call: v1::Call) -> Result<Answers, RpcError> {
        match self {
            Self::Link(link) => link.call(call).map(Answers::Link),
            Self::Grpc(grpc) => {
                let answers = grpc.client.clone().dispatch(call).await;
                let answers = answers.map_err(|status| {
                    // A status with a cause was made on this side: the next call connects anew, and so finds out whether the worker can be reached.
                    let is_broken = std::error::Error::source(&status).is_some();
                    grpc.is_broken.fetch_or(is_broken, Ordering::Relaxed);
                    refusal(&status)
                });
                Ok(Answers::Grpc(Box::new(answers?.into_inner())))
            }
        }
    }
}

impl Answers {
    pub(super) fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        match self {
            Self::Link(call) => call.poll_step(cx),
            Self::Grpc(replies) => poll_grpc(replies, cx),
        }
    }
}

fn poll_grpc(replies: &mut Streaming<v1::Reply>, cx: &mut Context<'_>) -> Poll<Step> {
    loop {
        let step = match ready!(Pin::new(&mut *replies).poll_next(cx)) {
            Some(Ok(v1::Reply { what: Some(what) })) => match what {
                reply::What::Ack(_) => Step::Taken,
                reply::What::Result(result) => Step::Item(result),
                reply::What::Exception(exception) => Step::Exception(exception),
            },
            // Of a later version.
            Some(Ok(v1::Reply { what: None })) => continue,
            Some(Err(status)) => Step::Refused(refusal(&status)),
            None => Step::End,
        };
        return Poll::Ready(step);
    }
}
