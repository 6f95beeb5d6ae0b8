//! The views of a broker on SQLite.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use raddle_broker::{AttemptStarted, Broker, ClaimRequest, Completion, LeasedTask, NewTask};
use raddle_broker_connect::{BrokerUrl, connect};
use raddle_model::{
    AttemptReport, ExitStatus, HumanDuration, Schedule, TaskEventKind, TaskQuery, TaskSpec,
    TaskState, TaskView, Tid,
    worker::{WorkerInfo, kind},
};
use raddle_view::{
    events::{last_events, state_after, task_events},
    failures::FailureReader,
    queues::QueueList,
    schedule::list_schedules,
    task_detail::TaskDetail,
    tasks::{TaskListOptions, list_tasks},
    workers::list_workers,
};

const TTL: Duration = Duration::from_secs(120);

struct Fixture {
    broker: Arc<dyn Broker>,
    worker: Tid,
    _directory: tempfile::TempDir,
}

impl Fixture {
    async fn open() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url: BrokerUrl = format!("sqlite:{}", directory.path().join("db").display())
            .parse()
            .unwrap();
        let broker = connect(&url).await.unwrap();
        let info = WorkerInfo {
            queues: vec!["default".into(), "mail".into()],
            concurrency: 2,
            host: "vm".into(),
            ..WorkerInfo::new("w", kind::RESIDENT)
        };
        let worker = broker.register(info, TTL).await.unwrap();
        Self {
            broker,
            worker,
            _directory: directory,
        }
    }

    async fn submit(&self, spec: TaskSpec) -> Tid {
        let task = NewTask { spec, parent: None };
        self.broker.submit(vec![task]).await.unwrap()[0].tid()
    }

    async fn claim(&self) -> LeasedTask {
        let request = ClaimRequest {
            owner: self.worker,
            caps: Default::default(),
            queues: vec!["default".into(), "mail".into()],
            only: None,
            max: 1,
            wait: Duration::ZERO,
        };
        let task = self.broker.claim(request).await.unwrap().remove(0);
        let started = AttemptStarted {
            attempt_id: task.attempt_id,
            pid: Some(7),
        };
        self.broker.mark_started(vec![started]).await.unwrap();
        task
    }

    async fn complete(&self, task: &LeasedTask, code: i32, stderr: &str) {
        let mut report = AttemptReport::bare(ExitStatus::Code { code }, Timestamp::now());
        report.stderr_bytes = stderr.len() as u64;
        let completion = Completion {
            attempt_id: task.attempt_id,
            report,
            stdout: Vec::new(),
            stderr: stderr.into(),
        };
        self.broker.complete(vec![completion]).await.unwrap();
    }

    /// A task that ended with this code.
    async fn finished(&self, name: &str, code: i32, stderr: &str) -> Tid {
        let tid = self.submit(spec(name)).await;
        let task = self.claim().await;
        self.complete(&task, code, stderr).await;
        tid
    }

    async fn list(&self, query: &str, options: TaskListOptions) -> (Vec<String>, bool) {
        let query: TaskQuery = query.parse().unwrap();
        let list = list_tasks(&*self.broker, &query, &options).await.unwrap();
        let names = list.items.iter().map(name_of).collect();
        (names, list.complete)
    }
}

fn name_of(task: &TaskView) -> String {
    task.spec.display_name().into()
}

fn spec(name: &str) -> TaskSpec {
    TaskSpec {
        name: Some(name.into()),
        ..TaskSpec::command(["true"])
    }
}

#[tokio::test]
async fn lists_what_a_query_selects_page_by_page() {
    let fixture = Fixture::open().await;
    for n in 0..5 {
        fixture.finished(&format!("job-{n}"), n % 2, "").await;
    }
    fixture.submit(spec("late")).await;
    let all = TaskListOptions::default;
    let names = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    let failed = fixture.list("state:failed name:job-*", all()).await;
    assert_eq!(failed, (names(&["job-3", "job-1"]), true));
    assert_eq!(fixture.list("queue:none", all()).await, (vec![], true));
    assert_eq!(fixture.list("until:-1h", all()).await, (vec![], true));
    assert_eq!(
        fixture.list("since:-1h late", all()).await,
        (names(&["late"]), true)
    );
    // A page ends at its limit, and continues where it ended.
    let query: TaskQuery = "job".parse().unwrap();
    let mut options = TaskListOptions { limit: 2, ..all() };
    let mut pages = Vec::new();
    loop {
        let page = list_tasks(&*fixture.broker, &query, &options)
            .await
            .unwrap();
        pages.push(page.items.iter().map(name_of).collect::<Vec<_>>());
        options.before = page.next;
        if page.complete {
            break;
        }
    }
    assert_eq!(
        pages.concat(),
        names(&["job-4", "job-3", "job-2", "job-1", "job-0"])
    );
    let json = list_tasks(&*fixture.broker, &query, &all()).await.unwrap();
    let json = serde_json::to_value(json).unwrap();
    assert_eq!(json["items"][0]["name"], "job-4");
    assert_eq!(json["items"][0]["exit_code"], 0);
}

