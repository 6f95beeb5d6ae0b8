//! Spawn requests to the root manager, against bare spawns: each is a message, a task, a forked
//! process, and the command.

use std::{
    process::Stdio,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use raddle_broker::{Broker, queues};
use raddle_model::{
    TaskState,
    queue_name::{QueueName, SystemQueue},
};

use crate::{
    Plan, floor,
    project_dir::{ProjectDir, Worker},
    redis::Server,
    stats::{Requirement, print_rounds, rate, ratio},
};

/// As many at a time as the machine has cores, for floor and root manager alike.
const PARALLEL: usize = 2;
/// Processes that are ready for the next request, and enough tasks that results are written in
/// batches.
const ROOT_MANAGER_ARGS: [&str; 6] = [
    "manager",
    "serve",
    "--warm-pool",
    "8",
    "--limits",
    "max_tasks=32",
];
const REQUEST: &str = r#"{"spec": {"target": {"command": ["/bin/true"]}}}"#;
/// The number of requests per write.
const GROUP: usize = 100;
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) fn bench(plan: &Plan) -> Vec<Requirement> {
    let tasks = if plan.quick { 500 } else { 2000 };
    let (mut bare, mut sqlite, mut redis) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        bare.push(rate(tasks, floor::spawns(tasks, PARALLEL)));
        let project = ProjectDir::new();
        sqlite.push(rate(
            tasks,
            run_through_root_manager(&project, &project.broker(), &[], tasks),
        ));
        let project = ProjectDir::new();
        let server = Server::start(&project);
        redis.push(rate(
            tasks,
            run_through_root_manager(
                &project,
                &server.broker(&project),
                &["--queue-url", &server.url()],
                tasks,
            ),
        ));
    }
    print_rounds(
        "bare posix_spawn + wait of /bin/true, 2 at a time",
        "/s",
        &bare,
    );
    print_rounds(
        "spawn requests for 'true' through the prime, SQLite",
        "/s",
        &sqlite,
    );
    print_rounds(
        "spawn requests for 'true' through the prime, Redis",
        "/s",
        &redis,
    );
    vec![
        Requirement::at_least(
            "spawn requests through the prime on SQLite, of bare spawns",
            ratio(&sqlite, &bare),
            0.5,
        ),
        Requirement::at_least(
            "spawn requests through the prime on Redis, of bare spawns",
            ratio(&redis, &bare),
            0.5,
        ),
    ]
}

/// From the first request to the last durable result, with a root manager that is already waiting.
fn run_through_root_manager(
    project: &ProjectDir,
    broker: &Arc<dyn Broker>,
    url: &[&str],
    tasks: usize,
) -> Duration {
    let root_manager = Worker::start(
        project
            .raddle(&[url, &ROOT_MANAGER_ARGS].concat())
            .stderr(Stdio::null()),
    );
    let requests = QueueName::System(SystemQueue::SpawnRequests);
    let began = Instant::now();
    project.wait(async {
        for _ in 0..tasks / GROUP {
            let written =
                queues::write(&**broker, &requests, vec![REQUEST.to_owned(); GROUP]).await;
            assert_eq!(written.expect("requests can be written").len(), GROUP);
        }
    });
    let completed = || {
        project
            .wait(broker.summary())
            .expect("the broker answers")
            .states
            .get(&TaskState::Completed)
            .copied()
    };
    while completed() < Some(tasks as u64) {
        assert!(began.elapsed() < TIMEOUT, "the tasks are finished in time");
        // Polled rarely enough to cost nothing.
        thread::sleep(Duration::from_millis(10));
    }
    let took = began.elapsed();
    drop(root_manager);
    took
}
