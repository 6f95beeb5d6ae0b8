//! Callers that come together share a script, and each is told what it would have been told alone.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{FutureExt, future::join_all};
use raddle_broker::{Broker, Claim, ClaimRequest, Error, Fence, Finish, Result, Submit, Verdict};
use raddle_core::{Spec, State, Tid};

use super::{proxy::Proxy, redis_server::Server, support::*};

const DONE: [Verdict; 1] = [Verdict::Done(State::Completed)];
const LEASE: Duration = Duration::from_secs(60);

/// How many scripts a server has run.
fn scripts(server: &Server) -> u64 {
    let stats = server.ask(&["INFO", "commandstats"]);
    let calls = stats.split("cmdstat_evalsha:calls=").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok());
    calls.unwrap_or(0)
}

/// As many attempts, and a server that knows the scripts which end them.
async fn attempts(broker: &dyn Broker, number: u32) -> Vec<Fence> {
    let worker = broker.register(info(), LEASE).await.unwrap();
    broker.submit((0..=number).map(|_| task("one")).collect()).await.unwrap();
    let claims = broker.claim(request(worker, number + 1)).await.unwrap();
    let mut fences: Vec<Fence> = claims.iter().map(|claim| claim.fence).collect();
    broker.finish(vec![success(fences.remove(0))]).await.unwrap();
    fences
}

async fn finish_apart(broker: &dyn Broker, fences: &[Fence]) -> Vec<Result<Vec<Verdict>>> {
    end_apart(broker, fences.iter().map(|fence| success(*fence))).await
}

async fn end_apart(broker: &dyn Broker, ends: impl Iterator<Item = Finish>) -> Vec<Result<Vec<Verdict>>> {
    join_all(ends.map(|end| broker.finish(vec![end]))).await
}

async fn claim_now(broker: &dyn Broker, owner: Tid, queue: &str) -> Result<Vec<Claim>> {
    let request = ClaimRequest { queues: vec![queue.into()], wait: Duration::ZERO, ..request(owner, 1) };
    broker.claim(request).await
}

#[tokio::test]
async fn ends_of_many_callers_are_one_script() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let fences = attempts(&*broker, 40).await;
    let before = scripts(&server);
    let twice: Vec<Fence> = fences.iter().chain(&fences[..2]).copied().collect();
    let verdicts: Vec<_> = finish_apart(&*broker, &twice).await.into_iter().map(Result::unwrap).collect();
    assert!(verdicts[..40].iter().all(|verdict| verdict == &DONE), "{verdicts:?}");
    assert!(verdicts[40..].iter().all(|verdict| verdict == &[Verdict::Stale]), "what comes first counts");
    assert!(scripts(&server) - before <= 2, "they were {} scripts", scripts(&server) - before);
    let summary = broker.summary().await.unwrap();
    assert_eq!((summary.states, summary.stale_writes), ([(State::Completed, 41)].into(), 2));
}

#[tokio::test]
async fn workers_that_come_together_enter_and_claim_together() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let one = broker.register_own(info(), LEASE).await.unwrap();
    assert!(claim_now(&*broker, one, "default").await.unwrap().is_empty());
    let stored = broker.submit((0..15).map(|_| task("one")).collect()).await.unwrap();
    let before = scripts(&server);
    let entered = join_all((0..20).map(|_| broker.register_own(info(), LEASE))).await;
    let workers: Vec<Tid> = entered.into_iter().map(Result::unwrap).collect();
    assert_eq!(workers.iter().collect::<BTreeSet<_>>().len(), 20);
    let found = join_all(workers.iter().map(|worker| claim_now(&*broker, *worker, "default"))).await;
    assert!(scripts(&server) - before <= 4, "they were {} scripts", scripts(&server) - before);
    let found: Vec<Vec<Claim>> = found.into_iter().map(Result::unwrap).collect();
    let taken: Vec<Tid> = found.iter().flatten().map(|claim| claim.fence.tid).collect();
    assert_eq!(taken, stored.iter().map(|stored| stored.tid()).collect::<Vec<_>>(), "each once, in their order");
    assert_eq!(found.iter().filter(|claims| claims.is_empty()).count(), 5);
    for (worker, claim) in workers.iter().zip(found.iter().flatten()) {
        assert_eq!(broker.task(claim.fence.tid).await.unwrap().unwrap().worker, Some(*worker));
    }
}

/// One whose lease is over, and one that serves another queue.
#[tokio::test]
async fn each_of_those_that_claim_together_is_told_its_own() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(broker.register_own(info(), LEASE).await.unwrap());
    }
    broker.deregister(workers[1], None).await.unwrap();
    let elsewhere = Submit::new(Spec { queue: "other".into(), ..task("other").spec });
    let stored = broker.submit(vec![task("one"), task("two"), elsewhere]).await.unwrap();
    let queues = ["default", "default", "other", "default"];
    let found = join_all(workers.iter().zip(queues).map(|(worker, queue)| claim_now(&*broker, *worker, queue))).await;
    let tid = |at: usize| found[at].as_ref().unwrap()[0].fence.tid;
    assert_eq!([tid(0), tid(3), tid(2)], [0, 1, 2].map(|at: usize| stored[at].tid()));
    assert!(matches!(&found[1], Err(Error::NotFound(worker)) if *worker == workers[1]), "{:?}", found[1]);
}

