//! The gRPC service: what each request comes to.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use futures_core::Stream;
use futures_util::StreamExt;
use raddle_wire::{
    PROTOCOL,
    v1::{self, answer, reply, worker_server::Worker},
};
use tonic::{Request, Response, Status, Streaming};

use super::{
    executor::{Doing, Executor, Number},
    link,
    sink::Sink,
    stop::Stopper,
};
use crate::{
    RpcError, WorkerMetadata,
    connection::outbox::{Batches, Outbox},
};

/// Serves one worker.
pub(super) struct Service {
    pub(super) executor: Arc<Executor>,
    pub(super) stopper: Stopper,
    pub(super) metadata: WorkerMetadata,
    pub(super) began: Instant,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Worker for Service {
    type DispatchStream = Answers<v1::Reply>;
    type LinkStream = Answers<v1::Replies>;

    async fn dispatch(&self, request: Request<v1::Call>) -> Result<Response<Self::DispatchStream>, Status> {
        let (outbox, batches) = Outbox::new();
        let number = Number { link: self.executor.new_link(), id: 0 };
        let sink = Sink::new(number.id, &outbox);
        self.executor.begin(number, request.into_inner(), &sink).map_err(|error| status(&error))?;
        let executor = Arc::clone(&self.executor);
        Ok(Response::new(Box::pin(Plain {
            executor,
            number,
            sink,
            batches,
            ready: Vec::new().into_iter(),
            is_over: false,
        })))
    }

    async fn link(&self, request: Request<Streaming<v1::Requests>>) -> Result<Response<Self::LinkStream>, Status> {
        let (outbox, batches) = Outbox::new();
        self.stopper.ends(&outbox);
        // Ends with the client.
        tokio::spawn(link::read(request.into_inner(), outbox, Arc::clone(&self.executor)));
        Ok(Response::new(Box::pin(batches.map(|answers| Ok(v1::Replies { answers })))))
    }

    async fn stop(&self, request: Request<v1::StopRequest>) -> Result<Response<v1::StopReply>, Status> {
        let timeout = request.into_inner().timeout;
        if timeout.is_nan() {
            return Err(Status::invalid_argument("the timeout is no number"));
        }
        let stopper = self.stopper.clone();
        // A client that goes away has said it all the same.
        let stopping = tokio::spawn(async move { stopper.stop(timeout).await });
        stopping.await.map(Response::new).map_err(|error| Status::internal(error.to_string()))
    }

    async fn info(&self, _: Request<v1::InfoRequest>) -> Result<Response<v1::InfoReply>, Status> {
        let Doing { in_flight, taken, is_stopping, .. } = self.executor.doing();
        Ok(Response::new(v1::InfoReply {
            protocol: PROTOCOL,
            worker: Some(self.metadata.clone().into()),
            in_flight: in_flight as u64,
            taken,
            uptime: self.began.elapsed().as_secs_f64(),
            stopping: is_stopping,
            routines: self.executor.routines().names().map(ToOwned::to_owned).collect(),
        }))
    }

    async fn idle(&self, _: Request<v1::IdleRequest>) -> Result<Response<v1::IdleReply>, Status> {
        self.executor.idle().await;
        let idle: Duration = self.executor.doing().idle;
        Ok(Response::new(v1::IdleReply { idle: idle.as_secs_f64() }))
    }
}

fn status(error: &RpcError) -> Status {
    Status::new(error.code, error.message.clone())
}

/// The answers of one call, as `Dispatch` gives them. What bounds them is how fast they are taken.
struct Plain {
    executor: Arc<Executor>,
    number: Number,
    sink: Sink,
    batches: Batches<v1::Answer>,
    ready: std::vec::IntoIter<v1::Answer>,
    is_over: bool,
}

impl Stream for Plain {
    type Item = Result<v1::Reply, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let answer = loop {
            match self.ready.next() {
                Some(answer) => break answer.what,
                None => match ready!(Pin::new(&mut self.batches).poll_next(cx)) {
                    Some(batch) => self.ready = batch.into_iter(),
                    None => return Poll::Ready(None),
                },
            }
        };
        let what = match answer {
            Some(answer::What::Ack(ack)) => reply::What::Ack(ack),
            Some(answer::What::Item(item)) => {
                self.sink.allow(1);
                reply::What::Result(item)
            }
            Some(answer::What::Result(result)) => {
                self.is_over = true;
                reply::What::Result(result)
            }
            Some(answer::What::Exception(exception)) => {
                self.is_over = true;
                reply::What::Exception(exception)
            }
            Some(answer::What::Refusal(v1::Refusal { code, message })) => {
                self.is_over = true;
                return Poll::Ready(Some(Err(Status::new(code.into(), message))));
            }
            Some(answer::What::End(_)) | None => {
                self.is_over = true;
                return Poll::Ready(None);
            }
        };
        Poll::Ready(Some(Ok(v1::Reply { what: Some(what) })))
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        if !self.is_over {
            self.executor.cancel(self.number);
        }
    }
}
