//! A worker that is written by others, and says what a test wants it to: this process.

use std::sync::{Arc, Mutex};

use raddle_discovery::{LocalDiscovery, Publisher, WorkerMetadata, WorkerUid};
use raddle_wire::v1::{
    self,
    worker_server::{Worker, WorkerServer},
};
use tonic::{
    Request, Response, Status,
    codegen::BoxStream,
    transport::{Server, server::TcpIncoming},
};

use super::Pools;

/// A worker that has three calls in flight, of which one is always cancelled. It serves until its
/// runtime ends.
pub(super) struct Fake {
    pub(super) metadata: WorkerMetadata,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The timeouts of the orders to stop that have come.
    stops: Vec<f64>,
    /// Its answer to every call.
    refusal: Option<String>,
    /// Its reaction to a stop.
    manner: StopReaction,
    /// The discovery that lists it until it stops.
    leaves: Option<LocalDiscovery>,
}

/// How it takes an order to stop.
#[derive(Clone, Copy, Default)]
pub(super) enum StopReaction {
    /// It answers.
    #[default]
    Obedient,
    /// The way to it breaks.
    Broken,
    /// It never answers.
    Endless,
}

struct Service {
    metadata: WorkerMetadata,
    state: Arc<Mutex<State>>,
}

impl Fake {
    pub(super) fn start(pools: &Pools) -> Self {
        let _entered = pools.runtime.enter();
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let metadata = WorkerMetadata {
            uid: WorkerUid::new(),
            address: incoming.local_addr().unwrap().to_string(),
            pid: std::process::id(),
            version: "7".into(),
            tags: Default::default(),
            extra: Default::default(),
            secure: false,
            encodings: Default::default(),
        };
        let state = Arc::<Mutex<State>>::default();
        let service = Service {
            metadata: metadata.clone(),
            state: Arc::clone(&state),
        };
        let server = Server::builder().add_service(WorkerServer::new(service));
        tokio::spawn(server.serve_with_incoming(incoming));
        Self { metadata, state }
    }

    /// From now on it answers with this error.
    pub(super) fn refuse(&self, message: &str) {
        self.state.lock().unwrap().refusal = Some(message.to_owned());
    }

    /// It will seem to have ended when it has been told to stop, or has refused anything.
    pub(super) fn leaves(&self, pools: &Pools, pool: &str) {
        self.state.lock().unwrap().leaves =
            Some(LocalDiscovery::in_directory(pools.directory(), pool).unwrap());
    }

    /// How it takes an order to stop from now on.
    pub(super) fn takes_it(&self, manner: StopReaction) {
        self.state.lock().unwrap().manner = manner;
    }

    /// The timeouts that it was told to stop with, since this was asked last.
    pub(super) fn stops(&self) -> Vec<f64> {
        std::mem::take(&mut self.state.lock().unwrap().stops)
    }
}

impl Service {
    fn unpublish(&self) {
        if let Some(discovery) = &self.state.lock().unwrap().leaves {
            discovery.withdraw(&self.metadata);
        }
    }

    fn check(&self) -> Result<(), Status> {
        let refusal = self.state.lock().unwrap().refusal.clone();
        refusal.map_or(Ok(()), |message| {
            self.unpublish();
            Err(Status::internal(message))
        })
    }
}

#[tonic::async_trait]
impl Worker for Service {
    type DispatchStream = BoxStream<v1::Reply>;

    async fn dispatch(
        &self,
        _: Request<v1::Call>,
    ) -> Result<Response<Self::DispatchStream>, Status> {
        Err(Status::unimplemented("it takes no calls"))
    }

    async fn stop(
        &self,
        request: Request<v1::StopRequest>,
    ) -> Result<Response<v1::StopReply>, Status> {
        self.check()?;
        self.state
            .lock()
            .unwrap()
            .stops
            .push(request.into_inner().timeout);
        let manner = self.state.lock().unwrap().manner;
        if let StopReaction::Endless = manner {
            std::future::pending::<()>().await;
        }
        self.unpublish();
        if let StopReaction::Broken = manner {
            return Err(Status::unavailable("the way broke"));
        }
        Ok(Response::new(v1::StopReply {
            ended: 2,
            cancelled: 1,
        }))
    }

    async fn info(&self, _: Request<v1::InfoRequest>) -> Result<Response<v1::InfoReply>, Status> {
        self.check()?;
        let worker = Some(self.metadata.clone().into());
        let info = v1::InfoReply {
            worker,
            in_flight: 3,
            taken: 9,
            uptime: 150.0,
            stopping: true,
            ..Default::default()
        };
        Ok(Response::new(info))
    }

    async fn idle(&self, _: Request<v1::IdleRequest>) -> Result<Response<v1::IdleReply>, Status> {
        Err(Status::unimplemented("it is never idle"))
    }
}
