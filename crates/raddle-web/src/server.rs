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

/// A running server. Dropping it stops the server.
pub struct Serving {
    task: JoinHandle<()>,
}

/// The address cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

/// Maximum number of connections. Prometheus uses one at a time; further ones wait in the kernel's
/// backlog.
const CONNECTIONS: usize = 16;
/// Maximum size of a request head. A scraper sends a few hundred bytes.
const MAX_HEAD: usize = 8 << 10;
/// Time limit for receiving a request head.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// `TCP_USER_TIMEOUT` in milliseconds: how long the kernel keeps a connection to a client that does
/// not read its response.
const UNREAD_WITHIN: u32 = 10_000;
/// Pause after a failed `accept`.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

impl Server {
    /// Binds the address. With port 0 the kernel chooses a port.
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let cannot = |source| BindError { address, source };
        let listener = TcpListener::bind(address).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        Ok(Self { listener, address })
    }

    /// Returns the URL of the metrics.
    pub fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }

    /// Starts serving.
    pub fn serve(self, router: Router) -> Serving {
        Serving {
            task: tokio::spawn(accept_connections(
                self.listener,
                router.layer(map_response(add_headers)),
            )),
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts connections. Dropping this future closes them.
async fn accept_connections(listener: TcpListener, router: Router) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut http = http1::Builder::new();
    // One request per connection, so that idle clients do not occupy the few permits.
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(MAX_HEAD)
        .keep_alive(false);
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                // Best effort: without it the kernel's longer default applies.
                let _ = set_tcp_user_timeout(&stream, UNREAD_WITHIN);
                let connection = http.serve_connection(
                    TokioIo::new(stream),
                    TowerToHyperService::new(router.clone()),
                );
                connections.spawn(async move {
                    // Errors of clients do not concern this process.
                    let _ = connection.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the metrics");
                sleep(ACCEPT_PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Keeps caches from storing responses, and browsers from guessing another type.
async fn add_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
