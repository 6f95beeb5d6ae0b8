//! Malformed clients and servers.

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    time::Duration,
};

use raddle_broker::{Call, Error, PeekRequest, SummaryDetail};
use raddle_broker_remote::Remote;
use raddle_model::{QueueName, TaskState, Tid};

use crate::support::*;

const GREETING: &[u8] = b"raddle\n\x0c";

/// A frame with this body.
fn frame(body: &[u8]) -> Vec<u8> {
    [&u32::try_from(body.len()).unwrap().to_le_bytes(), body].concat()
}

/// An encoded message of this kind with an id.
fn message(kind: &str, fields: u8, id: u64) -> Vec<u8> {
    [
        &[0x81][..],
        &text(kind),
        &[0x80 | fields],
        &text("id"),
        &[0xcf],
        &id.to_be_bytes(),
    ]
    .concat()
}

/// A call frame with any payload.
fn call(id: u64, call: &[u8]) -> Vec<u8> {
    frame(&[&message("Call", 2, id)[..], &text("call"), call].concat())
}

/// An encoded text.
fn text(text: &str) -> Vec<u8> {
    assert!(text.len() < 32);
    [&[0xa0 | u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

fn encode_call(call: &Call) -> Vec<u8> {
    rmp_serde::to_vec_named(call).unwrap()
}

fn summary() -> Vec<u8> {
    encode_call(&Call::Summarize {
        detail: SummaryDetail::default(),
    })
}

fn open(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream
}

/// Sends bytes and reads until the server closes. A server that waits for more fails the test by
/// its timeout.
fn exchange(path: &Path, bytes: &[u8]) -> Vec<u8> {
    let mut stream = open(path);
    // The server may have closed before all was sent.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) => assert_eq!(
            error.kind(),
            std::io::ErrorKind::ConnectionReset,
            "the server does not close"
        ),
    }
    answer
}

#[tokio::test]
async fn malformed_frames_close_their_connection_only() {
    let served = ServedBroker::start(Engine::Memory);
    let path = served.path();
    let broker = remote(&path).await;
    let with_greeting = |bytes: &[u8]| [GREETING, bytes].concat();
    let asking = |payload: &[u8]| with_greeting(&call(0, payload));
    let twice = [call(5, &summary()), call(5, &summary())].concat();
    let recv_commands = encode_call(&Call::RecvCommands {
        owner: Tid::from_u64(1_700_000_000_000_000_000).unwrap(),
        wait: SOON,
    });
    let long_wait = [call(5, &recv_commands), call(5, &summary())];
    let hostile: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0; 100_000],
        b"raddle\n\xff".to_vec(),
        with_greeting(&[0xff; 64]),
        // A frame that claims 4 GiB, and one that is a byte above the limit.
        with_greeting(&[0xff; 4]),
        with_greeting(&((64u32 << 20) + 1).to_le_bytes()),
        with_greeting(&frame(&message("Destroy", 1, 0))),
        asking(&[]),
        asking(&text("Destroy")),
        asking(&text("Claim")),
        asking(&vec![0x91; 100_000]),
        // A list of four billion submissions.
        asking(
            &[
                &[0x81][..],
                &text("Submit"),
                &[0x81],
                &text("batch"),
                &[0xdd, 0xff, 0xff, 0xff, 0xff],
            ]
            .concat(),
        ),
        with_greeting(&long_wait.concat()),
    ];
    for bytes in &hostile {
        let answer = exchange(&path, bytes);
        assert!(
            answer.starts_with(GREETING),
            "the server greets every client"
        );
        broker.summary().await.unwrap();
    }
    // A repeated id is the client's own problem, as long as the first call was answered.
    let mut stream = open(&path);
    stream.write_all(&with_greeting(&twice)).unwrap();
    drop(stream);
    // A client that cancels an unknown call is served.
    let mut stream = open(&path);
    let bytes = [frame(&message("Cancel", 1, 77)), call(1, &summary())].concat();
    stream.write_all(&with_greeting(&bytes)).unwrap();
    let mut answer = [0; 200];
    let mut len = 0;
    while !answer[..len].windows(6).any(|window| window == b"states") {
        len += stream.read(&mut answer[len..]).unwrap();
    }
    broker.summary().await.unwrap();
}

