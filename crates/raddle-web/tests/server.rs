//! The server over real connections, with well-behaved and hostile clients.

#![expect(
    clippy::unwrap_used,
    reason = "in a test, what must be there and is not is a failure"
)]

use std::{
    future,
    net::SocketAddr,
    time::{Duration, Instant},
};

use raddle_web::{Readiness, Router, Server, Serving};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const DEADLINE: Duration = Duration::from_secs(60);

async fn serve_router(router: Router) -> (Serving, String) {
    let server = Server::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = server.url();
    (server.serve(router), url)
}

async fn serve(page: &str) -> (Serving, String) {
    let page = page.to_owned();
    serve_router(raddle_web::metrics(move || future::ready(page.clone()))).await
}

fn address(url: &str) -> SocketAddr {
    url.strip_prefix("http://")
        .unwrap()
        .strip_suffix("/metrics")
        .unwrap()
        .parse()
        .unwrap()
}

async fn send_request(url: &str, request: &[u8]) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(address(url)).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).await.unwrap();
        String::from_utf8(response).unwrap()
    };
    timeout(DEADLINE, exchange).await.unwrap()
}

#[tokio::test]
async fn serves_the_metrics_and_nothing_else() {
    let (_serving, url) = serve("x 1\n").await;
    let page = send_request(&url, b"GET /metrics?x HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(
        page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("\nx 1\n"),
        "{page}"
    );
    assert!(page.contains("\r\n\r\n# HELP build_info "), "{page}");
    for header in [
        "content-type: text/plain; version=0.0.4; charset=utf-8",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "connection: close",
    ] {
        assert!(
            page.contains(&format!("\r\n{header}\r\n")),
            "{header} is not in {page}"
        );
    }
    let head = send_request(&url, b"HEAD /metrics HTTP/1.1\r\n\r\n").await;
    assert!(
        head.ends_with("\r\n\r\n") && head.contains("content-length: "),
        "{head}"
    );
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
        (b"GET /readyz HTTP/1.1\r\n\r\n", "404"),
        (b"GET /metrics/../etc HTTP/1.1\r\n\r\n", "404"),
        (
            b"POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx",
            "405",
        ),
        (b"GET /metrics HTTP/3\r\n\r\n", "400"),
        (b"\x16\x03\x01\x02\x00 hello\r\n\r\n", "400"),
    ] {
        let response = send_request(&url, request).await;
        assert!(
            response.starts_with(&format!("HTTP/1.1 {status} ")),
            "{response}"
        );
    }
}

#[tokio::test]
async fn merges_readiness_and_health_with_metrics() {
    for (readiness, status) in [
        (Readiness::Ready("yes".into()), "200 OK"),
        (Readiness::Unready("no".into()), "503 Service Unavailable"),
    ] {
        let (Readiness::Ready(message) | Readiness::Unready(message)) = readiness.clone();
        let metrics = raddle_web::metrics(|| future::ready("x 1\n".into()));
        let (_serving, url) =
            serve_router(metrics.merge(raddle_web::health(move || readiness.clone()))).await;
        let ready = send_request(&url, b"GET /readyz HTTP/1.1\r\n\r\n").await;
        assert!(
            ready.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{ready}"
        );
        assert!(ready.ends_with(&format!("\r\n\r\n{message}\n")), "{ready}");
        assert!(
            send_request(&url, b"GET /healthz HTTP/1.1\r\n\r\n")
                .await
                .ends_with("\r\n\r\nok\n")
        );
        assert!(
            send_request(&url, b"GET /metrics HTTP/1.1\r\n\r\n")
                .await
                .ends_with("\nx 1\n")
        );
    }
}

#[tokio::test]
async fn refuses_an_unterminated_head() {
    let (_serving, url) = serve("x 1\n").await;
    let head = b"GET /metrics HTTP/1.1\r\nX: "
        .iter()
        .copied()
        .chain(std::iter::repeat(b'A'))
        .take(8 << 10);
    let response = send_request(&url, &head.collect::<Vec<_>>()).await;
    assert!(response.starts_with("HTTP/1.1 431 "), "{response}");
}

/// Silent clients delay others, but at most for the time limit of a request head.
#[tokio::test]
async fn cuts_off_silent_clients_and_serves_others() {
    let (_serving, url) = serve("x 1\n").await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        let mut stream = TcpStream::connect(address(&url)).await.unwrap();
        stream.write_all(b"GET /met").await.unwrap();
        silent.push(stream);
    }
    let page = send_request(&url, b"GET /metrics HTTP/1.1\r\n\r\n").await;
    assert!(page.ends_with("x 1\n"), "{page}");
    let ended = timeout(DEADLINE, silent[0].read_u8()).await.unwrap();
    assert!(ended.is_err(), "a silent client is answered with {ended:?}");
}

#[tokio::test]
async fn cuts_off_clients_that_do_not_read_their_response() {
    let (_serving, url) = serve(&"x 1\n".repeat(4 << 20)).await;
    let mut unread = Vec::new();
    for _ in 0..16 {
        let mut stream = TcpStream::connect(address(&url)).await.unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\n\r\n")
            .await
            .unwrap();
        unread.push(stream);
    }
    assert!(
        send_request(&url, b"GET / HTTP/1.1\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 404 ")
    );
}

#[tokio::test]
async fn frees_the_address_when_it_is_dropped() {
    let (serving, url) = serve("x 1\n").await;
    let taken = Server::bind(address(&url)).await.err().unwrap().to_string();
    assert!(taken.contains(&address(&url).to_string()), "{taken}");
    drop(serving);
    let began = Instant::now();
    while TcpStream::connect(address(&url)).await.is_ok() {
        assert!(began.elapsed() < DEADLINE);
        tokio::task::yield_now().await;
    }
}
