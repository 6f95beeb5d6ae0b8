//! Floods of connections: unfinished handshakes and idle links.

use std::{
    io::Read,
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::{HonestCaller, Raw, TargetServer, wait_until, within};

/// The beginning of a TLS ClientHello.
const PARTIAL_CLIENT_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
const MANY: usize = 1000;

/// A thousand connections that send these bytes.
async fn connections(address: &str, bytes: &'static [u8]) -> Vec<Raw> {
    let address = address.to_owned();
    let connect_all = move || {
        let begin = |_| {
            let mut raw = Raw::connect(&address);
            // Some are closed before they can send.
            let _ = raw.send(bytes);
            raw
        };
        (0..MANY).map(begin).collect()
    };
    tokio::task::spawn_blocking(connect_all).await.unwrap()
}

/// The number of open connections.
fn count_open(connections: &[Raw]) -> usize {
    let is_open = |raw: &&Raw| {
        let mut stream: &TcpStream = &raw.0;
        stream.set_nonblocking(true).unwrap();
        loop {
            match stream.read(&mut [0; 1024]) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
    };
    connections.iter().filter(is_open).count()
}

/// A thousand connections make no progress: most are closed at once, and all after a timeout.
async fn run_connection_flood(target: TargetServer, bytes: &'static [u8], at_once: bool) {
    within(150, async {
        let honest = HonestCaller::begin(&target).await;
        let began = Instant::now();
        let connections = connections(target.address(), bytes).await;
        if at_once {
            wait_until("most connections are closed", async || {
                count_open(&connections) <= 256
            })
            .await;
        }
        wait_until("all connections are closed", async || {
            count_open(&connections) == 0
        })
        .await;
        println!("all were closed after {:?}", began.elapsed());
        target.wait_until_refused(&["too_slow"], MANY as u64).await;
        honest.assert_served().await;
        target.assert_healthy_and_stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_callers_during_a_thousand_half_open_handshakes() {
    run_connection_flood(TargetServer::secure(&[]).await, PARTIAL_CLIENT_HELLO, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_callers_during_a_thousand_silent_connections() {
    run_connection_flood(TargetServer::plain().await, b"", true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_callers_during_a_thousand_unfinished_greetings() {
    run_connection_flood(TargetServer::plain().await, b"radd", true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_callers_during_a_thousand_unfinished_http2_prefaces() {
    run_connection_flood(
        TargetServer::plain().await,
        b"PRI * HTTP/2.0\r\n\r\nSM",
        false,
    )
    .await;
}

/// More links than descriptors.
#[tokio::test(flavor = "multi_thread")]
async fn evicts_idle_links() {
    within(120, async {
        let target = TargetServer::with_fd_limit(1024).await;
        let honest = HonestCaller::begin(&target).await;
        let mut idle = Vec::new();
        for _ in 0..MANY {
            let address = target.address().to_owned();
            let link = tokio::task::spawn_blocking(move || Raw::link(&address))
                .await
                .unwrap();
            idle.push(link.expect("every link is greeted"));
        }
        wait_until("most connections are closed", async || {
            count_open(&idle) <= 128
        })
        .await;
        target
            .wait_until_refused(&["crowded"], (MANY - 128) as u64)
            .await;
        honest.assert_served().await;
        target.assert_healthy_and_stop().await;
    })
    .await;
}

/// The same with gRPC, whose server does not evict clients itself.
#[tokio::test(flavor = "multi_thread")]
async fn evicts_idle_grpc_clients() {
    within(120, async {
        let target = TargetServer::with_fd_limit(1024).await;
        let honest = HonestCaller::begin(&target).await;
        // An empty SETTINGS frame.
        let connections = connections(
            target.address(),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        )
        .await;
        wait_until("most connections are closed", async || {
            count_open(&connections) <= 128
        })
        .await;
        target.wait_until_refused(&["crowded"], 500).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        honest.assert_served().await;
        target.assert_healthy_and_stop().await;
    })
    .await;
}
