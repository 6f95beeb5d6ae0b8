//! A link whose worker is played by the test, to have it say and do things at a certain moment.

use std::{
    future::poll_fn,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    thread,
    time::Instant,
};

use raddle_wire::frame::{self, Decoder};

use super::*;

/// A link, and the end of its worker.
fn pair() -> (Link, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (Link::new(Socket::new(Raw::Unix(ours), None)).unwrap(), theirs)
}

fn call() -> v1::Call {
    v1::Call { routine: "any".into(), arguments: Bytes::from_static(b"arguments"), ..v1::Call::default() }
}

fn answer(id: u64, what: answer::What, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::put(&mut bytes, &v1::Answer { id, what: Some(what) }, body);
    bytes
}

async fn step(call: &mut LinkCall) -> Step {
    let step = poll_fn(|cx| call.poll_step(cx));
    tokio::time::timeout(Duration::from_secs(10), step).await.expect("it is told")
}

/// Answers every call with its own arguments, until there are no more.
fn echo(mut worker: UnixStream) {
    let (mut decoder, mut chunk) = (Decoder::default(), vec![0; 1 << 20]);
    while let Ok(read @ 1..) = worker.read(&mut chunk) {
        let mut answers = Vec::new();
        let each = |Frame { head, body }| {
            let v1::Request { id, what } = v1::Request::decode(head).unwrap();
            if matches!(what, Some(request::What::Call(_))) {
                answers.extend(answer(id, answer::What::Result(v1::Outcome {}), &body));
            }
        };
        decoder.take(&chunk[..read], each).unwrap();
        worker.write_all(&answers).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_blocks_a_thread_after_a_call_holds_up_no_other() {
    let (link, worker) = pair();
    let link = Arc::new(link);
    let answering = thread::spawn(|| echo(worker));
    let (begun, has_begun) = std::sync::mpsc::channel();
    let theirs = Arc::clone(&link);
    let blocking = tokio::spawn(async move {
        let calls: Vec<_> = (0..4).map(|_| theirs.call(call()).unwrap()).collect();
        begun.send(()).unwrap();
        thread::sleep(Duration::from_secs(3));
        drop(calls);
    });
    has_begun.recv_timeout(Duration::from_secs(5)).unwrap();
    let began = Instant::now();
    thread::sleep(Duration::from_millis(50));
    let mut other = link.call(call()).unwrap();
    assert_eq!(step(&mut other).await, Step::Result(Bytes::from_static(b"arguments")));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    blocking.await.unwrap();
    drop((other, link));
    tokio::task::spawn_blocking(|| answering.join().unwrap()).await.unwrap();
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
    assert_eq!(step(&mut answered).await, Step::Result(Bytes::from_static(b"result")));
    for call in [&mut unheard, &mut late] {
        let step = step(call).await;
        assert!(matches!(&step, Step::Refused(error) if !error.may_have_begun), "{step:?}");
    }
    assert!(!link.is_open());
}

#[tokio::test]
async fn large_arguments_of_a_call_that_is_dropped_are_let_go_of() {
    let (link, worker) = pair();
    let body = Bytes::from(vec![7; 1 << 20]);
    let large = || v1::Call { arguments: body.clone(), ..call() };
    let _first = link.call(large()).unwrap();
    for _ in 0..100 {
        drop(link.call(large()).unwrap());
    }
    tokio::task::yield_now().await;
    assert!(link.shared.outbox.waiting() < 4 << 20, "{}", link.shared.outbox.waiting());
    drop(worker);
}

#[tokio::test]
async fn a_worker_that_sends_more_than_it_may_is_given_up() {
    let (link, mut worker) = pair();
    let (mut call, mut other) = (link.call(call()).unwrap(), link.call(call()).unwrap());
    let item = || answer(1, answer::What::Item(v1::Item {}), b"item");
    let as_many_as_it_may: Vec<u8> = (0..WINDOW).flat_map(|_| item()).collect();
    worker.write_all(&as_many_as_it_may).unwrap();
    assert!(matches!(step(&mut call).await, Step::Item(_)));
    assert!(link.is_open());
    let too_many: Vec<u8> = (0..WINDOW).flat_map(|_| item()).collect();
    worker.write_all(&too_many).unwrap();
    assert!(matches!(step(&mut other).await, Step::Refused(error) if error.may_have_begun));
    assert!(!link.is_open());
}
