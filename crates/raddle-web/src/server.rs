//! Serves a page of metrics, and where there is something to be ready for, whether it is, beside what else the process does.

use std::{future::Future, io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};

use crate::request::{MAX_HEAD, Refusal, Request, end_of_head, parse};

/// What is shown.
pub trait Source: Send + Sync + 'static {
    /// The page at `/metrics`, as it is now.
    fn page(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>>;

    /// What `/readyz` says. Where nobody says anything, there is no such page, and no `/healthz`, which says no more than that somebody answers.
    fn readiness(&self) -> Option<Readiness> {
        None
    }
}

/// Whether somebody does what it is there for, and a word on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It does.
    Ready(String),
    /// Not yet, or no more.
    Unready(String),
}

/// An address that is taken, where nobody is served yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

/// A page that is served until this is dropped.
pub struct Serving {
    task: JoinHandle<()>,
}

/// Why there is nothing to listen on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

const PATH: &str = "/metrics";
const READY: &str = "/readyz";
const HEALTH: &str = "/healthz";
const PAGE_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";
/// Who scrapes comes with one connection at a time; more than a few are not there for the page.
const CONNECTIONS: usize = 16;
/// How long a request may take to arrive.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// How long the page may take to be made, and to be taken.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// After the system has refused a connection, before the next is asked for.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// What is still read of a client after its answer, so that closing does not take the answer away from it.
const LAST_BYTES: u64 = 64 << 10;
const LINGER: Duration = Duration::from_millis(200);

impl Server {
    /// Takes the address. With port 0 the system chooses one.
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let cannot = |source| BindError { address, source };
        let listener = TcpListener::bind(address).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        Ok(Self { listener, address })
    }

    /// Where the page is found.
    pub fn url(&self) -> String {
        format!("http://{}{PATH}", self.address)
    }

    /// Begins to serve.
    pub fn serve(self, source: Arc<dyn Source>) -> Serving {
        Serving { task: tokio::spawn(accept(self.listener, source)) }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Connections end with this, when it is dropped.
async fn accept(listener: TcpListener, source: Arc<dyn Source>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        // Those that find no room wait in the kernel, and then outside of it.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let source = Arc::clone(&source);
                connections.spawn(async move {
                    // A client that has gone away is nobody's problem.
                    let _ = converse(stream, &*source).await;
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

async fn converse(mut stream: TcpStream, source: &dyn Source) -> io::Result<()> {
    let answer = match timeout(READ_WITHIN, read_head(&mut stream)).await {
        Ok(head) => match head? {
            Some(head) => timeout(ANSWER_WITHIN, answer(&head, source)).await.unwrap_or_else(|_| late()),
            None => plain("431 Request Header Fields Too Large", "the request is too long\n", ""),
        },
        Err(_) => plain("408 Request Timeout", "the request took too long\n", ""),
    };
    timeout(ANSWER_WITHIN, stream.write_all(&answer)).await.map_err(io::Error::from)??;
    stream.shutdown().await?;
    let mut rest = stream.take(LAST_BYTES);
    let _ = timeout(LINGER, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await;
    Ok(())
}

/// The head of the request, or nothing if it is too long.
async fn read_head(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::with_capacity(512);
    loop {
        if let Some(end) = end_of_head(&head) {
            head.truncate(end);
            return Ok(Some(head));
        }
        if head.len() >= MAX_HEAD {
            return Ok(None);
        }
        let room = (MAX_HEAD - head.len()) as u64;
        if (&mut *stream).take(room).read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

async fn answer(head: &[u8], source: &dyn Source) -> Vec<u8> {
    match parse(head) {
        Ok(Request::Get { path: PATH, head_only }) => {
            let page = source.page().await;
            response("200 OK", PAGE_TYPE, page.as_bytes(), "", head_only)
        }
        Ok(Request::Get { path, head_only }) => {
            let (status, text) = said_of(path, source.readiness());
            response(status, PLAIN, text.as_bytes(), "", head_only)
        }
        Err(Refusal::Method) => plain("405 Method Not Allowed", "only GET and HEAD\n", "Allow: GET, HEAD\r\n"),
        Err(Refusal::Version) => plain("505 HTTP Version Not Supported", "only HTTP/1.0 and HTTP/1.1\n", ""),
        Err(Refusal::Malformed) => plain("400 Bad Request", "that is no request\n", ""),
    }
}

/// What is said at a path that is not that of the metrics.
fn said_of(path: &str, readiness: Option<Readiness>) -> (&'static str, String) {
    match (path, readiness) {
        (_, None) => ("404 Not Found", "there is nothing but /metrics\n".into()),
        (READY, Some(Readiness::Ready(word))) => ("200 OK", format!("{word}\n")),
        (READY, Some(Readiness::Unready(word))) => ("503 Service Unavailable", format!("{word}\n")),
        (HEALTH, Some(_)) => ("200 OK", "ok\n".into()),
        (_, Some(_)) => ("404 Not Found", "there is nothing but /metrics, /readyz and /healthz\n".into()),
    }
}

fn late() -> Vec<u8> {
    plain("503 Service Unavailable", "the metrics took too long\n", "")
}

fn plain(status: &str, text: &str, more: &str) -> Vec<u8> {
    response(status, PLAIN, text.as_bytes(), more, false)
}

fn response(status: &str, kind: &str, body: &[u8], more: &str, head_only: bool) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\n{more}Connection: close\r\n\r\n"
    );
    let mut whole = head.into_bytes();
    if !head_only {
        whole.extend_from_slice(body);
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_is_shown_where_there_is_something_to_be_ready_for() {
        let ready = || Some(Readiness::Ready("yes".into()));
        let unready = || Some(Readiness::Unready("no".into()));
        for (path, readiness, status, text) in [
            (READY, ready(), "200 OK", "yes\n"),
            (READY, unready(), "503 Service Unavailable", "no\n"),
            (HEALTH, unready(), "200 OK", "ok\n"),
            ("/", ready(), "404 Not Found", "there is nothing but /metrics, /readyz and /healthz\n"),
            (READY, None, "404 Not Found", "there is nothing but /metrics\n"),
            (HEALTH, None, "404 Not Found", "there is nothing but /metrics\n"),
        ] {
            assert_eq!(said_of(path, readiness), (status, text.to_owned()), "{path}");
        }
    }
}
