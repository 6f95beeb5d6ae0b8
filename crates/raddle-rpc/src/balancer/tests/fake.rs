//! Scripted workers served in this process over gRPC.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_core::Stream;
use futures_util::{StreamExt, stream};
use raddle_discovery::{Address, WorkerMetadata, WorkerUid};
use raddle_model::routine::EncodedArgs;
use raddle_wire::v1::{self, reply::What, worker_server};
use tokio::{net::UnixListener, sync::watch, task::JoinHandle};
use tonic::{
    Code, Request, Response, Status,
    transport::{self, Server},
};

use crate::{
    balancer::BalancerContext,
    connection::{CallRequest, ConnectionFactory, LIMIT},
};

/// A worker's behavior on calls.
#[derive(Clone, Copy, Debug)]
pub(super) enum Behavior {
    Take,
    Refuse(Code),
    RefuseAfter(Duration, Code),
    /// Never responds.
    Hang,
    /// Accepts the call, and then breaks the connection.
    Break,
}

/// A worker.
pub(super) struct Fake {
    pub(super) metadata: WorkerMetadata,
    state: Arc<FakeState>,
    server: JoinHandle<Result<(), transport::Error>>,
}

struct FakeState {
    behavior: Mutex<Behavior>,
    calls: AtomicUsize,
    /// Accepted calls do not end before it is `true`.
    may_end: watch::Sender<bool>,
}

impl Fake {
    pub(super) fn start(behavior: Behavior) -> Self {
        let uid = WorkerUid::new();
        let address = format!("unix-abstract:raddle-fake-{uid}");
        let path = address.parse::<Address>().unwrap().socket_path().unwrap();
        let listener = UnixListener::bind(path).unwrap();
        let state = Arc::new(FakeState {
            behavior: Mutex::new(behavior),
            calls: AtomicUsize::new(0),
            may_end: watch::Sender::new(true),
        });
        let service = worker_server::WorkerServer::new(FakeService(Arc::clone(&state)));
        let incoming = stream::unfold(listener, |listener| async {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        });
        // Ends with the runtime of the test, or with `kill`.
        let server = tokio::spawn(
            Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming.boxed()),
        );
        let metadata = WorkerMetadata {
            uid,
            address,
            pid: std::process::id(),
            version: "1".into(),
            tags: Default::default(),
            extra: Default::default(),
            secure: false,
            encodings: Default::default(),
        };
        Self {
            metadata,
            state,
            server,
        }
    }

    pub(super) fn set_behavior(&self, behavior: Behavior) {
        *self.state.behavior.lock().unwrap() = behavior;
    }

    pub(super) fn allow_end(&self, may_end: bool) {
        self.state.may_end.send_replace(may_end);
    }

    /// Calls received since the last time.
    pub(super) fn take_calls(&self) -> usize {
        self.state.calls.swap(0, Ordering::Relaxed)
    }

    pub(super) async fn kill(&mut self) {
        self.server.abort();
        let _ = (&mut self.server).await;
    }

    pub(super) fn add_to(&self, context: &BalancerContext) {
        context.put_worker(
            self.metadata.clone(),
            ConnectionFactory::new(&self.metadata.address, LIMIT),
        );
    }
}

/// A context of such workers.
pub(super) fn pool<const N: usize>(behavior: [Behavior; N]) -> (BalancerContext, [Fake; N]) {
    let (context, fakes) = (BalancerContext::default(), behavior.map(Fake::start));
    fakes.iter().for_each(|fake| fake.add_to(&context));
    (context, fakes)
}

pub(super) fn call(key: Option<u64>) -> CallRequest {
    let call = v1::Call {
        routine: "r".into(),
        ..v1::Call::default()
    };
    CallRequest::new(call, EncodedArgs::new(0).rewrite(), Default::default(), key).unwrap()
}

struct FakeService(Arc<FakeState>);

type ReplyItems<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl worker_server::Worker for FakeService {
    type DispatchStream = ReplyItems<v1::Reply>;

    async fn dispatch(
        &self,
        _: Request<v1::Call>,
    ) -> Result<Response<Self::DispatchStream>, Status> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        let behavior = *self.0.behavior.lock().unwrap();
        match behavior {
            Behavior::Refuse(code) => Err(Status::new(code, "scripted")),
            Behavior::RefuseAfter(pause, code) => {
                tokio::time::sleep(pause).await;
                Err(Status::new(code, "scripted"))
            }
            Behavior::Hang => std::future::pending().await,
            Behavior::Break => {
                let ack = Ok(v1::Reply {
                    what: Some(What::Ack(v1::Ack {})),
                });
                Ok(Response::new(
                    stream::iter([ack, Err(Status::unavailable("scripted"))]).boxed(),
                ))
            }
            Behavior::Take => {
                let mut may_end = self.0.may_end.subscribe();
                let ack = stream::iter([Ok(v1::Reply {
                    what: Some(What::Ack(v1::Ack {})),
                })]);
                let end = stream::once(async move {
                    let _ = may_end.wait_for(|may| *may).await;
                    Ok(v1::Reply {
                        what: Some(What::Result(Bytes::from_static(b"\xc0"))),
                    })
                });
                Ok(Response::new(ack.chain(end).boxed()))
            }
        }
    }

    async fn stop(&self, _: Request<v1::StopRequest>) -> Result<Response<v1::StopReply>, Status> {
        Err(Status::unimplemented("a fake"))
    }

    async fn info(&self, _: Request<v1::InfoRequest>) -> Result<Response<v1::InfoReply>, Status> {
        Err(Status::unimplemented("a fake"))
    }

    async fn idle(&self, _: Request<v1::IdleRequest>) -> Result<Response<v1::IdleReply>, Status> {
        Err(Status::unimplemented("a fake"))
    }
}
