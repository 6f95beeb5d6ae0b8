//! What takes long, in time that is paused: leases, delays and the life of results.

use std::time::Duration;

use crate::{Leases, Queries};
use raddle_core::{
    CapSet, Exit, Report, Span, Spec, State, Tid,
    worker::{Beat, WorkerInfo},
};
use tokio::time::{Instant, advance};

use super::Memory;
use crate::{Claim, ClaimRequest, Fence, Finish, Messages, Pulse, Purged, Registry, Submit, Tasks};

const HOUR: Duration = Duration::from_secs(3600);

async fn worker(broker: &Memory, ttl: Duration) -> Tid {
    let info = WorkerInfo {
        queues: vec!["default".into()],
        concurrency: 1,
        pid: 1,
        host: "here".into(),
        ..WorkerInfo::new("worker", "resident")
    };
    broker.register(info, ttl).await.unwrap()
}

async fn submit(broker: &Memory, spec: Spec) -> Tid {
    broker.submit(vec![Submit::new(spec)]).await.unwrap()[0].tid()
}

async fn claim(broker: &Memory, owner: Tid, wait: Duration) -> Vec<Claim> {
    let queues = vec!["default".into()];
    broker.claim(ClaimRequest { owner, caps: CapSet::new(), queues, only: None, max: 10, wait }).await.unwrap()
}

async fn finish(broker: &Memory, fence: Fence) {
    let report = Report::bare(Exit::Code { code: 0 }, jiff::Timestamp::now());
    broker.finish(vec![Finish { fence, report, stdout: Vec::new(), stderr: Vec::new() }]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_holds_to_its_last_moment_and_no_longer() {
    let broker = Memory::new();
    let owner = worker(&broker, HOUR).await;
    submit(&broker, Spec::command(["true"])).await;
    assert_eq!(claim(&broker, owner, Duration::ZERO).await.len(), 1);
    advance(HOUR - Duration::from_millis(1)).await;
    assert!(broker.reclaim().await.unwrap().is_empty());
    advance(Duration::from_millis(1)).await;
    assert_eq!(broker.reclaim().await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn each_beat_begins_the_lease_anew() {
    let broker = Memory::new();
    let owner = worker(&broker, HOUR).await;
    let mut heart = broker.heart(owner, HOUR);
    for _ in 0..100 {
        advance(HOUR - Duration::from_secs(1)).await;
        assert_eq!(heart.beat(Beat::default()).unwrap(), Pulse::Alive(Vec::new()));
    }
    advance(HOUR).await;
    assert_eq!(heart.beat(Beat::default()).unwrap(), Pulse::Expired);
}

#[tokio::test(start_paused = true)]
async fn a_claim_sleeps_until_the_next_task_is_due() {
    let broker = Memory::new();
    let owner = worker(&broker, 100 * HOUR).await;
    let later = submit(&broker, Spec { delay: Some(Span(3 * HOUR)), ..Spec::command(["true"]) }).await;
    let sooner = submit(&broker, Spec { delay: Some(Span(HOUR)), ..Spec::command(["true"]) }).await;
    let began = Instant::now();
    for (tid, after) in [(sooner, HOUR), (later, 3 * HOUR)] {
        assert_eq!(claim(&broker, owner, 10 * HOUR).await[0].fence.tid, tid);
        assert!((after..after + Duration::from_secs(1)).contains(&began.elapsed()), "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn waits_end_when_they_are_over() {
    let broker = Memory::new();
    let owner = worker(&broker, 100 * HOUR).await;
    let began = Instant::now();
    assert!(claim(&broker, owner, HOUR).await.is_empty());
    assert!(broker.take("jobs".parse().unwrap(), 1, HOUR).await.unwrap().is_empty());
    assert!(broker.controls(owner, HOUR).await.unwrap().is_empty());
    assert!((3 * HOUR..3 * HOUR + Duration::from_secs(1)).contains(&began.elapsed()), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_result_is_kept_as_long_as_it_asked_to_be() {
    let broker = Memory::new();
    let owner = worker(&broker, 100 * HOUR).await;
    let tid = submit(&broker, Spec { result_ttl: Some(Span(HOUR)), ..Spec::command(["true"]) }).await;
    finish(&broker, claim(&broker, owner, Duration::ZERO).await[0].fence).await;
    advance(HOUR).await;
    assert_eq!(broker.purge().await.unwrap(), Purged { tasks: 0 });
    assert_eq!(broker.task(tid).await.unwrap().map(|task| task.state), Some(State::Completed));
    advance(Duration::from_millis(1)).await;
    assert_eq!(broker.purge().await.unwrap(), Purged { tasks: 1 });
}
