use std::collections::BTreeMap;

use jiff::SignedDuration;
use raddle_groups::GroupWorkerView;
use raddle_model::{
    Schedule, TaskEvent, TaskEventKind, TaskSpec, TaskState, WorkerEntry,
    schedule::ScheduleEntry,
    worker::{Heartbeat, PoolWorkerInfo, WorkerInfo, kind},
};
use raddle_view::{
    events::{EventList, attempts},
    failures::{FailedTask, FailureList, group},
    overview::Overview,
    queues::QueueList,
    schedule::ScheduleDetail,
    task_detail::{TaskDetail, TaskExplanation},
    tasks::TaskList,
    workers::{HostWorkers, group_by_host},
};
use ratatui::{Terminal, backend::TestBackend};

use super::*;
use crate::{
    app::tests::{app, now, press, task, task_app, tasks, tid},
    overlay::Overlay,
    reader::OverviewData,
};

/// The sizes that must be right.
const SIZES: [(u16, u16); 3] = [(60, 20), (80, 24), (200, 60)];

/// Draws the state at each size, and compares with the snapshots.
fn check(name: &str, app: &mut App) {
    for (width, height) in SIZES {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        app.page = page(height);
        terminal
            .draw(|frame| {
                draw(app, frame.area(), frame.buffer_mut());
            })
            .unwrap();
        insta::assert_snapshot!(format!("{name}_{width}x{height}"), terminal.backend());
    }
}

fn worker(number: u64, name: &str, caps: &str, queues: &[&str]) -> WorkerEntry {
    let info = WorkerInfo {
        capabilities: caps.parse().unwrap(),
        queues: queues.iter().map(|queue| (*queue).into()).collect(),
        concurrency: 4,
        host: "build-1".into(),
        pid: 4711,
        ..WorkerInfo::new(name, kind::RESIDENT)
    };
    let heartbeat = Heartbeat {
        busy: 1,
        ..Heartbeat::default()
    };
    WorkerEntry::new(
        tid(9000 + number),
        info,
        heartbeat,
        now() - SignedDuration::from_hours(5),
    )
}

fn workers() -> Vec<WorkerEntry> {
    vec![
        worker(0, "render", "cpu", &["default", "mail"]),
        worker(1, "night", "", &["night"]),
    ]
}

fn hosts() -> Vec<HostWorkers> {
    group_by_host(workers(), &tasks())
}

fn queues() -> QueueList {
    let mut waiting = tasks();
    waiting.retain(|task| !task.state.is_terminal());
    let mut gpu = task(8, "train", TaskState::Created, 3600);
    gpu.spec.requires = "gpu".parse().unwrap();
    let mut later = task(9, "later", TaskState::Created, 60);
    later.run_at = Some(now() + SignedDuration::from_hours(1));
    waiting.extend([gpu, later]);
    QueueList::new(&waiting, &workers(), now())
}

fn failures() -> FailureList {
    let failed = |number, name, line: &str| FailedTask {
        task: task(number, name, TaskState::Failed, 100 + number as i64),
        line: line.into(),
    };
    let tasks = [
        failed(3, "import", "no such file: 'frame-0012.png'"),
        failed(5, "import", "no such file: 'frame-0017.png'"),
        failed(6, "send welcome mail", "cannot reach 10.0.0.7:25"),
    ];
    FailureList {
        items: group(&tasks, &workers()),
        looked_at: 3,
        complete: true,
    }
}

fn schedules() -> Vec<ScheduleDetail> {
    let spec = TaskSpec::command(["report"]);
    let schedule = Schedule::cron("nightly-report", "0 3 * * *")
        .task(spec.clone())
        .unwrap();
    let zone = jiff::tz::TimeZone::UTC;
    let paused = Schedule::every("sweep", std::time::Duration::from_secs(600))
        .paused()
        .task(spec)
        .unwrap();
    let detail = |schedule| {
        let entry = ScheduleEntry::new(schedule, &zone, now());
        let view = raddle_broker::ScheduleView {
            version: tid(1),
            task: Some(tid(2)),
            entry,
        };
        ScheduleDetail {
            view,
            upcoming: Vec::new(),
            task_state: Some(TaskState::Completed),
        }
    };
    vec![detail(schedule), detail(paused)]
}

fn event(number: u64, kind: TaskEventKind, attempt: u32, secs: i64) -> TaskEvent {
    TaskEvent {
        id: tid(100 + number),
        tid: tid(3),
        event: kind,
        at: now() - SignedDuration::from_secs(secs),
        attempt,
        worker: (attempt > 0).then(|| tid(9000)),
        detail: (kind == TaskEventKind::Retrying).then(|| "exit code 1".into()),
    }
}

fn history() -> Vec<TaskEvent> {
    use TaskEventKind::{Created, Failed, Retrying, Running, Spawning};
    [
        (Created, 0, 300),
        (Spawning, 1, 290),
        (Running, 1, 289),
        (Retrying, 1, 200),
        (Spawning, 2, 190),
        (Running, 2, 189),
        (Failed, 2, 100),
    ]
    .into_iter()
    .zip(0..)
    .map(|((kind, attempt, secs), number)| event(number, kind, attempt, secs))
    .collect()
}

