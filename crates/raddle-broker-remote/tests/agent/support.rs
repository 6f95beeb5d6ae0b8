//! `ServedBroker`, and helpers of these tests.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread::{self, JoinHandle},
};

use raddle_broker::{Broker, NewTask, conformance};
use raddle_broker_connect::{BrokerUrl, connect};
use raddle_broker_remote::{BrokerServer, Options, Remote};
use raddle_model::{TaskSpec, TaskState, Tid, worker::WorkerInfo};
use tokio::sync::oneshot;

use crate::redis_server::Server;

pub(crate) use crate::common::{SOON, TTL, request, wait_until};

/// The engine behind the socket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Engine {
    Memory,
    Sqlite,
    Redis,
}

impl Engine {
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::Sqlite, Self::Redis];
}

/// A broker server with its own thread and runtime, as in a worker: a client that blocks its thread
/// does not block it.
pub(crate) struct ServedBroker {
    directory: tempfile::TempDir,
    /// Started with the first server that needs it.
    server: Option<Arc<Server>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ServedBroker {
    pub(crate) fn start(engine: Engine) -> Self {
        Self::start_with(engine, Options::default())
    }

    pub(crate) fn start_with(engine: Engine, options: Options) -> Self {
        let mut served = Self {
            directory: tempfile::tempdir().unwrap(),
            server: None,
            stop: None,
            thread: None,
        };
        served.resume_with(engine, options);
        served
    }

    /// Serves a fresh namespace on a shared Redis server.
    pub(crate) fn before(server: Arc<Server>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut served = Self {
            directory,
            server: Some(server),
            stop: None,
            thread: None,
        };
        served.resume(Engine::Redis);
        served
    }

    /// Serves the same directory again.
    pub(crate) fn resume(&mut self, engine: Engine) {
        self.resume_with(engine, Options::default());
    }

    pub(crate) fn resume_with(&mut self, engine: Engine, options: Options) {
        let (path, url) = (self.socket(), self.url(engine));
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let serve = move || {
            runtime().block_on(async move {
                let broker = connect(&url).await.unwrap();
                let agent = BrokerServer::bind_with(&path, broker, options)
                    .await
                    .unwrap();
                ready.send(()).unwrap();
                agent.run(async { drop(stopped.await) }).await;
            });
        };
        self.thread = Some(thread::spawn(serve));
        self.stop = Some(stop);
        is_ready.recv_timeout(SOON).unwrap();
    }

    pub(crate) fn url(&mut self, engine: Engine) -> BrokerUrl {
        match engine {
            Engine::Memory => BrokerUrl::Memory,
            Engine::Sqlite => BrokerUrl::Sqlite(self.directory.path().join("broker.db")),
            Engine::Redis => {
                let namespace = self.directory.path().file_name().unwrap().to_str().unwrap();
                self.server
                    .get_or_insert_with(|| Arc::new(Server::start()))
                    .url(namespace)
                    .parse()
                    .unwrap()
            }
        }
    }

    /// Stops it and waits for its thread.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let outcome = thread.join();
            assert!(
                outcome.is_ok() || thread::panicking(),
                "the server has panicked"
            );
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("agent.sock")
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.socket()
    }
}

impl Drop for ServedBroker {
    fn drop(&mut self) {
        self.stop();
        if !thread::panicking() {
            assert!(!self.path().exists(), "the socket is left");
        }
    }
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

pub(crate) async fn remote(path: impl AsRef<Path>) -> Arc<dyn Broker> {
    Arc::new(Remote::connect(path.as_ref()).await.unwrap())
}

pub(crate) fn info() -> WorkerInfo {
    conformance::info("worker")
}

pub(crate) async fn submit(broker: &dyn Broker) -> Tid {
    broker
        .submit(vec![NewTask::new(TaskSpec::command(["true"]))])
        .await
        .unwrap()[0]
        .tid()
}

pub(crate) async fn state(broker: &dyn Broker, tid: Tid) -> TaskState {
    broker.task(tid).await.unwrap().unwrap().state
}
