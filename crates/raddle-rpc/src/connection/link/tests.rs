//! A link whose worker is played by the test, to have it say and do things at a certain moment.

use std::{future::poll_fn, io::Write as _, os::unix::net::UnixStream};

use raddle_wire::frame;

use super::*;

/// A link, and the end of its worker.
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

async fn step(call: &mut LinkCall) -> CallEvent {
    let step = poll_fn(|cx| call.poll_step(cx));
    tokio::time::timeout(Duration::from_secs(10), step)
        .await
        .expect("it is told")
}

#[tokio::test]
async fn what_was_answered_is_heard_although_nothing_more_can_be_said() {
    let (link, mut worker) = pair();
    let mut answered = link.call(call()).unwrap();
    let mut unheard = link.call(call()).unwrap();
    let mut answers = answer(1, answer::What::Result(v1::Outcome {}), b"result");
    answers.extend(answer(0, answer::What::Leave(v1::Leave::default()), b""));
    worker.write_all(&answers).unwrap();
    // All of it before the link can look.
    drop(worker);
    let mut late = link.call(call()).unwrap();
    assert_eq!(
        step(&mut answered).await,
        CallEvent::Result(Bytes::from_static(b"result"))
    );
    for call in [&mut unheard, &mut late] {
        let step = step(call).await;
        assert!(
            matches!(&step, CallEvent::Refused(error) if !error.may_have_begun),
            "{step:?}"
        );
    }
    assert!(link.lost().is_some());
}

#[tokio::test]
async fn large_arguments_of_a_call_that_is_dropped_are_let_go_of() {
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
        link.shared.outbox.waiting() < 4 << 20,
        "{}",
        link.shared.outbox.waiting()
    );
    drop(worker);
}

#[tokio::test]
async fn a_worker_that_sends_more_than_it_may_is_given_up() {
    let (link, mut worker) = pair();
    let (mut call, mut other) = (link.call(call()).unwrap(), link.call(call()).unwrap());
    let item = || answer(1, answer::What::Item(v1::Item {}), b"item");
    let as_many_as_it_may: Vec<u8> = (0..WINDOW).flat_map(|_| item()).collect();
    worker.write_all(&as_many_as_it_may).unwrap();
    assert!(matches!(step(&mut call).await, CallEvent::Item(_)));
    assert!(link.lost().is_none());
    let too_many: Vec<u8> = (0..WINDOW).flat_map(|_| item()).collect();
    worker.write_all(&too_many).unwrap();
    assert!(matches!(step(&mut other).await, CallEvent::Refused(error) if error.may_have_begun));
    assert!(link.lost().is_some());
}
