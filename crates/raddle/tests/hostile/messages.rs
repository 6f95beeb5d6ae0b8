//! gRPC messages that are announced and not sent.

use crate::{HonestCaller, Raw, TargetServer, wait_until, within};

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A literal header field without indexing.
fn field(name: &str, value: &str) -> Vec<u8> {
    [
        &[0, name.len() as u8][..],
        name.as_bytes(),
        &[value.len() as u8],
        value.as_bytes(),
    ]
    .concat()
}

/// A gRPC call whose message is announced with this length and has one byte.
fn announcing(stream: u32, bytes: u32) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/raddle.v1.Worker/Dispatch"),
        (":authority", "worker"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let headers: Vec<u8> = fields
        .iter()
        .flat_map(|(name, value)| field(name, value))
        .collect();
    let data = [&[0][..], &bytes.to_be_bytes(), &[7]].concat();
    [frame(1, 4, stream, &headers), frame(0, 0, stream, &data)].concat()
}

const BEGINNING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[tokio::test(flavor = "multi_thread")]
async fn announced_messages_allocate_no_memory() {
    within(120, async {
        let target = TargetServer::plain().await;
        let honest = HonestCaller::begin(&target).await;
        let (before, calls) = (target.memory("VmSize"), 2000);
        let mut raw = Raw::connect(target.address());
        let bytes: Vec<u8> = (0..calls)
            .flat_map(|call| announcing(2 * call + 1, 200 << 20))
            .collect();
        raw.send(BEGINNING).unwrap();
        raw.send(&bytes).unwrap();
        let mut peak = before;
        // The last call is refused after all others were read.
        raw.send(&announcing(2 * calls + 1, u32::MAX)).unwrap();
        target.wait_until_refused(&["malformed"], 1).await;
        peak = peak.max(target.memory("VmSize"));
        println!("{peak} MiB were reserved ({before} before)");
        // Allocated in full it would be 400 GiB.
        assert!(peak < before + 4096, "{peak} MiB of {before}");
        honest.assert_served().await;
        drop(raw);
        wait_until("no call is left in flight", async || {
            target.metric("raddle_pool_calls_in_flight").await == 0
        })
        .await;
        target.assert_healthy_and_stop().await;
    })
    .await;
}
