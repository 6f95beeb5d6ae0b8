//! How late a due time is: from the moment itself to the moment that a worker has the task, while the one that fires it has other things to do. And whether
//! each is run once when ten managers could fire it.

use std::{
    collections::BTreeMap,
    fs,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use raddle_broker::{Broker, ClaimRequest, NewTask, TaskFilter};
use raddle_model::{TaskSpec, TaskState, schedule::DUE_KEY};

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
/// Due times that ten managers could all fire.
const MANY: usize = 1000;
const MANAGERS: usize = 10;
const TRIGGER: Duration = Duration::from_millis(20);
const GROUP: &str = "[process.a]\n[[process.a.worker]]\nslug = 'a'\ncommand = ['/bin/true']\ntrigger = { every = '20ms', missed = 'all' }\n";

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
            lateness(
                &bed,
                server.broker(&bed),
                &["--queue-url", &server.url()],
                due,
            )
        })
        .collect();
    let many = if plan.quick { MANY / 10 } else { MANY };
    let sqlite_wrong = {
        let bed = Bed::new();
        not_once(&bed, bed.broker(), &[], many)
    };
    let redis_wrong = {
        let bed = Bed::new();
        let server = Server::start(&bed);
        not_once(
            &bed,
            server.broker(&bed),
            &["--queue-url", &server.url()],
            many,
        )
    };
    show(
        "a due time is late, under load, SQLite, p99",
        "ms",
        &on_sqlite,
    );
    show(
        "a due time is late, under load, Redis, p99",
        "ms",
        &on_redis,
    );
    vec![
        Verdict::at_most(
            "sqlite: ms from a due time to a worker, under load, p99",
            median(&on_sqlite),
            50.0,
        ),
        Verdict::at_most(
            "redis: ms from a due time to a worker, under load, p99",
            median(&on_redis),
            50.0,
        ),
        Verdict::at_most(
            "sqlite: of 1,000 due times of 10 managers, not run once",
            sqlite_wrong as f64,
            0.0,
        ),
        Verdict::at_most(
            "redis: of 1,000 due times of 10 managers, not run once",
            redis_wrong as f64,
            0.0,
        ),
    ]
}

/// A resident worker with both slots busy all the time is the only one that fires; a worker of our own waits for what is fired.
fn lateness(bed: &Bed, broker: Arc<dyn Broker>, url: &[&str], due: usize) -> f64 {
    let mut start = bed.raddle(
        &[
            url,
            &["worker", "start", "--no-detach", "--concurrency", "2"],
        ]
        .concat(),
    );
    let worker = Worker::start(start.stderr(Stdio::null()));
    let add = [
        url,
        &[
            "schedule", "add", "tick", "--every", EVERY, "--missed", "all", "--queue", QUEUE, "--",
            "true",
        ],
    ];
    let added = bed
        .raddle(&add.concat())
        .stderr(Stdio::null())
        .status()
        .expect("the release binary starts");
    assert!(added.success());
    let late = Mutex::new(Vec::with_capacity(due));
    let ticks = async {
        let owner = register(&*broker).await;
        let wanted = ClaimRequest {
            queues: vec![QUEUE.into()],
            wait: PATIENCE,
            ..request(owner, 1)
        };
        while late.lock().unwrap_or_else(PoisonError::into_inner).len() < due {
            let claims = broker
                .claim(wanted.clone())
                .await
                .expect("the broker answers");
            let now = Timestamp::now();
            for claim in &claims {
                let due: Timestamp = claim.spec.metadata["due"]
                    .as_str()
                    .and_then(|due| due.parse().ok())
                    .expect("it was due");
                late.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(now.duration_since(due).as_secs_f64() * 1e3);
            }
            broker
                .complete(claims.iter().map(finish).collect())
                .await
                .expect("they are ours");
        }
    };
    let load = async {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let batch = (0..LOAD)
                .map(|_| NewTask::new(TaskSpec::command(["/bin/true"])))
                .collect();
            broker.submit(batch).await.expect("there is room");
            tokio::time::sleep(LOAD_PAUSE).await;
        }
        panic!(
            "{} of {due} due times came",
            late.lock().unwrap_or_else(PoisonError::into_inner).len()
        );
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
    println!(
        "  p50 {:.1} ms, p99 {:.1} ms, at most {:.1} ms",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    at(0.99)
}

/// Ten managers have the same group with a trigger. Of the first so many due times, how many were not run, or run more than once.
fn not_once(bed: &Bed, broker: Arc<dyn Broker>, url: &[&str], due: usize) -> usize {
    fs::write(bed.path().join("raddle.toml"), GROUP).expect("the directory can be written");
    // Of one name, all but one would wait.
    let up = |number: usize| {
        let name = format!("group-{number}");
        Worker::start(
            bed.raddle(&[url, &["up", "--name", &name]].concat())
                .stderr(Stdio::null()),
        )
    };
    let managers: Vec<Worker> = (0..MANAGERS).map(up).collect();
    let fired = || {
        let filter = TaskFilter {
            queue: Some("a".into()),
            limit: u32::MAX,
            ..TaskFilter::default()
        };
        bed.wait(broker.tasks(filter)).expect("the broker answers")
    };
    let began = Instant::now();
    let patience = || {
        assert!(
            began.elapsed() < PATIENCE,
            "{} of {due} due times came",
            fired().len()
        )
    };
    // Seldom enough that the looks cost nothing.
    while fired().len() < due {
        patience();
        thread::sleep(TRIGGER * 25);
    }
    let paused = bed
        .raddle(&[url, &["schedule", "pause", "a"]].concat())
        .stderr(Stdio::null())
        .status();
    assert!(paused.expect("the release binary starts").success());
    while fired().iter().any(|task| !task.state.is_terminal()) {
        patience();
        thread::sleep(TRIGGER * 25);
    }
    let tasks = fired();
    managers.into_iter().for_each(Worker::kill);
    let mut runs: BTreeMap<Timestamp, usize> = BTreeMap::new();
    for task in &tasks {
        let at = task.spec.metadata[DUE_KEY]
            .as_str()
            .and_then(|due| due.parse().ok())
            .expect("it was due");
        *runs.entry(at).or_default() +=
            usize::from(task.state == TaskState::Completed && task.attempt == 1);
    }
    let first = *runs.first_key_value().expect("some were due").0;
    let wrong = (0..due as u32)
        .filter(|n| runs.get(&(first + TRIGGER * *n)) != Some(&1))
        .count();
    println!(
        "{MANAGERS} managers, {due} due times: {} tasks, {wrong} due times that were not run once",
        tasks.len()
    );
    wrong
}
