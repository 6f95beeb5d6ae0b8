//! The gRPC service `raddle.v1.Worker`.

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
    grpc_connection::{GrpcPeer, RequestGuard},
    reply_sink::ReplySink,
};
use crate::{RpcError, link::item_weight};

/// Serves the gRPC requests of one worker.
pub(super) struct WorkerService {
    pub(super) executor: Arc<Executor>,
    pub(super) metadata: WorkerMetadata,
    pub(super) started: Instant,
}

impl WorkerService {
    /// Whether the sender of the request may perform the action.
    fn check<T>(&self, request: &Request<T>, action: Action<'_>) -> Result<Arc<GrpcPeer>, Status> {
        let peer = peer_of(request)?;
        self.executor
            .setup
            .authorizer
            .check(&peer.caller, action)
            .map_err(|error| status(&error))?;
        Ok(peer)
    }
}

/// The peer that has sent the request.
fn peer_of<T>(request: &Request<T>) -> Result<Arc<GrpcPeer>, Status> {
    let known = request.extensions().get::<Arc<GrpcPeer>>().cloned();
    known.ok_or_else(|| Status::permission_denied("the connection has no known peer"))
}

type GrpcReplies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Worker for WorkerService {
    type DispatchStream = GrpcReplies<v1::Reply>;

    async fn dispatch(
        &self,
        request: Request<v1::Call>,
    ) -> Result<Response<Self::DispatchStream>, Status> {
        let peer = peer_of(&request)?;
        let (send, replies) = mpsc::unbounded_channel();
        let call_id = CallId {
            link: self.executor.next_link_id(),
            id: 0,
        };
        let sink = ReplySink::of_grpc(send);
        let accepted = self
            .executor
            .start_call(call_id, request.into_inner(), &peer.caller, &sink);
        accepted.map_err(|error| status(&error))?;
        let executor = Arc::clone(&self.executor);
        Ok(Response::new(Box::pin(DispatchStream {
            executor,
            call_id,
            sink,
            replies,
            _guard: peer.track_request(),
            is_finished: false,
        })))
    }

    async fn stop(
        &self,
        request: Request<v1::StopRequest>,
    ) -> Result<Response<v1::StopReply>, Status> {
        let _guard = self.check(&request, Action::Stop)?.track_request();
        let timeout = request.into_inner().timeout;
        if timeout.is_nan() {
            return Err(Status::invalid_argument("the timeout is not a number"));
        }
        let executor = Arc::clone(&self.executor);
        // Spawned, so that the stop goes on when the client disconnects.
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
        } = self.executor.activity();
        Ok(Response::new(v1::InfoReply {
            protocol: PROTOCOL,
            worker: Some(self.metadata.clone().into()),
            in_flight: in_flight as u64,
            taken,
            uptime: self.started.elapsed().as_secs_f64(),
            stopping: is_stopping,
            routines: self
                .executor
                .setup
                .routines
                .names()
                .map(ToOwned::to_owned)
                .collect(),
            refused: self
                .executor
                .setup
                .authorizer
                .refused()
                .into_iter()
                .collect(),
            encodings: encoding::to_numbers(&self.metadata.encodings),
        }))
    }

    async fn idle(
        &self,
        request: Request<v1::IdleRequest>,
    ) -> Result<Response<v1::IdleReply>, Status> {
        let _guard = self.check(&request, Action::Info)?.track_request();
        self.executor.wait_until_idle().await;
        let idle: Duration = self.executor.activity().idle;
        Ok(Response::new(v1::IdleReply {
            idle: idle.as_secs_f64(),
        }))
    }
}

fn status(error: &RpcError) -> Status {
    let mut status = Status::new(error.code, error.message.clone());
    if let (false, Ok(names)) = (
        error.encodings.is_empty(),
        encoding::to_names(&error.encodings).parse(),
    ) {
        status.metadata_mut().insert(ENCODINGS, names);
    }
    status
}

/// The replies of one `Dispatch` call. They are produced as fast as the client reads them.
struct DispatchStream {
    executor: Arc<Executor>,
    call_id: CallId,
    sink: ReplySink,
    replies: UnboundedReceiver<(answer::What, Bytes)>,
    _guard: RequestGuard,
    is_finished: bool,
}

impl Stream for DispatchStream {
    type Item = Result<v1::Reply, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_finished {
            return Poll::Ready(None);
        }
        let Some((answer, body)) = ready!(self.replies.poll_recv(cx)) else {
            return Poll::Ready(None);
        };
        self.is_finished = !matches!(answer, answer::What::Ack(_) | answer::What::Item(_));
        let what = match answer {
            answer::What::Ack(ack) => {
                // This `Ack` wakes the connection's task, which writes it to the socket in its next
                // poll. A task that yields runs again only after all tasks that were ready by then;
                // it yields twice, in case the runtime polls its sockets in between. The task ends
                // by itself.
                let sink = self.sink.clone();
                tokio::spawn(async move {
                    yield_now().await;
                    yield_now().await;
                    sink.record_ack_written();
                });
                reply::What::Ack(ack)
            }
            answer::What::Item(_) => {
                self.sink.add_credit(item_weight(body.len()));
                reply::What::Result(body)
            }
            answer::What::Result(_) => reply::What::Result(body),
            answer::What::Exception(exception) => reply::What::Exception(v1::Exception {
                value: body,
                ..exception
            }),
            // `Executor::start_call` checks the encoding before this stream exists, so `encodings`
            // is empty.
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
        if !self.is_finished {
            self.executor.cancel(self.call_id);
        }
    }
}