#[tokio::test]
async fn a_list_says_how_far_it_has_looked() {
    let fixture = Fixture::open().await;
    let specs = (0..1200).map(|n| NewTask {
        spec: spec(if n == 0 { "rare" } else { "job" }),
        parent: None,
    });
    fixture.broker.submit(specs.collect()).await.unwrap();
    let options = TaskListOptions {
        max_looked_at: 1000,
        ..TaskListOptions::default()
    };
    let query: TaskQuery = "rare".parse().unwrap();
    let first = list_tasks(&*fixture.broker, &query, &options)
        .await
        .unwrap();
    assert_eq!(
        (first.items.len(), first.looked_at, first.complete),
        (0, 1000, false)
    );
    let rest = TaskListOptions {
        before: first.next,
        ..options
    };
    let rest = list_tasks(&*fixture.broker, &query, &rest).await.unwrap();
    assert_eq!(
        (rest.items.len(), rest.looked_at, rest.complete),
        (1, 200, true)
    );
}

#[tokio::test]
async fn groups_failures_by_cause() {
    let fixture = Fixture::open().await;
    fixture.finished("ok", 0, "fine\n").await;
    fixture
        .finished("mail", 1, "warning\ncannot reach 10.0.0.7:25\n")
        .await;
    let newest = fixture
        .finished("mail", 1, "cannot reach 10.0.0.9:25\n\n")
        .await;
    fixture
        .finished("mail", 2, "cannot reach 10.0.0.9:25\n")
        .await;
    let mut reader = FailureReader::default();
    for _ in 0..2 {
        let list = reader
            .read(&*fixture.broker, &TaskQuery::default())
            .await
            .unwrap();
        assert_eq!(
            (list.items.len(), list.looked_at, list.complete),
            (2, 3, true)
        );
        let group = &list.items[1];
        assert_eq!(group.line, "cannot reach #");
        assert_eq!((group.count, group.dead, group.sample), (2, 2, newest));
        assert_eq!(group.hosts.iter().next().map(String::as_str), Some("vm"));
    }
    let one = "exit:2".parse().unwrap();
    assert_eq!(
        reader.read(&*fixture.broker, &one).await.unwrap().looked_at,
        1
    );
}

#[tokio::test]
async fn queues_say_why_they_do_not_move() {
    let fixture = Fixture::open().await;
    let running = fixture.submit(spec("runs")).await;
    fixture.claim().await;
    let gpu = TaskSpec {
        queue: "mail".into(),
        requires: "gpu".parse().unwrap(),
        ..spec("needs a gpu")
    };
    let first = fixture.submit(gpu.clone()).await;
    fixture.submit(gpu).await;
    let later = TaskSpec {
        queue: "nightly".into(),
        delay: Some(HumanDuration::secs(3600)),
        ..spec("later")
    };
    fixture.submit(later).await;
    let orphan = TaskSpec {
        queue: "nightly".into(),
        ..spec("orphan")
    };
    fixture.submit(orphan).await;

    let list = QueueList::read(&*fixture.broker).await.unwrap();
    let names: Vec<_> = list
        .items
        .iter()
        .map(|queue| queue.queue.as_str())
        .collect();
    assert_eq!(names, ["default", "mail", "nightly"]);
    let [default, mail, nightly] = list.items.as_slice() else {
        unreachable!()
    };
    assert_eq!((default.running, default.ready, default.workers), (1, 0, 1));
    assert!(default.stuck.is_empty());
    assert_eq!(
        (mail.ready, mail.needs[0].tasks, mail.needs[0].able),
        (2, 2, 0)
    );
    assert_eq!((mail.stuck[0].tasks, mail.stuck[0].sample), (2, first));
    assert!(
        mail.stuck[0].explanation.contains("lacks gpu"),
        "{:?}",
        mail.stuck
    );
    assert!(mail.oldest_wait_seconds.is_some_and(|waited| waited >= 0.0));
    assert_eq!((nightly.ready, nightly.delayed, nightly.workers), (1, 1, 0));
    assert!(
        nightly.stuck[0]
            .explanation
            .contains("serves the queue 'nightly'")
    );
    let hint = nightly.stuck[0].hint.as_deref();
    assert_eq!(
        hint,
        Some("start one with 'raddle worker start --queues nightly'")
    );

    let hosts = list_workers(&*fixture.broker).await.unwrap();
    assert_eq!(
        (hosts.len(), hosts[0].host.as_str(), hosts[0].slots),
        (1, "vm", 2)
    );
    assert_eq!(
        hosts[0].types,
        BTreeMap::from([(kind::RESIDENT.to_owned(), 1)])
    );
    let held: Vec<_> = hosts[0].workers[0]
        .tasks
        .iter()
        .map(|task| task.tid)
        .collect();
    assert_eq!(held, [running]);
}

