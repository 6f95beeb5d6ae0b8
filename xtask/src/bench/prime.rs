//! Spawn requests through the prime, against bare spawns of what they ask for: each is a message, a task, a process forked for it, and the command.

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
    Plan,
    bed::{Bed, Worker},
    floor,
    redis::Server,
    stats::{Verdict, rate, ratio, show},
};

/// As many at a time as the machine has cores, for floor and prime alike.
const PARALLEL: usize = 2;
/// Processes that are ready for what is asked next, and as many tasks as it takes to have results written together.
const PRIME: [&str; 6] = [
    "manager",
    "serve",
    "--warm-pool",
    "8",
    "--limits",
    "max_tasks=32",
];
const REQUEST: &str = r#"{"spec": {"target": {"command": ["/bin/true"]}}}"#;
/// Requests that are written at once.
const GROUP: usize = 100;
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn bench(plan: &Plan) -> Vec<Verdict> {
    let tasks = if plan.quick { 500 } else { 2000 };
    let (mut bare, mut sqlite, mut redis) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        bare.push(rate(tasks, floor::spawns(tasks, PARALLEL)));
        let bed = Bed::new();
        sqlite.push(rate(tasks, through_prime(&bed, &bed.broker(), &[], tasks)));
        let bed = Bed::new();
        let server = Server::start(&bed);
        redis.push(rate(
            tasks,
            through_prime(
                &bed,
                &server.broker(&bed),
                &["--queue-url", &server.url()],
                tasks,
            ),
        ));
    }
    show(
        "bare posix_spawn + wait of /bin/true, 2 at a time",
        "/s",
        &bare,
    );
    show(
        "spawn requests for 'true' through the prime, SQLite",
        "/s",
        &sqlite,
    );
    show(
        "spawn requests for 'true' through the prime, Redis",
        "/s",
        &redis,
    );
    vec![
        Verdict::at_least(
            "spawn requests through the prime on SQLite, of bare spawns",
            ratio(&sqlite, &bare),
            0.5,
        ),
        Verdict::at_least(
            "spawn requests through the prime on Redis, of bare spawns",
            ratio(&redis, &bare),
            0.5,
        ),
    ]
}

/// From the first request that is written to the last durable result, with a prime that is already waiting.
fn through_prime(bed: &Bed, broker: &Arc<dyn Broker>, url: &[&str], tasks: usize) -> Duration {
    let prime = Worker::start(bed.raddle(&[url, &PRIME].concat()).stderr(Stdio::null()));
    let requests = QueueName::System(SystemQueue::SpawnRequests);
    let began = Instant::now();
    bed.wait(async {
        for _ in 0..tasks / GROUP {
            let written =
                queues::write(&**broker, &requests, vec![REQUEST.to_owned(); GROUP]).await;
            assert_eq!(written.expect("requests can be written").len(), GROUP);
        }
    });
    let completed = || {
        bed.wait(broker.summary())
            .expect("the broker answers")
            .states
            .get(&TaskState::Completed)
            .copied()
    };
    while completed() < Some(tasks as u64) {
        assert!(
            began.elapsed() < PATIENCE,
            "what was asked for is done in time"
        );
        // Seldom enough that the looks cost nothing.
        thread::sleep(Duration::from_millis(10));
    }
    let took = began.elapsed();
    drop(prime);
    took
}
