//! Tasks that are handed to a worker that waits, and what may come between.

use std::{sync::Arc, time::Duration};

use raddle_broker::{Broker, Claim, ClaimRequest, Verdict};
use raddle_core::{State, Tid};
use tokio::task::JoinHandle;

use super::{
    proxy::Proxy,
    redis_server::{Server, until},
    support::*,
};

/// A worker that waits: its claim is under way when this returns.
async fn waits(server: &Server, broker: &Arc<dyn Broker>, owner: Tid) -> JoinHandle<Vec<Claim>> {
    let waiter = Arc::clone(broker);
    let waiting = tokio::spawn(async move { waiter.claim(request(owner, 1)).await.unwrap() });
    let deadline = tokio::time::Instant::now() + SOON;
    while !server.ask(&["HGET", "raddle:{x}:idle", &owner.to_string()]).contains("raddle:{x}:hand:") {
        assert!(tokio::time::Instant::now() < deadline, "it waits, and can be reached");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    waiting
}

/// What stands for a worker that waits, as the scripts keep it: channel, queues, capabilities.
fn waiting_at(channel: &str) -> String {
    format!("{channel} \ndefault\n \n")
}

fn record(server: &Server, tid: Tid) -> String {
    server.ask(&["HGET", "raddle:{x}:task", &tid.to_string()])
}

/// The first task of a partition is not handed over: with it the partition is made, which workers look for when they have to be woken.
async fn open_partition(server: &Server, broker: &Arc<dyn Broker>, worker: Tid) {
    let waiting = waits(server, broker, worker).await;
    let tid = broker.submit(vec![task("first")]).await.unwrap()[0].tid();
    let claims = waiting.await.unwrap();
    assert_eq!(claims[0].fence.tid, tid);
    assert!(!record(server, tid).contains(" h "), "{}", record(server, tid));
    assert!(server.ask(&["SMEMBERS", "raddle:{x}:parts"]).contains("5|default|"));
    broker.finish(vec![success(claims[0].fence)]).await.unwrap();
    server.ask(&["XTRIM", "raddle:{x}:ready:5|default|", "MAXLEN", "0"]);
}

/// It is the worker's with the submission, and never stood in line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_comes_alone_is_handed_over() {
    let server = Server::start();
    let (submitter, broker) = (open(&server.url("x")).await.unwrap(), open(&server.url("x")).await.unwrap());
    let worker = broker.register(info(), SOON).await.unwrap();
    open_partition(&server, &broker, worker).await;
    for _ in 0..3 {
        let waiting = waits(&server, &broker, worker).await;
        let tid = submitter.submit(vec![task("alone")]).await.unwrap()[0].tid();
        assert!(record(&server, tid).contains(" h "), "claimed by the submission: {}", record(&server, tid));
        let claims = waiting.await.unwrap();
        assert_eq!((claims.len(), claims[0].fence.tid, claims[0].fence.attempt), (1, tid, 1));
        assert_eq!(broker.finish(vec![success(claims[0].fence)]).await.unwrap(), [Verdict::Done(State::Completed)]);
    }
    assert_eq!(server.ask(&["XLEN", "raddle:{x}:ready:5|default|"]).trim(), ":0", "nobody had to be woken");
    assert!(server.ask(&["ZRANGE", "raddle:{x}:line", "0", "-1"]).starts_with("*0"), "none stood in line");
}

/// The server has sent it, and it has not arrived: the next look brings it, as the same attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_message_is_lost_is_found() {
    let server = Server::start();
    let proxy = Proxy::to(server.port).await;
    let url = format!("redis://127.0.0.1:{}/0?namespace=x&volatile=yes", proxy.port);
    let (submitter, broker) = (open(&server.url("x")).await.unwrap(), open(&url).await.unwrap());
    let worker = broker.register(info(), SOON).await.unwrap();
    open_partition(&server, &broker, worker).await;
    let waiting = waits(&server, &broker, worker).await;
    // Until it blocks: what it was woken by itself for has been looked for.
    tokio::time::sleep(Duration::from_millis(100)).await;
    proxy.cut_next_answer();
    let tid = submitter.submit(vec![task("lost on the way")]).await.unwrap()[0].tid();
    assert!(record(&server, tid).contains(" h "), "handed over: {}", record(&server, tid));
    // The server sends it by itself, and it is on its way when the submitter has its answer.
    until("the message is cut off", || proxy.has_cut());
    let claims = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert_eq!((claims.len(), claims[0].fence.tid, claims[0].fence.attempt), (1, tid, 1));
    assert_eq!(broker.finish(vec![success(claims[0].fence)]).await.unwrap(), [Verdict::Done(State::Completed)]);
}