#[tokio::test]
async fn a_task_has_attempts_and_an_explanation() {
    let fixture = Fixture::open().await;
    let mut retried = spec("retried");
    retried.retry.attempts = 2;
    retried.retry.base = HumanDuration::secs(0);
    let tid = fixture.submit(retried).await;
    for _ in 0..2 {
        let task = fixture.claim().await;
        fixture.complete(&task, 3, "").await;
    }
    let child = NewTask {
        spec: spec("child"),
        parent: Some(tid),
    };
    let child = fixture.broker.submit(vec![child]).await.unwrap()[0].tid();
    let detail = TaskDetail::read(&*fixture.broker, tid).await.unwrap();
    let ends: Vec<_> = detail
        .attempts
        .iter()
        .map(|span| (span.attempt, span.end))
        .collect();
    assert_eq!(
        ends,
        [
            (1, Some(TaskEventKind::Retrying)),
            (2, Some(TaskEventKind::Failed))
        ]
    );
    for span in &detail.attempts {
        assert_eq!(span.worker, Some(fixture.worker));
        let times = [
            span.waited_from,
            Some(span.claimed_at),
            span.started_at,
            span.ended_at,
        ];
        assert!(
            times.iter().all(Option::is_some) && times.is_sorted(),
            "{span:?}"
        );
    }
    assert_eq!(detail.children.items[0].tid, child);
    assert!(detail.explain.explanation.contains("is finished, failed"));
    let json = serde_json::to_value(&detail).unwrap();
    assert_eq!(json["task"]["name"], "retried");
    assert_eq!(json["explain"]["reason"], "finished");
}

#[tokio::test]
async fn the_log_has_an_end_and_a_past() {
    let fixture = Fixture::open().await;
    let first = fixture.finished("first", 0, "").await;
    let between = Timestamp::now();
    let second = fixture.finished("second", 1, "").await;
    let broker = &*fixture.broker;
    let list = last_events(broker, None, 3).await.unwrap();
    let kinds: Vec<_> = list
        .items
        .iter()
        .map(|event| (event.tid, event.event))
        .collect();
    use TaskEventKind::{Completed, Created, Failed, Running, Spawning};
    assert_eq!(
        kinds,
        [(second, Spawning), (second, Running), (second, Failed)]
    );
    let past = last_events(broker, Some(between), 2).await.unwrap();
    let kinds: Vec<_> = past
        .items
        .iter()
        .map(|event| (event.tid, event.event))
        .collect();
    assert_eq!(kinds, [(first, Running), (first, Completed)]);

    let events = task_events(broker, second).await.unwrap();
    let states: Vec<_> = (0..=events.len())
        .map(|n| state_after(&events[..n]))
        .collect();
    use TaskState as State;
    let expected = [
        State::Created,
        State::Spawning,
        State::Running,
        State::Failed,
    ];
    assert_eq!(states[0], None);
    assert_eq!(states[1..], expected.map(Some));
    assert_eq!(events[0].event, Created);
}

#[tokio::test]
async fn schedules_have_due_times() {
    let fixture = Fixture::open().await;
    let schedule = Schedule::cron("nightly", "0 3 * * *")
        .task(spec("report"))
        .unwrap();
    raddle_client::schedule::put(&*fixture.broker, schedule, false)
        .await
        .unwrap();
    let schedules = list_schedules(&*fixture.broker, 5).await.unwrap();
    assert_eq!(schedules[0].upcoming.len(), 5);
    let json = serde_json::to_value(&schedules).unwrap();
    assert_eq!(json[0]["upcoming"].as_array().map(Vec::len), Some(5));
}
