//! The gRPC service: what each request comes to.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_core::Stream;
use raddle_discovery::{WorkerMetadata, encoding};
use raddle_tls::Action;
use raddle_wire::{
    ENCODINGS, PROTOCOL,
    v1::{self, answer, reply, worker_server::Worker},
};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver},
    task::yield_now,
};
use tonic::{Request, Response, Status};

use super::{
    executor::{ActivityReport, CallId, Executor},
    grpc_connection::{GrpcPeer, WaitGuard},
    reply_sink::ReplySink,
};
use crate::{RpcError, link::item_weight};

/// Serves one worker.
pub(super) struct WorkerService {
    pub(super) executor: Arc<Executor>,
    pub(super) metadata: WorkerMetadata,
    pub(super) began: Instant,
}

impl WorkerService {
    /// Whether whoever has sent this may do this.
    fn check<T>(&self, request: &Request<T>, action: Action<'_>) -> Result<Arc<GrpcPeer>, Status> {
        let visitor = visitor(request)?;
        self.executor
            .setup
            .gate
            .check(&visitor.caller, action)
            .map_err(|error| status(&error))?;
        Ok(visitor)
    }
}

/// Who has sent this. A connection that nothing is known of could be anybody's.
fn visitor<T>(request: &Request<T>) -> Result<Arc<GrpcPeer>, Status> {
    let known = request.extensions().get::<Arc<GrpcPeer>>().cloned();
    known.ok_or_else(|| Status::permission_denied("nobody knows who has sent this"))
}

type GrpcReplies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Worker for WorkerService {
    type DispatchStream = GrpcReplies<v1::Reply>;

    async fn dispatch(
        &self,
        request: Request<v1::Call>,
    ) -> Result<Response<Self::DispatchStream>, Status> {
        let visitor = visitor(&request)?;
        let (send, answers) = mpsc::unbounded_channel();
        let number = CallId {
            link: self.executor.new_link(),
            id: 0,
        };
        let sink = ReplySink::of_grpc(send);
        let begun = self
            .executor
            .begin(number, request.into_inner(), &visitor.caller, &sink);
        begun.map_err(|error| status(&error))?;
        let executor = Arc::clone(&self.executor);
        Ok(Response::new(Box::pin(DispatchStream {
            executor,
            number,
            sink,
            answers,
            _waits: visitor.waits(),
            is_over: false,
        })))
    }

    async fn stop(
        &self,
        request: Request<v1::StopRequest>,
    ) -> Result<Response<v1::StopReply>, Status> {
        let _waits = self.check(&request, Action::Stop)?.waits();
        let timeout = request.into_inner().timeout;
        if timeout.is_nan() {
            return Err(Status::invalid_argument("the timeout is no number"));
        }
        let executor = Arc::clone(&self.executor);
        // A client that goes away has said it all the same.
        let stopping = tokio::spawn(async move { executor.stop(timeout).await });
        stopping
            .await
            .map(Response::new)
            .map_err(|error| Status::internal(error.to_string()))
    }

    async fn info(
        &self,
        request: Request<v1::InfoRequest>,
    ) -> Result<Response<v1::InfoReply>, Status> {
        self.check(&request, Action::Info)?;
        let ActivityReport {
            in_flight,
            taken,
            is_stopping,
            ..
        } = self.executor.doing();
        Ok(Response::new(v1::InfoReply {
            protocol: PROTOCOL,
            worker: Some(self.metadata.clone().into()),
            in_flight: in_flight as u64,
            taken,
            uptime: self.began.elapsed().as_secs_f64(),
            stopping: is_stopping,
            routines: self
                .executor
                .setup
                .routines
                .names()
                .map(ToOwned::to_owned)
                .collect(),
            refused: self.executor.setup.gate.refused().into_iter().collect(),
            encodings: encoding::numbers(&self.metadata.encodings),
        }))
    }

    async fn idle(
        &self,
        request: Request<v1::IdleRequest>,
    ) -> Result<Response<v1::IdleReply>, Status> {
        let _waits = self.check(&request, Action::Info)?.waits();
        self.executor.idle().await;
        let idle: Duration = self.executor.doing().idle;
        Ok(Response::new(v1::IdleReply {
            idle: idle.as_secs_f64(),
        }))
    }
}

fn status(error: &RpcError) -> Status {
    let mut status = Status::new(error.code, error.message.clone());
    if let (false, Ok(names)) = (
        error.encodings.is_empty(),
        encoding::names(&error.encodings).parse(),
    ) {
        status.metadata_mut().insert(ENCODINGS, names);
    }
    status
}

/// The answers of one call, as `Dispatch` gives them. What bounds them is how fast they are taken.
struct DispatchStream {
    executor: Arc<Executor>,
    number: CallId,
    sink: ReplySink,
    answers: UnboundedReceiver<(answer::What, Bytes)>,
    _waits: WaitGuard,
    is_over: bool,
}

impl Stream for DispatchStream {
    type Item = Result<v1::Reply, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let Some((answer, body)) = ready!(self.answers.poll_recv(cx)) else {
            return Poll::Ready(None);
        };
        self.is_over = !matches!(answer, answer::What::Ack(_) | answer::What::Item(_));
        let what = match answer {
            answer::What::Ack(ack) => {
                // The connection's task is woken by this `Ack`, and writes it to the socket in its next poll. A task that yields runs again only after
                // all that were ready by then; twice, for a runtime that looks at its sockets in between. It ends by itself.
                let sink = self.sink.clone();
                tokio::spawn(async move {
                    yield_now().await;
                    yield_now().await;
                    sink.ack_is_written();
                });
                reply::What::Ack(ack)
            }
            answer::What::Item(_) => {
                self.sink.allow(item_weight(body.len()));
                reply::What::Result(body)
            }
            answer::What::Result(_) => reply::What::Result(body),
            answer::What::Exception(exception) => reply::What::Exception(v1::Exception {
                value: body,
                ..exception
            }),
            // Its encoding was looked at before.
            answer::What::Refusal(v1::Refusal { code, message, .. }) => {
                return Poll::Ready(Some(Err(Status::new(code.into(), message))));
            }
            answer::What::End(_) | answer::What::Pong(_) | answer::What::Leave(_) => {
                return Poll::Ready(None);
            }
        };
        Poll::Ready(Some(Ok(v1::Reply { what: Some(what) })))
    }
}

impl Drop for DispatchStream {
    fn drop(&mut self) {
        if !self.is_over {
            self.executor.cancel(self.number);
        }
    }
}