fn detail() -> TaskDetail {
    let mut task = task(3, "import", TaskState::Failed, 300);
    (task.attempt, task.failures, task.spec.retry.attempts) = (2, 2, 2);
    task.spec.env.insert("TOKEN".into(), "secret".into());
    let events = history();
    TaskDetail {
        explain: TaskExplanation {
            tid: task.tid,
            state: task.state,
            explanation: "is finished, failed: exit code 1".into(),
            hint: Some("see 'raddle logs', or run it again with 'raddle task retry'".into()),
            reason: raddle_client::explain::WaitReason::Finished,
        },
        attempts: attempts(&events),
        events,
        children: TaskList {
            items: vec![tasks().remove(0)],
            ..TaskList::default()
        },
        holds: Vec::new(),
        read_at: now(),
        task,
    }
}

fn overview() -> OverviewData {
    let states = TaskState::ALL
        .into_iter()
        .map(|state| (state, state as u64 * 7));
    OverviewData {
        overview: Overview {
            broker: "sqlite:/srv/app/.raddle/broker.db".into(),
            tasks: states.collect(),
            ready: BTreeMap::new(),
            delayed: 1,
            paused: 0,
            dead: 3,
            stale_writes: 0,
            workers: workers(),
            progress: Vec::new(),
            work: None,
        },
        queues: queues(),
        failures: failures(),
        hosts: hosts(),
        schedules: schedules(),
    }
}

#[test]
fn overview_shows_what_needs_attention() {
    let mut full = app(Screen::Overview, Data::Overview(Box::new(overview())));
    check("overview", &mut full);
}

#[test]
fn tasks_fit_every_size() {
    let mut app = task_app();
    press(&mut app, "xj");
    check("tasks", &mut app);
    app.data = Data::Tasks(TaskList {
        complete: true,
        ..TaskList::default()
    });
    app.marks.clear();
    app.query = "state:failed".parse().unwrap();
    check("tasks_empty", &mut app);
}

#[test]
fn other_screens_fit_every_size() {
    check(
        "failures",
        &mut app(Screen::Failures, Data::Failures(failures())),
    );
    check("queues", &mut app(Screen::Queues, Data::Queues(queues())));
    check("workers", &mut app(Screen::Workers, Data::Workers(hosts())));
    let mut callee = worker(2, "caller", "", &[]);
    callee.info.callee = Some(Box::new(PoolWorkerInfo {
        address: "10.0.0.7:4000".into(),
        secure: true,
        ..PoolWorkerInfo::default()
    }));
    check("pools", &mut app(Screen::Pools, Data::Pools(vec![callee])));
    check(
        "schedules",
        &mut app(Screen::Schedules, Data::Schedules(schedules())),
    );
    let events = EventList {
        items: history(),
        next: None,
    };
    check("events", &mut app(Screen::Events, Data::Events(events)));
}

#[test]
fn groups_fit_every_size() {
    let groups: Vec<GroupWorkerView> = Vec::new();
    check(
        "groups_empty",
        &mut app(Screen::Groups, Data::Groups(groups)),
    );
}

#[test]
fn a_task_is_explained_first() {
    let mut app = task_app();
    let detail = detail();
    app.overlays.push(Overlay::Task {
        tid: detail.task.tid,
        detail: Some(Box::new(detail)),
        scroll: 0,
    });
    check("task", &mut app);
}

#[test]
fn help_questions_and_prompts_lie_over_the_screen() {
    let mut app = task_app();
    press(&mut app, "?");
    check("help", &mut app);
    press(&mut app, "\u{1b}AR");
    check("question", &mut app);
    press(&mut app, "n/state:faild\n");
    check("mistake", &mut app);
}

#[test]
fn a_lost_broker_and_a_frozen_screen_are_told() {
    let mut app = task_app();
    app.failure = Some("no answer from the agent".into());
    check("lost", &mut app);
    app.failure = None;
    press(&mut app, "z<");
    check("frozen", &mut app);
}

/// Names come from users: they must not move the cursor, and wide ones must not break a row.
#[test]
fn hostile_names_stay_in_their_cells() {
    let mut app = task_app();
    let Data::Tasks(list) = &mut app.data else {
        unreachable!()
    };
    list.items[0].spec.name = Some("\u{1b}[2Jclear\nline\u{7}".into());
    list.items[1].spec.name = Some("漢字".repeat(200));
    list.items[2].spec.name = Some("e\u{301}\u{202e}rtl 👩‍👩‍👧‍👦".into());
    for (width, height) in [(1, 1), (20, 5), (21, 6), (80, 24)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| {
                draw(&app, frame.area(), frame.buffer_mut());
            })
            .unwrap();
        let cells = &terminal.backend().buffer().content;
        assert!(
            cells
                .iter()
                .all(|cell| !cell.symbol().contains(char::is_control))
        );
    }
}

#[test]
fn without_colours_there_are_none() {
    let mut app = task_app();
    app.colours = false;
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal
        .draw(|frame| {
            draw(&app, frame.area(), frame.buffer_mut());
        })
        .unwrap();
    let reset = ratatui::style::Color::Reset;
    let cells = &terminal.backend().buffer().content;
    assert!(
        cells
            .iter()
            .all(|cell| cell.fg == reset && cell.bg == reset)
    );
}
