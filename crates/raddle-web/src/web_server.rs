//! Serves an [`App`] on a TCP address, with or without TLS, or on a Unix socket.

use std::{
    future::{Future, pending},
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use axum::{Router, extract::Request};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{App, auth::PeerAddress, tls::Acceptor};

/// The most connections. Each tab of a browser has one stream and a few more while it loads.
const CONNECTIONS: usize = 1024;
/// The largest head of a request: cookies and queries fit.
const MAX_HEAD: usize = 32 << 10;
/// The time for the head of a request, and for an idle connection.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// The time for the TLS handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// How long open connections have after the stop of their streams.
const STOP_WITHIN: Duration = Duration::from_millis(300);
/// Pause after a failed `accept`.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// A bound server of an operator's interface.
pub struct WebServer {
    listener: Listener,
}

enum Listener {
    Tcp(TcpListener, Option<Acceptor>),
    /// Only processes of this user, and of root, are served.
    Unix(UnixListener, u32),
}

impl WebServer {
    /// Serves a TCP address, with TLS if there is an acceptor.
    pub fn tcp(listener: TcpListener, tls: Option<Acceptor>) -> Self {
        Self {
            listener: Listener::Tcp(listener, tls),
        }
    }

    /// Serves a Unix socket to processes of the user `owner`.
    pub fn unix(listener: UnixListener, owner: u32) -> Self {
        Self {
            listener: Listener::Unix(listener, owner),
        }
    }

    /// Serves until `shutdown` ends. Then it ends all streams, gives requests a moment, and closes
    /// what is left.
    pub async fn run(self, app: App, shutdown: impl Future<Output = ()>) {
        let (stop, _) = watch::channel(false);
        let router = app.router();
        let permits = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        loop {
            let accepted = async {
                let permit = Arc::clone(&permits).acquire_owned().await;
                (permit, self.listener.accept().await)
            };
            let (permit, accepted) = tokio::select! {
                accepted = accepted => accepted,
                () = &mut shutdown => break,
            };
            let (Ok(permit), accepted) = (permit, accepted) else {
                break;
            };
            match accepted {
                Ok(Accepted { stream, peer, tls }) => {
                    let (router, stopping) = (router.clone(), stop.subscribe());
                    connections.spawn(async move {
                        serve(stream, peer, tls, router, stopping).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
            while connections.try_join_next().is_some() {}
        }
        drop(self.listener);
        // Streams first: a graceful stop waits for responses that are under way.
        app.stop();
        stop.send_replace(true);
        let finished = async { while connections.join_next().await.is_some() {} };
        let _ = timeout(STOP_WITHIN, finished).await;
        connections.shutdown().await;
    }
}

/// A stream of bytes.
trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

struct Accepted {
    stream: Box<dyn ByteStream>,
    peer: Option<IpAddr>,
    tls: Option<Acceptor>,
}

impl Listener {
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener, tls) => {
                let (stream, peer): (_, SocketAddr) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                Ok(Accepted {
                    stream: Box::new(stream),
                    peer: Some(peer.ip().to_canonical()),
                    tls: tls.clone(),
                })
            }
            Self::Unix(listener, owner) => loop {
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred()?.uid();
                if peer == *owner || peer == 0 {
                    return Ok(Accepted {
                        stream: Box::new(stream),
                        peer: None,
                        tls: None,
                    });
                }
                tracing::warn!(peer, "refused a process of another user");
            },
        }
    }
}

async fn serve(
    stream: Box<dyn ByteStream>,
    peer: Option<IpAddr>,
    tls: Option<Acceptor>,
    router: Router,
    stopping: watch::Receiver<bool>,
) {
    match tls {
        None => serve_http(stream, peer, router, stopping, false).await,
        Some(tls) => match timeout(HANDSHAKE_WITHIN, tls.accept(stream)).await {
            Ok(Ok(stream)) => serve_http(stream, peer, router, stopping, true).await,
            // Errors of clients do not concern this process.
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => {}
        },
    }
}

async fn serve_http(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: Option<IpAddr>,
    router: Router,
    mut stopping: watch::Receiver<bool>,
    is_secure: bool,
) {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(MAX_HEAD);
    http.http2()
        .timer(TokioTimer::new())
        .max_header_list_size(MAX_HEAD as u32)
        .max_concurrent_streams(100)
        .keep_alive_interval(HEAD_WITHIN);
    // Browsers speak HTTP/2 only over TLS.
    if !is_secure {
        http = http.http1_only();
    }
    let service = tower::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(PeerAddress(peer));
        tower::ServiceExt::oneshot(router.clone(), request)
    });
    let mut connection =
        pin!(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)));
    let stop = async {
        if stopping.wait_for(|is_stopping| *is_stopping).await.is_err() {
            pending::<()>().await;
        }
    };
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
