//! How late a due time is: from the moment itself to the moment that a worker has the task, while the one that fires it has other things to do.

use std::{
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use raddle_broker::{Broker, ClaimRequest, Submit};
use raddle_core::Spec;

use crate::{
    Plan,
    bed::{Bed, Worker},
    queue::{finish, register, request},
    redis::Server,
    stats::{Verdict, median, show},
};

/// So often the schedule is due.
const EVERY: &str = "25ms";
/// Due times that are measured in each round.
const DUE: usize = 400;
/// Tasks that are submitted with each pause of the load: more than the worker gets done.
const LOAD: usize = 100;
const LOAD_PAUSE: Duration = Duration::from_millis(100);
/// No round takes so long, unless nothing is fired.
const PATIENCE: Duration = Duration::from_secs(120);
const QUEUE: &str = "ticks";

pub(crate) fn bench(plan: &Plan) -> Vec<Verdict> {
    let due = if plan.quick { DUE / 4 } else { DUE };
    let on_sqlite: Vec<f64> = (0..plan.rounds)
        .map(|_| {
            let bed = Bed::new();
            lateness(&bed, bed.broker(), &[], due)
        })
        .collect();
    let on_redis: Vec<f64> = (0..plan.rounds)
        .map(|_| {
            let bed = Bed::new();
            let server = Server::start(&bed);
            lateness(&bed, server.broker(&bed), &["--queue-url", &server.url()], due)
        })
        .collect();
    show("a due time is late, under load, SQLite, p99", "ms", &on_sqlite);
    show("a due time is late, under load, Redis, p99", "ms", &on_redis);
    vec![
        Verdict::at_most("sqlite: ms from a due time to a worker, under load, p99", median(&on_sqlite), 50.0),
        Verdict::at_most("redis: ms from a due time to a worker, under load, p99", median(&on_redis), 50.0),
    ]
}

/// A resident worker with both slots busy all the time is the only one that fires; a worker of our own waits for what is fired.
fn lateness(bed: &Bed, broker: Arc<dyn Broker>, url: &[&str], due: usize) -> f64 {
    let mut start = bed.raddle(&[url, &["worker", "start", "--no-detach", "--concurrency", "2"]].concat());
    let worker = Worker::start(start.stderr(Stdio::null()));
    let add = [url, &["schedule", "add", "tick", "--every", EVERY, "--missed", "all", "--queue", QUEUE, "--", "true"]];
    let added = bed.raddle(&add.concat()).stderr(Stdio::null()).status().expect("the release binary starts");
    assert!(added.success());
    let late = Mutex::new(Vec::with_capacity(due));
    let ticks = async {
        let owner = register(&*broker).await;
        let wanted = ClaimRequest { queues: vec![QUEUE.into()], wait: PATIENCE, ..request(owner, 1) };
        while late.lock().unwrap_or_else(PoisonError::into_inner).len() < due {
            let claims = broker.claim(wanted.clone()).await.expect("the broker answers");
            let now = Timestamp::now();
            for claim in &claims {
                let due: Timestamp =
                    claim.spec.metadata["due"].as_str().and_then(|due| due.parse().ok()).expect("it was due");
                late.lock().unwrap_or_else(PoisonError::into_inner).push(now.duration_since(due).as_secs_f64() * 1e3);
            }
            broker.finish(claims.iter().map(finish).collect()).await.expect("they are ours");
        }
    };
    let load = async {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let batch = (0..LOAD).map(|_| Submit::new(Spec::command(["/bin/true"]))).collect();
            broker.submit(batch).await.expect("there is room");
            tokio::time::sleep(LOAD_PAUSE).await;
        }
        panic!("{} of {due} due times came", late.lock().unwrap_or_else(PoisonError::into_inner).len());
    };
    bed.wait(async {
        tokio::select! {
            () = ticks => {}
            () = load => {}
        }
    });
    worker.kill();
    let mut late = late.into_inner().unwrap_or_else(PoisonError::into_inner);
    late.sort_by(f64::total_cmp);
    let at = |share: f64| late[((late.len() as f64 * share) as usize).min(late.len() - 1)];
    println!("  p50 {:.1} ms, p99 {:.1} ms, at most {:.1} ms", at(0.5), at(0.99), at(1.0));
    at(0.99)
}
