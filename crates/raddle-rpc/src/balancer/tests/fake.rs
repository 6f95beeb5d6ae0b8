//! Workers that do as they are told, served in this process. They have no links, so that they are spoken to by gRPC.

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

/// What a worker does with calls.
#[derive(Clone, Copy, Debug)]
pub(super) enum Does {
    Take,
    Refuse(Code),
    RefuseAfter(Duration, Code),
    /// Says nothing at all.
    Hang,
    /// Takes it, and then breaks.
    Break,
}

/// A worker.
pub(super) struct Fake {
    pub(super) metadata: WorkerMetadata,
    told: Arc<Told>,
    server: JoinHandle<Result<(), transport::Error>>,
}

struct Told {
    does: Mutex<Does>,
    asked: AtomicUsize,
    /// Calls that were taken do not end before it is `true`.
    may_end: watch::Sender<bool>,
}

impl Fake {
    pub(super) fn start(does: Does) -> Self {
        let uid = WorkerUid::new();
        let address = format!("unix-abstract:raddle-fake-{uid}");
        let path = address.parse::<Address>().unwrap().socket_path().unwrap();
        let listener = UnixListener::bind(path).unwrap();
        let told = Arc::new(Told {
            does: Mutex::new(does),
            asked: AtomicUsize::new(0),
            may_end: watch::Sender::new(true),
        });
        let service = worker_server::WorkerServer::new(Serving(Arc::clone(&told)));
        let incoming = stream::unfold(listener, |listener| async {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        });
        // Ends with the runtime of the test, or when the worker is killed.
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
            told,
            server,
        }
    }

    pub(super) fn now_does(&self, does: Does) {
        *self.told.does.lock().unwrap() = does;
    }

    pub(super) fn let_end(&self, may_end: bool) {
        self.told.may_end.send_replace(may_end);
    }

    /// How often it was asked since this was asked.
    pub(super) fn asked(&self) -> usize {
        self.told.asked.swap(0, Ordering::Relaxed)
    }

    pub(super) async fn kill(&mut self) {
        self.server.abort();
        let _ = (&mut self.server).await;
    }

    pub(super) fn join(&self, context: &BalancerContext) {
        context.put_worker(
            self.metadata.clone(),
            ConnectionFactory::new(&self.metadata.address, LIMIT),
        );
    }
}

/// A context of such workers.
pub(super) fn pool<const N: usize>(does: [Does; N]) -> (BalancerContext, [Fake; N]) {
    let (context, fakes) = (BalancerContext::default(), does.map(Fake::start));
    fakes.iter().for_each(|fake| fake.join(&context));
    (context, fakes)
}

pub(super) fn call(key: Option<u64>) -> CallRequest {
    let call = v1::Call {
        routine: "r".into(),
        ..v1::Call::default()
    };
    CallRequest::new(call, EncodedArgs::new(0).rewrite(), Default::default(), key).unwrap()
}

struct Serving(Arc<Told>);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl worker_server::Worker for Serving {
    type DispatchStream = Answers<v1::Reply>;

    async fn dispatch(
        &self,
        _: Request<v1::Call>,
    ) -> Result<Response<Self::DispatchStream>, Status> {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        let does = *self.0.does.lock().unwrap();
        match does {
            Does::Refuse(code) => Err(Status::new(code, "as told")),
            Does::RefuseAfter(pause, code) => {
                tokio::time::sleep(pause).await;
                Err(Status::new(code, "as told"))
            }
            Does::Hang => std::future::pending().await,
            Does::Break => {
                let ack = Ok(v1::Reply {
                    what: Some(What::Ack(v1::Ack {})),
                });
                Ok(Response::new(
                    stream::iter([ack, Err(Status::unavailable("as told"))]).boxed(),
                ))
            }
            Does::Take => {
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
