//! The queue alone: durable submits, and claim + finish without a process, against a bare table.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use raddle_broker::{Broker, ClaimRequest, Completion, CompletionOutcome, LeasedTask, NewTask};
use raddle_model::{
    AttemptReport, CapSet, ExitStatus, ResourceUsage, TaskSpec, TaskState, Tid, worker::WorkerInfo,
};

use crate::{
    Plan,
    bed::Bed,
    floor::Inserts,
    stats::{Verdict, rate, ratio, show},
};

const GROUP: usize = 100;

pub(crate) fn bench_enqueue(plan: &Plan) -> Vec<Verdict> {
    let (mut single, mut grouped, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    let tasks = count(plan);
    for _ in 0..plan.rounds {
        let bed = Bed::new();
        let inserts = Inserts::new(bed.path(), &payload());
        single.push(rate(200, inserts.insert(200, 1)));
        grouped.push(rate(tasks, inserts.insert(tasks, GROUP)));
        let broker = bed.broker();
        ours.push(rate(tasks, enqueue(&bed, &*broker, tasks)));
    }
    show("bare fsynced insert, one by one", "/s", &single);
    show("bare fsynced insert, groups of 100", "/s", &grouped);
    show("durable submit, groups of 100", "/s", &ours);
    vec![Verdict::at_least(
        "durable submit, of the grouped bare insert",
        ratio(&ours, &grouped),
        0.5,
    )]
}

pub(crate) fn bench_finish(plan: &Plan) -> Vec<Verdict> {
    let (mut grouped, mut ours) = (Vec::new(), Vec::new());
    let tasks = count(plan);
    for _ in 0..plan.rounds {
        let bed = Bed::new();
        grouped.push(rate(
            tasks,
            Inserts::new(bed.path(), &payload()).insert(tasks, GROUP),
        ));
        let broker = bed.broker();
        enqueue(&bed, &*broker, tasks);
        let owner = bed.wait(register(&*broker));
        let began = Instant::now();
        // Two at a time, as a worker with two slots: while one batch is being written the next is worked on.
        bed.wait(async { tokio::join!(work_off(&*broker, owner), work_off(&*broker, owner)) });
        ours.push(rate(tasks, began.elapsed()));
    }
    show("bare fsynced insert, groups of 100", "/s", &grouped);
    show("claim + durable finish, groups of 100", "/s", &ours);
    vec![Verdict::at_least(
        "claim + finish, of the grouped bare insert",
        ratio(&ours, &grouped),
        0.3,
    )]
}

/// Claims and finishes until nothing is left.
pub(crate) async fn work_off(broker: &dyn Broker, owner: Tid) {
    let mut claims = Vec::new();
    loop {
        // The next tasks are claimed while the last are being finished.
        let (next, outcomes) = tokio::join!(
            broker.claim(request(owner, GROUP as u32)),
            broker.complete(claims.iter().map(finish).collect()),
        );
        let outcomes = outcomes.expect("they are ours");
        assert_eq!(outcomes.len(), claims.len());
        assert!(
            outcomes
                .iter()
                .all(|outcome| *outcome == CompletionOutcome::Finished(TaskState::Completed))
        );
        claims = next.expect("the broker answers");
        if claims.is_empty() {
            return;
        }
    }
}

fn count(plan: &Plan) -> usize {
    if plan.quick { 2_000 } else { 20_000 }
}

/// As long as the text of a small task is in the broker's own table.
pub(crate) fn payload() -> String {
    serde_json::to_string(&TaskSpec::command(["/bin/true"])).expect("a spec is JSON")
}

pub(crate) fn enqueue(bed: &Bed, broker: &dyn Broker, tasks: usize) -> Duration {
    let began = Instant::now();
    bed.wait(async {
        for _ in 0..tasks / GROUP {
            let batch = (0..GROUP)
                .map(|_| NewTask::new(TaskSpec::command(["/bin/true"])))
                .collect();
            broker.submit(batch).await.expect("there is room");
        }
    });
    began.elapsed()
}

/// A worker that will not be missed before the benchmark is over.
pub(crate) async fn register(broker: &dyn Broker) -> Tid {
    let info = WorkerInfo {
        queues: vec!["default".into()],
        concurrency: 1,
        pid: std::process::id(),
        host: "bench".into(),
        ..WorkerInfo::new("bench", "bench")
    };
    broker
        .register(info, Duration::from_secs(3600))
        .await
        .expect("a worker can register")
}

pub(crate) fn request(owner: Tid, max: u32) -> ClaimRequest {
    let queues = vec!["default".into()];
    ClaimRequest {
        owner,
        caps: CapSet::new(),
        queues,
        only: None,
        max,
        wait: Duration::ZERO,
    }
}

pub(crate) fn finish(claim: &LeasedTask) -> Completion {
    let now = Timestamp::now();
    let report = AttemptReport {
        exit: ExitStatus::Code { code: 0 },
        started_at: Some(now),
        ended_at: now,
        usage: ResourceUsage::default(),
        stdout_bytes: 0,
        stderr_bytes: 0,
        value: None,
    };
    Completion {
        attempt_id: claim.attempt_id,
        report,
        stdout: Vec::new(),
        stderr: Vec::new(),
    }
}