#[tokio::test]
async fn survives_truncated_and_corrupted_bytes() {
    let served = ServedBroker::start(Engine::Memory);
    let path = served.path();
    let broker = remote(&path).await;
    let whole = [
        GREETING,
        &call(1, &summary()),
        &call(2, &encode_call(&Call::Workers {})),
    ]
    .concat();
    for cut in 0..whole.len() {
        open(&path).write_all(&whole[..cut]).unwrap();
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut changed = whole.clone();
            changed[at] ^= 1 << bit;
            let _ = open(&path).write_all(&changed);
        }
    }
    broker.summary().await.unwrap();
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn a_client_that_does_not_read_uses_bounded_memory() {
    const MESSAGE: usize = 2 << 20;
    const CALLS: u64 = 400;
    let served = ServedBroker::start(Engine::Sqlite);
    let broker = remote(served.path()).await;
    let queue: QueueName = "large".parse().unwrap();
    broker
        .put(queue.clone(), vec!["x".repeat(MESSAGE)])
        .await
        .unwrap();
    let before = resident_kib();
    let mut slow = open(&served.path());
    slow.write_all(GREETING).unwrap();
    let peek = encode_call(&Call::Peek {
        peek: PeekRequest {
            queue,
            after: 0,
            max: 1,
            wait: Duration::ZERO,
        },
    });
    for id in 0..CALLS {
        slow.write_all(&call(id, &peek)).unwrap();
    }
    // Other clients are served meanwhile. The replies of the slow one would be 800 MiB.
    for _ in 0..20 {
        broker.summary().await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let grown = (resident_kib() - before) / 1024;
    assert!(grown < 350, "the server has grown by {grown} MiB");
    // It gets all replies when it reads at last.
    let reading = tokio::task::spawn_blocking(move || {
        let (mut total, mut buf) = (0, vec![0; 1 << 20]);
        while total < CALLS as usize * MESSAGE {
            total += slow.read(&mut buf).unwrap();
        }
    });
    tokio::time::timeout(3 * SOON, reading)
        .await
        .unwrap()
        .unwrap();
}

/// A reply that is queued behind another was not delivered, whatever happens to the client.
#[tokio::test]
async fn releases_a_claim_that_cannot_be_delivered() {
    for engine in [Engine::Memory, Engine::Sqlite] {
        let served = ServedBroker::start(engine);
        let broker = remote(served.path()).await;
        let owner = broker.register(info(), TTL).await.unwrap();
        let queue: QueueName = "large".parse().unwrap();
        broker
            .put(queue.clone(), vec!["x".repeat(4 << 20)])
            .await
            .unwrap();
        let tid = submit(&*broker).await;
        let mut client = open(&served.path());
        client.write_all(GREETING).unwrap();
        let peek = PeekRequest {
            queue,
            after: 0,
            max: 1,
            wait: Duration::ZERO,
        };
        client
            .write_all(&call(1, &encode_call(&Call::Peek { peek })))
            .unwrap();
        // Once the first byte of the large reply has arrived, it is ahead of the next.
        let mut seen = vec![0; 4096];
        let mut total = 0;
        while total < 4096 {
            total += client.read(&mut seen).unwrap();
        }
        client
            .write_all(&call(
                2,
                &encode_call(&Call::Claim {
                    request: request(owner, SOON),
                }),
            ))
            .unwrap();
        wait_until("the task is claimed", async || {
            (state(&*broker, tid).await == TaskState::Spawning).then_some(())
        })
        .await;
        drop(client);
        wait_until("the task is released", async || {
            (state(&*broker, tid).await == TaskState::Created).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn explains_servers_that_are_no_broker() {
    let directory = tempfile::tempdir().unwrap();
    let cases: [(&str, &[u8], &str); 4] = [
        (
            "other",
            b"HTTP/1.1 400 Bad Request\r\n",
            "the peer is not Raddle",
        ),
        (
            "later",
            b"raddle\n\xff",
            "protocol version 255, this program 12",
        ),
        ("silent", b"", "has closed the connection"),
        ("half", b"raddle\n\x0c\x13\x00", "has closed the connection"),
    ];
    for (name, reply, expected) in cases {
        let path = directory.path().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        let reply = reply.to_vec();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&reply).unwrap();
            // Until the client has sent its greeting.
            let _ = stream.read(&mut [0; 8]);
        });
        let error = Remote::connect(&path).await.err().unwrap();
        server.join().unwrap();
        assert!(error.to_string().contains(expected), "{name}: {error}");
        let is_gone = matches!(error, Error::AgentGone { .. });
        assert_eq!(error.is_retryable(), is_gone);
    }
    let error = Remote::connect(&directory.path().join("absent"))
        .await
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("no process serves there"),
        "{error}"
    );
}
