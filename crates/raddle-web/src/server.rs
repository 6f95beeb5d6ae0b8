//! Serves a [`Router`] over HTTP/1, beside the other work of the process.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    http::{
        HeaderValue,
        header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS},
    },
    middleware::map_response,
    response::Response,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
    time::sleep,
};

/// An address that is bound and not served yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

/// A server that runs until this is dropped.
pub struct Serving {
    task: JoinHandle<()>,
}

/// An address that cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

/// Prometheus uses one connection at a time. Those beyond the bound wait in the kernel's backlog.
const CONNECTIONS: usize = 16;
/// The longest head of a request. A scraper sends a few hundred bytes.
const MAX_HEAD: usize = 8 << 10;
/// How long a head may take to arrive.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// How long the kernel keeps a connection to a client that reads nothing of an answer, in milliseconds.
const UNREAD_WITHIN: u32 = 10_000;
/// Before the next `accept`, after one has failed.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

impl Server {
    /// Binds the address. With port 0 the system chooses one.
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let cannot = |source| BindError { address, source };
        let listener = TcpListener::bind(address).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        Ok(Self { listener, address })
    }

    /// The URL of the page of metrics.
    pub fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }

    /// Starts to serve.
    pub fn serve(self, router: Router) -> Serving {
        Serving { task: tokio::spawn(accept(self.listener, router.layer(map_response(protect)))) }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts connections. Dropping this future ends them.
async fn accept(listener: TcpListener, router: Router) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut http = http1::Builder::new();
    // One request per connection: an idle client holds none of the few.
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(MAX_HEAD).keep_alive(false);
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                // Best effort: without it the kernel's own, longer bound holds.
                let _ = set_tcp_user_timeout(&stream, UNREAD_WITHIN);
                let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
                connections.spawn(async move {
                    // The error of a client is of no interest to the process.
                    let _ = connection.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection to the metrics was refused");
                sleep(ACCEPT_PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

/// No answer is stored by a cache, or taken for another type than it has.
async fn protect(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
