//! Schedules: the delay from a due time to the claim of its task while the worker that fires it is
//! busy, and whether each due time runs once when ten managers could fire it.

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
    project_dir::{ProjectDir, Worker},
    queue::{finish, register, request},
    redis::Server,
    stats::{Requirement, median, print_rounds},
};

/// The interval of the schedule.
const INTERVAL: &str = "25ms";
/// The number of due times per round.
const DUE_TIMES: usize = 400;
/// Tasks submitted per pause: more than the worker finishes in that time.
const LOAD: usize = 100;
const LOAD_PAUSE: Duration = Duration::from_millis(100);
/// The limit of a round.
const TIMEOUT: Duration = Duration::from_secs(120);
const QUEUE: &str = "ticks";
/// The number of due times that ten managers could fire.
const MANY: usize = 1000;
const MANAGERS: usize = 10;
const TRIGGER: Duration = Duration::from_millis(20);
const GROUP: &str = "[process.a]\n[[process.a.worker]]\nslug = 'a'\ncommand = ['/bin/true']\ntrigger = { every = '20ms', missed = 'all' }\n";

pub(crate) fn bench(plan: &Plan) -> Vec<Requirement> {
    let due = if plan.quick { DUE_TIMES / 4 } else { DUE_TIMES };
    let on_sqlite: Vec<f64> = (0..plan.rounds)
        .map(|_| {
            let project = ProjectDir::new();
            measure_lateness(&project, project.broker(), &[], due)
        })
        .collect();
    let on_redis: Vec<f64> = (0..plan.rounds)
        .map(|_| {
            let project = ProjectDir::new();
            let server = Server::start(&project);
            measure_lateness(
                &project,
                server.broker(&project),
                &["--queue-url", &server.url()],
                due,
            )
        })
        .collect();
    let many = if plan.quick { MANY / 10 } else { MANY };
    let sqlite_wrong = {
        let project = ProjectDir::new();
        count_not_run_once(&project, project.broker(), &[], many)
    };
    let redis_wrong = {
        let project = ProjectDir::new();
        let server = Server::start(&project);
        count_not_run_once(
            &project,
            server.broker(&project),
            &["--queue-url", &server.url()],
            many,
        )
    };
    print_rounds(
        "a due time is late, under load, SQLite, p99",
        "ms",
        &on_sqlite,
    );
    print_rounds(
        "a due time is late, under load, Redis, p99",
        "ms",
        &on_redis,
    );
    vec![
        Requirement::at_most(
            "sqlite: ms from a due time to a worker, under load, p99",
            median(&on_sqlite),
            50.0,
        ),
        Requirement::at_most(
            "redis: ms from a due time to a worker, under load, p99",
            median(&on_redis),
            50.0,
        ),
        Requirement::at_most(
            "sqlite: of 1,000 due times of 10 managers, not run once",
            sqlite_wrong as f64,
            0.0,
        ),
        Requirement::at_most(
            "redis: of 1,000 due times of 10 managers, not run once",
            redis_wrong as f64,
            0.0,
        ),
    ]
}

/// The only worker that fires has both slots busy all the time; this process claims the fired
/// tasks.
fn measure_lateness(
    project: &ProjectDir,
    broker: Arc<dyn Broker>,
    url: &[&str],
    due: usize,
) -> f64 {
    let mut start = project.raddle(
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
            "schedule", "add", "tick", "--every", INTERVAL, "--missed", "all", "--queue", QUEUE,
            "--", "true",
        ],
    ];
    let added = project
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
            wait: TIMEOUT,
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
                    .expect("the task has a due time");
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
        while began.elapsed() < TIMEOUT {
            let batch = (0..LOAD)
                .map(|_| NewTask::new(TaskSpec::command(["/bin/true"])))
                .collect();
            broker.submit(batch).await.expect("there is room");
            tokio::time::sleep(LOAD_PAUSE).await;
        }
        panic!(
            "{} of {due} due times were fired",
            late.lock().unwrap_or_else(PoisonError::into_inner).len()
        );
    };
    project.wait(async {
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

/// Ten managers have the same group with a trigger. Returns how many of the first `due` due times
/// did not run exactly once.
fn count_not_run_once(
    project: &ProjectDir,
    broker: Arc<dyn Broker>,
    url: &[&str],
    due: usize,
) -> usize {
    fs::write(project.path().join("raddle.toml"), GROUP).expect("the directory can be written");
    // Managers of one name would wait for each other.
    let up = |number: usize| {
        let name = format!("group-{number}");
        Worker::start(
            project
                .raddle(&[url, &["up", "--name", &name]].concat())
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
        project
            .wait(broker.tasks(filter))
            .expect("the broker answers")
    };
    let began = Instant::now();
    let check_timeout = || {
        assert!(
            began.elapsed() < TIMEOUT,
            "{} of {due} due times were fired",
            fired().len()
        )
    };
    // Polled rarely enough to cost nothing.
    while fired().len() < due {
        check_timeout();
        thread::sleep(TRIGGER * 25);
    }
    let paused = project
        .raddle(&[url, &["schedule", "pause", "a"]].concat())
        .stderr(Stdio::null())
        .status();
    assert!(paused.expect("the release binary starts").success());
    while fired().iter().any(|task| !task.state.is_terminal()) {
        check_timeout();
        thread::sleep(TRIGGER * 25);
    }
    let tasks = fired();
    managers.into_iter().for_each(Worker::kill);
    let mut runs: BTreeMap<Timestamp, usize> = BTreeMap::new();
    for task in &tasks {
        let at = task.spec.metadata[DUE_KEY]
            .as_str()
            .and_then(|due| due.parse().ok())
            .expect("the task has a due time");
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
