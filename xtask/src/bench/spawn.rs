//! `true` through a resident worker with two slots, against bare spawns at the same parallelism.

use std::time::{Duration, Instant};

use raddle_broker::{Broker, NewTask, TaskCursor};
use raddle_model::{TaskSpec, TaskState, Tid};

use crate::{
    Plan, floor,
    project_dir::ProjectDir,
    stats::{Requirement, print_rounds, rate, ratio},
};

const SLOTS: usize = 2;

pub(crate) fn bench(plan: &Plan) -> Vec<Requirement> {
    let tasks = if plan.quick { 500 } else { 2000 };
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        bare.push(rate(tasks, floor::spawns(tasks, SLOTS)));
        ours.push(rate(tasks, through_worker(tasks)));
    }
    print_rounds(
        "bare posix_spawn + wait of /bin/true, 2 at a time",
        "/s",
        &bare,
    );
    print_rounds("durable submit + run of 'true', 2 slots", "/s", &ours);
    vec![Requirement::at_least(
        "tasks through a worker, of bare spawns",
        ratio(&ours, &bare),
        0.6,
    )]
}

/// From the first submit to the last durable result, with a worker that is already waiting.
fn through_worker(tasks: usize) -> Duration {
    let project = ProjectDir::new();
    let broker = project.broker();
    let worker = project.worker(&["--concurrency", "2"]);
    let began = Instant::now();
    project.wait(async {
        let mut last = None;
        for _ in 0..tasks / 100 {
            let batch = (0..100)
                .map(|_| NewTask::new(TaskSpec::command(["/bin/true"])))
                .collect();
            last = broker
                .submit(batch)
                .await
                .expect("tasks can be submitted")
                .pop();
        }
        all_completed(&*broker, last.expect("there are tasks").tid(), tasks as u64).await;
    });
    let took = began.elapsed();
    drop(worker);
    took
}

/// Waits for the last task, then for tasks that the last one overtook.
async fn all_completed(broker: &dyn Broker, last: Tid, tasks: u64) {
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut cursor = TaskCursor::default();
    loop {
        // Polling would compete with the worker for two cores: one wait for one task costs next to
        // nothing.
        let progress = broker
            .follow(last, cursor, Duration::from_secs(120))
            .await
            .expect("the broker answers");
        if progress.done.is_some() {
            break;
        }
        cursor = progress.cursor;
    }
    while broker
        .summary()
        .await
        .expect("the broker answers")
        .states
        .get(&TaskState::Completed)
        != Some(&tasks)
    {
        assert!(Instant::now() < deadline, "the tasks are finished in time");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
