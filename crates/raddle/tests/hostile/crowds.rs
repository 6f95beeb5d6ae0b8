//! Crowds at the door: connections that begin and do not go on, and links that say nothing.

use std::{
    io::Read,
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::{Honest, Raw, Site, until, within};

/// The beginning of a handshake of TLS, most of which is to follow.
const HALF_A_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
const MANY: usize = 1000;

/// A thousand that begin like this.
async fn crowd(address: &str, words: &'static [u8]) -> Vec<Raw> {
    let address = address.to_owned();
    let coming = move || {
        let begin = |_| {
            let mut raw = Raw::connect(&address);
            // Some have been turned away before they get to say it.
            let _ = raw.send(words);
            raw
        };
        (0..MANY).map(begin).collect()
    };
    tokio::task::spawn_blocking(coming).await.unwrap()
}

/// How many of them are still there.
fn left(crowd: &[Raw]) -> usize {
    let is_there = |raw: &&Raw| {
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
    crowd.iter().filter(is_there).count()
}

/// A thousand come and get no further: most are sent away at once, and all when their time is over.
async fn comes_to_nothing(site: Site, words: &'static [u8], at_once: bool) {
    within(150, async {
        let honest = Honest::begin(&site).await;
        let began = Instant::now();
        let crowd = crowd(site.address(), words).await;
        if at_once {
            until("most have to go", async || left(&crowd) <= 256).await;
        }
        until("all have to go", async || left(&crowd) == 0).await;
        println!("all were gone after {:?}", began.elapsed());
        site.tells(&["too_slow"], MANY as u64).await;
        honest.was_served().await;
        site.ends().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_half_open_handshakes_keep_nobody_out() {
    comes_to_nothing(Site::secure(&[]).await, HALF_A_HELLO, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_that_say_nothing_keep_nobody_out() {
    comes_to_nothing(Site::plain().await, b"", true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_that_do_not_finish_their_greeting_keep_nobody_out() {
    comes_to_nothing(Site::plain().await, b"radd", true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_that_do_not_finish_the_preface_of_http2_keep_nobody_out() {
    comes_to_nothing(Site::plain().await, b"PRI * HTTP/2.0\r\n\r\nSM", false).await;
}

/// More links than there are descriptors for.
#[tokio::test(flavor = "multi_thread")]
async fn links_that_say_nothing_make_room_for_those_that_do() {
    within(120, async {
        let site = Site::narrow(1024).await;
        let honest = Honest::begin(&site).await;
        let mut idle = Vec::new();
        for _ in 0..MANY {
            let address = site.address().to_owned();
            let link = tokio::task::spawn_blocking(move || Raw::link(&address))
                .await
                .unwrap();
            idle.push(link.expect("whoever comes is greeted"));
        }
        until("most have to go", async || left(&idle) <= 128).await;
        site.tells(&["crowded"], (MANY - 128) as u64).await;
        honest.was_served().await;
        site.ends().await;
    })
    .await;
}

/// The same by gRPC, whose server knows nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn clients_of_grpc_that_say_nothing_make_room_for_those_that_do() {
    within(120, async {
        let site = Site::narrow(1024).await;
        let honest = Honest::begin(&site).await;
        // Settings, of which there are none.
        let crowd = crowd(
            site.address(),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        )
        .await;
        until("most have to go", async || left(&crowd) <= 128).await;
        site.tells(&["crowded"], 500).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        honest.was_served().await;
        site.ends().await;
    })
    .await;
}
