//! A bare tonic unary echo between two processes, over a Unix socket, with the defaults of tonic.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    io,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{future::BoxFuture, stream};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{UnixListener, UnixStream},
    process::{Child, Command},
};
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{Service, http},
    server::{NamedService, UnaryService},
    transport::{Channel, Endpoint, Server, Uri},
};
use tonic_prost::ProstCodec;

/// The server of the floor, in its own process, and a client.
pub(crate) struct Floor {
    channel: Channel,
    server: Child,
    _directory: tempfile::TempDir,
}

impl Floor {
    pub(crate) async fn start() -> raddle::Result<Self> {
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("floor.sock");
        let server = Command::new(std::env::current_exe()?)
            .arg("floor")
            .arg(&socket)
            .kill_on_drop(true)
            .spawn()?;
        for _ in 0..500 {
            if UnixStream::connect(&socket).await.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let connect = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://floor")
            .connect_with_connector(connect)
            .await?;
        Ok(Self {
            channel,
            server,
            _directory: directory,
        })
    }

    pub(crate) async fn echo(&self, bytes: Bytes) -> raddle::Result<Bytes> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await?;
        let path = http::uri::PathAndQuery::from_static("/floor.Echo/Echo");
        let answer: Response<Bytes> = grpc
            .unary(Request::new(bytes), path, ProstCodec::default())
            .await?;
        Ok(answer.into_inner())
    }

    pub(crate) async fn stop(mut self) -> raddle::Result<()> {
        Ok(self.server.kill().await?)
    }
}

pub(crate) async fn serve(socket: &str) -> raddle::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let incoming = stream::unfold(listener, |listener| async {
        let client: io::Result<UnixStream> = listener.accept().await.map(|(client, _)| client);
        Some((client, listener))
    });
    Ok(Server::builder()
        .add_service(Echo)
        .serve_with_incoming(incoming)
        .await?)
}

#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "floor.Echo";
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<Bytes, Bytes>::default());
            Ok(grpc.unary(Unary, request).await)
        })
    }
}

struct Unary;

impl UnaryService<Bytes> for Unary {
    type Response = Bytes;
    type Future = Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}