#[tokio::test]
async fn an_end_that_cannot_be_written_fails_no_other() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let fences = attempts(&*broker, 5).await;
    let tid = fences[2].tid.to_string();
    let record = server.ask(&["HGET", "raddle:{x}:task", &tid]);
    // It ends with a unique key, which there is none, behind a blank.
    let record = format!("{} ", record.split("\r\n").nth(1).unwrap());
    server.ask(&["HSET", "raddle:{x}:task", &tid, "nonsense"]);
    for (at, verdict) in finish_apart(&*broker, &fences).await.into_iter().enumerate() {
        match verdict {
            Err(error) if at == 2 => assert!(error.to_string().contains("cannot be read"), "{error}"),
            verdict => assert_eq!(verdict.unwrap(), DONE, "{at}"),
        }
    }
    server.ask(&["HSET", "raddle:{x}:task", &tid, &record]);
    assert_eq!(broker.finish(vec![success(fences[2])]).await.unwrap(), DONE);
    assert_eq!(broker.summary().await.unwrap().stale_writes, 0, "none was sent twice");
}

/// One that cannot be read keeps those from being claimed that stand in line with it, and takes none of them away.
#[tokio::test]
async fn a_task_that_cannot_be_read_takes_no_other_out_of_its_line() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), LEASE).await.unwrap();
    let stored = broker.submit((0..3).map(|_| task("one")).collect()).await.unwrap();
    let tid = stored[1].tid().to_string();
    server.ask(&["HSET", "raddle:{x}:task", &tid, "nonsense"]);
    let error = broker.claim(request(worker, 3)).await.unwrap_err();
    assert!(error.to_string().contains("cannot be read"), "{error}");
    server.ask(&["HDEL", "raddle:{x}:task", &tid]);
    let claims = broker.claim(request(worker, 3)).await.unwrap();
    let claimed: Vec<Tid> = claims.iter().map(|claim| claim.fence.tid).collect();
    assert_eq!(claimed, stored.iter().map(|stored| stored.tid()).collect::<Vec<_>>());
}

/// Whose connection is lost hears what was recorded, whether the call is made again or was given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_found_by_each_who_waited_for_it() {
    let server = Server::start();
    let proxy = Proxy::to(server.port).await;
    let url = format!("redis://127.0.0.1:{}?namespace=x&give_up_after=300ms&max=100ms", proxy.port);
    let broker = open(&url).await.unwrap();
    let fences = attempts(&*broker, 10).await;
    proxy.cut_next_answer();
    for verdict in finish_apart(&*broker, &fences[..5]).await {
        assert_eq!(verdict.unwrap(), DONE);
    }
    assert!(proxy.has_cut());
    proxy.cut_all_after(0);
    let ends: Vec<Finish> = fences[5..].iter().map(|fence| success(*fence)).collect();
    for verdict in end_apart(&*broker, ends.iter().cloned()).await {
        assert!(matches!(verdict, Err(Error::Unreachable { .. })), "{verdict:?}");
    }
    proxy.mend();
    for verdict in end_apart(&*broker, ends.into_iter()).await {
        assert_eq!(verdict.unwrap(), DONE);
    }
    let summary = broker.summary().await.unwrap();
    assert_eq!((summary.states, summary.stale_writes), ([(State::Completed, 11)].into(), 0));
}

#[tokio::test]
async fn who_is_gone_before_its_turn_is_not_sent_and_keeps_nobody() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let fences = attempts(&*broker, 3).await;
    // Polled once, which is when it stands in line, and dropped.
    assert!(broker.finish(vec![success(fences[0])]).now_or_never().is_none());
    for verdict in finish_apart(&*broker, &fences[1..]).await {
        assert_eq!(verdict.unwrap(), DONE);
    }
    assert_eq!(broker.task(fences[0].tid).await.unwrap().unwrap().state, State::Spawning);
    assert_eq!(broker.finish(vec![success(fences[0])]).await.unwrap(), DONE);
}

/// Each has the patience that it was given, and not that of those before it as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_those_who_wait_for_a_server_that_is_away() {
    let server = Server::start();
    let broker: Arc<dyn Broker> = open(&format!("{}&give_up_after=2s&max=100ms", server.url("x"))).await.unwrap();
    let fences = attempts(&*broker, 2).await;
    server.kill();
    let ends = fences.into_iter().enumerate().map(|(at, fence)| {
        let broker = Arc::clone(&broker);
        async move {
            tokio::time::sleep(Duration::from_millis(50) * at as u32).await;
            let began = Instant::now();
            let error = broker.finish(vec![success(fence)]).await.unwrap_err();
            assert!(matches!(error, Error::Unreachable { .. }), "{error}");
            began.elapsed()
        }
    });
    for took in join_all(ends).await {
        assert!(took >= Duration::from_secs(2) && took < Duration::from_millis(3500), "{took:?}");
    }
}
