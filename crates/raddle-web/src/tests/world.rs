//! A server on a broker of its own.

use std::{future::Future, sync::Arc, time::Duration};

use raddle_broker::{Broker, NewTask};
use raddle_broker_connect::connect;
use raddle_model::{TaskSpec, Tid};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, UnixListener},
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::client::{Answer, Place, Request};
use crate::{
    App, Options, SignIn, WebServer,
    auth::{NewToken, Right, Role, add_token, hash_token},
};

pub(super) const OWNER: &str = "raddle_the-owner's-token-of-this-test";

/// A running server.
pub(super) struct World {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) place: Place,
    _directory: TempDir,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

impl World {
    pub(super) async fn new() -> Self {
        Self::with(|options| options).await
    }

    /// A server with other options.
    pub(super) async fn with(change: impl FnOnce(Options) -> Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let broker = open(&directory).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let options = change(Options {
            broker_url: "sqlite:test".into(),
            port: Some(address.port()),
            sign_in: SignIn::Tokens {
                owner: Some(hash_token(OWNER)),
            },
            secret: [7; 32],
            ..Options::default()
        });
        let server = WebServer::tcp(listener, None);
        Self::serve(directory, broker, Place::Tcp(address), server, options)
    }

    /// A server at a Unix socket.
    pub(super) async fn at_socket() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let broker = open(&directory).await;
        let path = directory.path().join("web.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = WebServer::unix(listener, rustix::process::geteuid().as_raw());
        let options = Options {
            sign_in: SignIn::Trusted(Role::Owner),
            ..Options::default()
        };
        Self::serve(directory, broker, Place::Unix(path), server, options)
    }

    fn serve(
        directory: TempDir,
        broker: Arc<dyn Broker>,
        place: Place,
        server: WebServer,
        options: Options,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let app = App::new(Arc::clone(&broker), options);
        let serving = tokio::spawn(server.run(app, async {
            let _ = stopped.await;
        }));
        Self {
            broker,
            place,
            _directory: directory,
            stop: Some(stop),
            serving,
        }
    }

    /// Stops the server, and returns how long that took.
    pub(super) async fn stop(mut self) -> Duration {
        let begun = Instant::now();
        self.stop.take().unwrap().send(()).unwrap();
        self.serving.await.unwrap();
        begun.elapsed()
    }

    pub(super) async fn send(&self, request: Request) -> Answer {
        request.send(&self.place).await
    }

    /// A request of the owner.
    pub(super) async fn get(&self, path: &str) -> Answer {
        self.send(Request::new("GET", path).token(OWNER)).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Request::new("POST", path).token(OWNER).json(body))
            .await
    }

    pub(super) async fn token(&self, role: Role, rights: &[Right]) -> String {
        let new = NewToken {
            name: role.to_string(),
            role,
            rights: rights.to_vec(),
            expires_at: None,
        };
        add_token(&*self.broker, new).await.unwrap().1
    }

    pub(super) async fn submit(&self, spec: TaskSpec) -> Tid {
        let submitted = self.broker.submit(vec![NewTask::new(spec)]).await.unwrap();
        submitted[0].tid()
    }

    /// The value of the `Set-Cookie` header of a sign-in with the owner's token.
    pub(super) async fn cookie(&self) -> String {
        let request = Request::new("POST", "/login").json(&serde_json::json!({ "token": OWNER }));
        let answer = self.send(request).await.expect(303);
        let cookie = answer.header("set-cookie").unwrap();
        cookie.split(';').next().unwrap().to_owned()
    }

    /// The address, as a browser puts it into `Host` and `Origin`.
    pub(super) fn host(&self) -> String {
        match &self.place {
            Place::Tcp(address) => address.to_string(),
            Place::Unix(_) => "localhost:9460".into(),
        }
    }

    /// The entries of the audit trail, the newest first.
    pub(super) async fn audit(&self) -> Vec<Value> {
        let page = self
            .get("/api/v1/audit?limit=1000")
            .await
            .expect(200)
            .json();
        page["items"].as_array().unwrap().clone()
    }
}

async fn open(directory: &TempDir) -> Arc<dyn Broker> {
    let url = format!("sqlite:{}", directory.path().join("raddle.db").display());
    connect(&url.parse().unwrap()).await.unwrap()
}

/// Waits for a condition.
pub(super) async fn wait_until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition().await {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(20)).await;
    }
}
