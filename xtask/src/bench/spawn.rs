//! `true` through a resident worker with two slots, against bare spawns at the same parallelism.

use std::time::{Duration, Instant};

use raddle_broker::{Broker, Submit};
use raddle_core::{Spec, State};

use crate::{
    Plan,
    bed::Bed,
    floor,
    stats::{Verdict, rate, ratio, show},
};

const SLOTS: usize = 2;

pub(crate) fn bench(plan: &Plan) -> Vec<Verdict> {
    let tasks = if plan.quick { 500 } else { 2000 };
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        bare.push(rate(tasks, floor::spawns(tasks, SLOTS)));
        ours.push(rate(tasks, through_worker(tasks)));
    }
    show("bare posix_spawn + wait of /bin/true, 2 at a time", "/s", &bare);
    show("durable submit + run of 'true', 2 slots", "/s", &ours);
    vec![Verdict::at_least("tasks through a worker, of bare spawns", ratio(&ours, &bare), 0.7)]
}

/// From the first submit to the last durable result, with a worker that is already waiting.
fn through_worker(tasks: usize) -> Duration {
    let bed = Bed::new();
    let broker = bed.broker();
    let worker = bed.worker(&["--concurrency", "2"]);
    let began = Instant::now();
    bed.wait(async {
        for _ in 0..tasks / 100 {
            let batch = (0..100).map(|_| Submit::new(Spec::command(["/bin/true"]))).collect();
            broker.submit(batch).await.expect("tasks can be submitted");
        }
        all_completed(&*broker, tasks as u64).await;
    });
    let took = began.elapsed();
    drop(worker);
    took
}

async fn all_completed(broker: &dyn Broker, tasks: u64) {
    let deadline = Instant::now() + Duration::from_secs(120);
    // Looking is not free on two cores, and what it costs is ours: once a hundredth of a second is enough.
    while broker.summary().await.expect("the broker answers").states.get(&State::Completed) != Some(&tasks) {
        assert!(Instant::now() < deadline, "the tasks are finished in time");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
