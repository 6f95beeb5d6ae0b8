//! Tests of a link whose worker is scripted by the test.

use std::{future::poll_fn, io::Write as _, os::unix::net::UnixStream};

use raddle_wire::frame;

use super::*;

/// A link, and the worker's end of its socket.
fn pair() -> (LinkConnection, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (
        LinkConnection::new(LinkSocket::new(ours.into(), false, None)).unwrap(),
        theirs,
    )
}

fn call() -> v1::Call {
    v1::Call {
        routine: "any".into(),
        arguments: Bytes::from_static(b"arguments"),
        ..v1::Call::default()
    }
}

fn answer(id: u64, what: answer::What, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::put(
        &mut bytes,
        &v1::Answer {
            id,
            what: Some(what),
        },
        body,
    );
    bytes
}

async fn next_event(call: &mut LinkCall) -> CallEvent {
    let event = poll_fn(|cx| call.poll_event(cx));
    tokio::time::timeout(Duration::from_secs(10), event)
        .await
        .expect("an event")
}

#[tokio::test]
async fn delivers_answers_that_arrived_before_the_worker_closed() {
    let (link, mut worker) = pair();
    let mut answered = link.call(call()).unwrap();
    let mut unanswered = link.call(call()).unwrap();
    let mut answers = answer(1, answer::What::Result(v1::Outcome {}), b"result");
    answers.extend(answer(0, answer::What::Leave(v1::Leave::default()), b""));
    worker.write_all(&answers).unwrap();
    // Send everything before the link can read.
    drop(worker);
    let mut late = link.call(call()).unwrap();
    assert_eq!(
        next_event(&mut answered).await,
        CallEvent::Result(Bytes::from_static(b"result"))
    );
    for call in [&mut unanswered, &mut late] {
        let event = next_event(call).await;
        assert!(
            matches!(&event, CallEvent::Failed(error) if !error.may_have_begun),
            "{event:?}"
        );
    }
    assert!(link.end().is_some());
}

#[tokio::test]
async fn frees_large_arguments_of_dropped_calls() {
    let (link, worker) = pair();
    let body = Bytes::from(vec![7; 1 << 20]);
    let large = || v1::Call {
        arguments: body.clone(),
        ..call()
    };
    let _first = link.call(large()).unwrap();
    for _ in 0..100 {
        drop(link.call(large()).unwrap());
    }
    tokio::task::yield_now().await;
    assert!(
        link.shared.writer.queued_bytes() < 4 << 20,
        "{}",
        link.shared.writer.queued_bytes()
    );
    drop(worker);
}

#[tokio::test]
async fn closes_the_link_when_the_worker_exceeds_its_credit() {
    let (link, mut worker) = pair();
    let (mut call, mut other) = (link.call(call()).unwrap(), link.call(call()).unwrap());
    let item = || answer(1, answer::What::Item(v1::Item {}), b"item");
    let as_many_as_it_may: Vec<u8> = (0..CREDIT_WINDOW).flat_map(|_| item()).collect();
    worker.write_all(&as_many_as_it_may).unwrap();
    assert!(matches!(next_event(&mut call).await, CallEvent::Item(_)));
    assert!(link.end().is_none());
    let too_many: Vec<u8> = (0..CREDIT_WINDOW).flat_map(|_| item()).collect();
    worker.write_all(&too_many).unwrap();
    assert!(
        matches!(next_event(&mut other).await, CallEvent::Failed(error) if error.may_have_begun)
    );
    assert!(link.end().is_some());
}
