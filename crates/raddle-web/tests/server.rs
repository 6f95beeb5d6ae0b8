//! The page over real connections, from those who ask nicely and from those who do not.

#![expect(clippy::unwrap_used, reason = "in a test, what must be there and is not is a failure")]

use std::{
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use raddle_web::{Server, Serving, Source};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const DEADLINE: Duration = Duration::from_secs(30);

struct Fixed(String);

impl Source for Fixed {
    fn page(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(async { self.0.clone() })
    }
}

async fn serve(page: &str) -> (Serving, String) {
    let server = Server::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = server.url();
    (server.serve(Arc::new(Fixed(page.into()))), url)
}

fn address(url: &str) -> SocketAddr {
    url.strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap().parse().unwrap()
}

async fn ask(url: &str, request: &[u8]) -> String {
    let talk = async {
        let mut stream = TcpStream::connect(address(url)).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    };
    timeout(DEADLINE, talk).await.unwrap()
}

#[tokio::test]
async fn the_page_is_served_and_nothing_else() {
    let (_serving, url) = serve("x 1\n").await;
    let page = ask(&url, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("\r\n\r\nx 1\n"), "{page}");
    assert!(
        page.contains("Content-Type: text/plain; version=0.0.4") && page.contains("Content-Length: 4\r\n"),
        "{page}"
    );
    let head = ask(&url, b"HEAD /metrics HTTP/1.1\r\n\r\n").await;
    assert!(head.ends_with("\r\n\r\n") && head.contains("Content-Length: 4\r\n"), "{head}");
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
        (b"GET /metrics/../etc HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", "405"),
        (b"GET /metrics HTTP/3\r\n\r\n", "505"),
        (b"\x16\x03\x01\x02\x00 hello\r\n\r\n", "400"),
    ] {
        let answer = ask(&url, request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
}

#[tokio::test]
async fn a_head_without_end_is_refused() {
    let (_serving, url) = serve("x 1\n").await;
    let answer = ask(&url, &vec![b'A'; 8 << 10]).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

/// Those who say nothing keep others waiting, but not for longer than the time in which a request has to arrive.
#[tokio::test]
async fn silent_clients_are_cut_off_and_others_are_served() {
    let (_serving, url) = serve("x 1\n").await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        let mut stream = TcpStream::connect(address(&url)).await.unwrap();
        stream.write_all(b"GET /met").await.unwrap();
        silent.push(stream);
    }
    let began = Instant::now();
    let page = ask(&url, b"GET /metrics HTTP/1.1\r\n\r\n").await;
    assert!(page.ends_with("x 1\n") && began.elapsed() < DEADLINE, "{page}");
    let mut answer = String::new();
    timeout(DEADLINE, silent[0].read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}

#[tokio::test]
async fn the_address_is_free_when_nobody_serves_there_any_more() {
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