/// Nobody listens for it, so it goes to one that can be reached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_died_while_it_waited_is_handed_nothing() {
    let server = Server::start();
    let submitter = open(&server.url("x")).await.unwrap();
    let worker = submitter.register(info(), SOON).await.unwrap();
    server.ask(&["HSET", "raddle:{x}:idle", &worker.to_string(), &waiting_at("raddle:{x}:hand:7")]);
    let tid = submitter.submit(vec![task("for the living")]).await.unwrap()[0].tid();
    let other = submitter.register(info(), SOON).await.unwrap();
    let claims = submitter.claim(request(other, 1)).await.unwrap();
    assert_eq!(claims[0].fence.tid, tid);
    assert_eq!(claims[0].fence.attempt, 1);
}

/// Whoever has stopped waiting is not thought of any more, and what was on its way to him comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_waits_no_more_is_handed_nothing() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    let short = ClaimRequest { wait: Duration::from_millis(50), ..request(worker, 1) };
    assert!(broker.claim(short).await.unwrap().is_empty());
    assert_eq!(server.ask(&["HLEN", "raddle:{x}:idle"]).trim(), ":0");
    let waiting = waits(&server, &broker, worker).await;
    waiting.abort();
    let tid = broker.submit(vec![task("one")]).await.unwrap()[0].tid();
    let other = broker.register(info(), SOON).await.unwrap();
    let claims = tokio::time::timeout(SOON, broker.claim(request(other, 1))).await.unwrap().unwrap();
    assert_eq!(claims[0].fence.tid, tid);
}

/// What came before is before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_not_handed_past_those_that_stand_in_line() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    // Woken, and not yet there: it cannot be told from one that waits.
    let reachable = waits(&server, &broker, worker).await;
    let entry = server.ask(&["HGET", "raddle:{x}:idle", &worker.to_string()]);
    reachable.abort();
    let before = broker.submit(vec![task("first"), task("second")]).await.unwrap();
    let channel = entry.lines().nth(1).unwrap().trim_end();
    server.ask(&["HSET", "raddle:{x}:idle", &worker.to_string(), &waiting_at(channel)]);
    let tid = broker.submit(vec![task("third")]).await.unwrap()[0].tid();
    assert!(!record(&server, tid).contains(" h "), "{}", record(&server, tid));
    let claims = broker.claim(request(worker, 3)).await.unwrap();
    let tids: Vec<Tid> = claims.iter().map(|claim| claim.fence.tid).collect();
    assert_eq!(tids, [before[0].tid(), before[1].tid(), tid]);
}

/// Carried out, and the answer lost: sent again, it is not carried out again. With scripts that the server has forgotten, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_whose_answer_is_lost_happens_once() {
    let server = Server::start();
    let proxy = Proxy::to(server.port).await;
    let submitter = open(&format!("redis://127.0.0.1:{}?namespace=x", proxy.port)).await.unwrap();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    open_partition(&server, &broker, worker).await;
    for flushed in [false, true, false] {
        let waiting = waits(&server, &broker, worker).await;
        if flushed {
            server.ask(&["SCRIPT", "FLUSH"]);
        } else {
            proxy.cut_next_answer();
        }
        let tid = submitter.submit(vec![task("alone")]).await.unwrap()[0].tid();
        assert!(proxy.has_cut());
        let claims = waiting.await.unwrap();
        assert_eq!((claims.len(), claims[0].fence.tid, claims[0].fence.attempt), (1, tid, 1));
        broker.finish(vec![success(claims[0].fence)]).await.unwrap();
    }
    assert_eq!(broker.summary().await.unwrap().states, [(State::Completed, 4)].into());
}

/// The word that goes ahead of it is not the submission, and what is said to it is no answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_may_not_ping_may_submit() {
    let server = Server::start();
    server.ask(&["ACL", "SETUSER", "me", "on", ">geheim", "~*", "&*", "+@all", "-ping"]);
    let submitter = open(&format!("redis://me:geheim@127.0.0.1:{}?namespace=x", server.port)).await.unwrap();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    open_partition(&server, &broker, worker).await;
    let waiting = waits(&server, &broker, worker).await;
    let tid = submitter.submit(vec![task("alone")]).await.unwrap()[0].tid();
    assert!(record(&server, tid).contains(" h "), "{}", record(&server, tid));
    assert_eq!(waiting.await.unwrap()[0].fence.tid, tid);
}
