//! The queue alone: durable submits, and claim + finish without a process, against a bare table.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use raddle_broker::{Broker, ClaimRequest, Completion, CompletionOutcome, LeasedTask, NewTask};
use raddle_model::{
    AttemptReport, CapSet, ExitStatus, ResourceUsage, TaskSpec, TaskState, Tid, worker::WorkerInfo,
};

use crate::{
    Plan,
    floor::Inserts,
    project_dir::ProjectDir,
    stats::{Requirement, print_rounds, rate, ratio},
};

const GROUP: usize = 100;

pub(crate) fn bench_enqueue(plan: &Plan) -> Vec<Requirement> {
    let (mut single, mut grouped, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    let tasks = count(plan);
    for _ in 0..plan.rounds {
        let project = ProjectDir::new();
        let inserts = Inserts::new(project.path(), &payload());
        single.push(rate(200, inserts.insert(200, 1)));
        grouped.push(rate(tasks, inserts.insert(tasks, GROUP)));
        let broker = project.broker();
        ours.push(rate(tasks, enqueue(&project, &*broker, tasks)));
    }
    print_rounds("bare fsynced insert, one by one", "/s", &single);
    print_rounds("bare fsynced insert, groups of 100", "/s", &grouped);
    print_rounds("durable submit, groups of 100", "/s", &ours);
    vec![Requirement::at_least(
        "durable submit, of the grouped bare insert",
        ratio(&ours, &grouped),
        0.5,
    )]
}

pub(crate) fn bench_finish(plan: &Plan) -> Vec<Requirement> {
    let (mut grouped, mut ours) = (Vec::new(), Vec::new());
    let tasks = count(plan);
    for _ in 0..plan.rounds {
        let project = ProjectDir::new();
        grouped.push(rate(
            tasks,
            Inserts::new(project.path(), &payload()).insert(tasks, GROUP),
        ));
        let broker = project.broker();
        enqueue(&project, &*broker, tasks);
        let owner = project.wait(register(&*broker));
        let began = Instant::now();
        // Two at a time, as in a worker with two slots: one batch is processed while the other is
        // written.
        project.wait(async {
            tokio::join!(
                claim_and_finish_all(&*broker, owner),
                claim_and_finish_all(&*broker, owner)
            )
        });
        ours.push(rate(tasks, began.elapsed()));
    }
    print_rounds("bare fsynced insert, groups of 100", "/s", &grouped);
    print_rounds("claim + durable finish, groups of 100", "/s", &ours);
    vec![Requirement::at_least(
        "claim + finish, of the grouped bare insert",
        ratio(&ours, &grouped),
        0.3,
    )]
}

/// Claims and finishes until the queue is empty.
pub(crate) async fn claim_and_finish_all(broker: &dyn Broker, owner: Tid) {
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

/// A row as long as that of a small task in the broker's table.
pub(crate) fn payload() -> String {
    serde_json::to_string(&TaskSpec::command(["/bin/true"])).expect("a spec is JSON")
}

pub(crate) fn enqueue(project: &ProjectDir, broker: &dyn Broker, tasks: usize) -> Duration {
    let began = Instant::now();
    project.wait(async {
        for _ in 0..tasks / GROUP {
            let batch = (0..GROUP)
                .map(|_| NewTask::new(TaskSpec::command(["/bin/true"])))
                .collect();
            broker.submit(batch).await.expect("there is room");
        }
    });
    began.elapsed()
}

/// Registers a worker with a lease that outlasts the benchmark.
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
