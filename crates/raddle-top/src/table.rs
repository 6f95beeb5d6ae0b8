//! The rows of the screens.

use jiff::Timestamp;
use raddle_client::text::{age, count, note, one_unit, printable, target_text, three_digits};
use raddle_model::{TaskEventKind, TaskState, Tid, worker::WorkerStatus};
use std::time::Duration;

use crate::reader::Data;

/// A table as it is shown.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) columns: &'static [Column],
    pub(crate) rows: Vec<Row>,
    /// The text if there is no row.
    pub(crate) empty: &'static str,
    /// A remark about the rows.
    pub(crate) remark: Option<String>,
}

/// A column. Columns with a higher rank are left out first in a narrow terminal.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    pub(crate) width: u16,
    pub(crate) rank: u8,
    /// Takes the rest of the line; at least its width.
    pub(crate) grows: bool,
}

/// A row.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) id: RowId,
    pub(crate) cells: Vec<String>,
    pub(crate) tone: Tone,
}

/// The object that a row shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowId {
    Task(Tid),
    Failure(Vec<Tid>),
    Queue(String),
    Worker(Tid),
    Group {
        slug: String,
        on: bool,
        replicas: u32,
    },
    Schedule {
        name: String,
        paused: bool,
    },
}

/// How a row is coloured, beside its words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Bad,
    Busy,
    Quiet,
}

const fn column(title: &'static str, width: u16, rank: u8) -> Column {
    Column {
        title,
        width,
        rank,
        grows: false,
    }
}

const fn growing(title: &'static str, width: u16) -> Column {
    Column {
        title,
        width,
        rank: 0,
        grows: true,
    }
}

const TASKS: [Column; 8] = [
    column("ID", 10, 0),
    column("STATE", 9, 0),
    column("TRY", 3, 2),
    column("QUEUE", 10, 3),
    column("AGE", 5, 1),
    column("TOOK", 6, 2),
    growing("NAME", 12),
    growing("NOTE", 22),
];
const FAILURES: [Column; 6] = [
    column("COUNT", 5, 0),
    column("DEAD", 4, 2),
    column("LAST", 5, 1),
    growing("NAME", 10),
    column("END", 16, 1),
    growing("LAST LINE", 16),
];
const QUEUES: [Column; 8] = [
    growing("QUEUE", 12),
    column("READY", 7, 0),
    column("DELAYED", 7, 2),
    column("PAUSED", 6, 3),
    column("RUNNING", 7, 1),
    column("OLDEST", 6, 1),
    column("WORKERS", 7, 2),
    growing("NOT MOVING BECAUSE", 30),
];
const WORKERS: [Column; 8] = [
    column("ID", 10, 0),
    column("HOST", 12, 1),
    column("TYPE", 9, 1),
    growing("NAME", 10),
    column("STATUS", 11, 0),
    column("BUSY", 6, 0),
    column("AGE", 5, 2),
    growing("RUNS", 12),
];
const POOLS: [Column; 6] = [
    column("ID", 10, 0),
    growing("NAME", 10),
    column("HOST", 12, 1),
    growing("ADDRESS", 16),
    column("TLS", 3, 2),
    column("AGE", 5, 2),
];
const GROUPS: [Column; 7] = [
    growing("WORKER", 12),
    column("PROCESS", 12, 2),
    column("STATE", 5, 0),
    column("LIVE", 7, 0),
    column("BUSY", 5, 1),
    column("WAITING", 7, 1),
    growing("MANAGER", 12),
];
const SCHEDULES: [Column; 7] = [
    growing("SCHEDULE", 12),
    growing("WHEN", 12),
    column("STATE", 7, 0),
    column("NEXT", 7, 0),
    column("FIRED", 6, 2),
    column("MISSED", 6, 1),
    column("LAST TASK", 10, 2),
];
const EVENTS: [Column; 6] = [
    column("TIME", 12, 0),
    column("TASK", 10, 0),
    column("EVENT", 12, 0),
    column("TRY", 3, 2),
    column("WORKER", 10, 3),
    growing("DETAIL", 14),
];

/// The table of a screen's data. The overview has none.
pub(crate) fn table(data: &Data, now: Timestamp) -> Table {
    match data {
        Data::Loading | Data::Overview(_) => Table::default(),
        Data::Tasks(list) => Table {
            columns: &TASKS,
            rows: list.items.iter().map(|task| task_row(task, now)).collect(),
            empty: "no task matches: / changes the filter, 'raddle submit -- COMMAND' adds one",
            remark: (!list.complete).then(|| {
                format!(
                    "looked at {}: narrow the filter for older ones",
                    count(list.looked_at, "task")
                )
            }),
        },
        Data::Failures(list) => Table {
            columns: &FAILURES,
            rows: list
                .items
                .iter()
                .map(|group| failure_row(group, now))
                .collect(),
            empty: "no task has failed",
            remark: (!list.complete).then(|| format!("the newest {} failures", list.looked_at)),
        },
        Data::Queues(list) => Table {
            columns: &QUEUES,
            rows: list.items.iter().map(queue_row).collect(),
            empty: "no queue has tasks or workers: start one with 'raddle worker start'",
            remark: (!list.complete).then(|| {
                format!(
                    "counts are of the newest {}",
                    count(list.looked_at, "unfinished task")
                )
            }),
        },
        Data::Workers(hosts) => Table {
            columns: &WORKERS,
            rows: hosts
                .iter()
                .flat_map(|host| &host.workers)
                .map(|worker| worker_row(worker, now))
                .collect(),
            empty: "no worker is alive: start one with 'raddle worker start'",
            remark: None,
        },
        Data::Pools(workers) => Table {
            columns: &POOLS,
            rows: workers.iter().map(|worker| pool_row(worker, now)).collect(),
            empty: "no pool worker is registered here: see 'raddle pool list'",
            remark: None,
        },
        Data::Groups(groups) => Table {
            columns: &GROUPS,
            rows: groups.iter().map(group_row).collect(),
            empty: "no group is known: start one with 'raddle up'",
            remark: None,
        },
        Data::Schedules(schedules) => Table {
            columns: &SCHEDULES,
            rows: schedules.iter().map(|it| schedule_row(it, now)).collect(),
            empty: "no schedule: add one with 'raddle schedule add'",
            remark: None,
        },
        Data::Events(list) => Table {
            columns: &EVENTS,
            rows: list.items.iter().rev().map(event_row).collect(),
            empty: "nothing has happened yet",
            remark: None,
        },
    }
}

fn task_row(task: &raddle_model::TaskView, now: Timestamp) -> Row {
    let name = match &task.spec.name {
        Some(name) => name.clone(),
        None => target_text(task),
    };
    Row {
        id: RowId::Task(task.tid),
        cells: vec![
            task.tid.short().to_string(),
            task.state.to_string(),
            task.attempt.to_string(),
            printable(&task.spec.queue),
            age(task.created_at, now),
            task.run_time(now).map_or_else(|| "-".into(), three_digits),
            printable(&name),
            printable(&note(task, now)),
        ],
        tone: state_tone(task.state),
    }
}

/// The tone of a state.
pub(crate) fn state_tone(state: TaskState) -> Tone {
    match state {
        TaskState::Completed => Tone::Good,
        TaskState::Failed | TaskState::Timeout | TaskState::Killed => Tone::Bad,
        TaskState::Spawning | TaskState::Running => Tone::Busy,
        TaskState::Cancelled => Tone::Quiet,
        _ => Tone::Plain,
    }
}

fn failure_row(group: &raddle_view::failures::FailureGroup, now: Timestamp) -> Row {
    Row {
        id: RowId::Failure(group.tasks.clone()),
        cells: vec![
            group.count.to_string(),
            group.dead.to_string(),
            age(group.last_seen, now),
            printable(&group.name),
            printable(&group.exit),
            printable(&group.line),
        ],
        tone: Tone::Bad,
    }
}

fn queue_row(queue: &raddle_view::queues::QueueState) -> Row {
    let oldest = queue
        .oldest_wait_seconds
        .map(|secs| one_unit(Duration::try_from_secs_f64(secs).unwrap_or_default()));
    Row {
        id: RowId::Queue(queue.queue.clone()),
        cells: vec![
            printable(&queue.queue),
            queue.ready.to_string(),
            queue.delayed.to_string(),
            queue.paused.to_string(),
            queue.running.to_string(),
            oldest.unwrap_or_else(|| "-".into()),
            queue.workers.to_string(),
            why_stuck(queue),
        ],
        tone: if queue.stuck.is_empty() {
            Tone::Plain
        } else {
            Tone::Bad
        },
    }
}

/// Why the tasks of a queue are not claimed; empty if they are.
pub(crate) fn why_stuck(queue: &raddle_view::queues::QueueState) -> String {
    let reasons = queue.stuck.iter().map(|stuck| {
        let why = stuck.explanation.strip_prefix("waits: ");
        format!(
            "{}: {}",
            stuck.tasks,
            printable(why.unwrap_or(&stuck.explanation))
        )
    });
    reasons.collect::<Vec<_>>().join("; ")
}

fn worker_row(worker: &raddle_view::workers::WorkerState, now: Timestamp) -> Row {
    let entry = &worker.entry;
    let busy = match entry.info.takes_calls() {
        true => "calls".into(),
        false => format!("{}/{}", worker.busy, entry.info.concurrency),
    };
    let runs: Vec<&str> = worker.tasks.iter().map(|task| task.name.as_str()).collect();
    Row {
        id: RowId::Worker(entry.tid),
        cells: vec![
            entry.tid.short().to_string(),
            printable(&entry.info.host),
            printable(&entry.info.kind),
            printable(&entry.info.name),
            entry.status.as_str().into(),
            busy,
            age(entry.started_at, now),
            printable(&runs.join(", ")),
        ],
        tone: match entry.status {
            WorkerStatus::Active if worker.busy > 0 => Tone::Busy,
            WorkerStatus::Active => Tone::Plain,
            WorkerStatus::BackingOff => Tone::Bad,
            _ => Tone::Quiet,
        },
    }
}

fn pool_row(worker: &raddle_model::WorkerEntry, now: Timestamp) -> Row {
    let callee = worker.info.callee.as_deref();
    Row {
        id: RowId::Worker(worker.tid),
        cells: vec![
            worker.tid.short().to_string(),
            printable(&worker.info.name),
            printable(&worker.info.host),
            printable(callee.map_or("", |callee| &callee.address)),
            if callee.is_some_and(|callee| callee.secure) {
                "yes"
            } else {
                "no"
            }
            .into(),
            age(worker.started_at, now),
        ],
        tone: Tone::Plain,
    }
}

fn group_row(group: &raddle_groups::GroupWorkerView) -> Row {
    let managers = group
        .managers
        .iter()
        .map(|manager| format!("{} ({})", printable(&manager.name), manager.status.as_str()));
    let managers: Vec<String> = managers.collect();
    let short = group.on && group.live < group.replicas as usize;
    Row {
        id: RowId::Group {
            slug: group.slug.clone(),
            on: group.on,
            replicas: group.replicas,
        },
        cells: vec![
            printable(&group.slug),
            printable(&group.process),
            if group.on { "on" } else { "off" }.into(),
            format!("{}/{}", group.live, group.replicas),
            group.busy.to_string(),
            group.waiting.to_string(),
            if managers.is_empty() {
                "none".into()
            } else {
                managers.join(", ")
            },
        ],
        tone: match (group.on, short) {
            (false, _) => Tone::Quiet,
            (true, true) => Tone::Bad,
            (true, false) => Tone::Plain,
        },
    }
}

fn schedule_row(schedule: &raddle_view::schedule::ScheduleDetail, now: Timestamp) -> Row {
    let entry = &schedule.view.entry;
    let written = &entry.schedule;
    let when = match (&written.cron, &written.every) {
        (Some(cron), _) => format!("{cron} {}", written.zone()),
        (None, Some(every)) => format!("every {}", one_unit(every.0)),
        (None, None) => String::new(),
    };
    let state = match (entry.paused, entry.due()) {
        (true, _) => "paused",
        (false, Some(_)) => "on",
        (false, None) => "over",
    };
    let next = entry
        .due()
        .map(|due| match Duration::try_from(due.duration_since(now)) {
            Ok(left) => format!("in {}", one_unit(left)),
            Err(_) => "now".into(),
        });
    Row {
        id: RowId::Schedule {
            name: written.name.clone(),
            paused: entry.paused,
        },
        cells: vec![
            printable(&written.name),
            printable(&when),
            state.into(),
            next.unwrap_or_else(|| "-".into()),
            entry.fired.to_string(),
            entry.missed.to_string(),
            schedule
                .task_state
                .map_or_else(|| "-".into(), |state| state.to_string()),
        ],
        tone: match schedule.task_state {
            _ if state != "on" => Tone::Quiet,
            Some(state) if state_tone(state) == Tone::Bad => Tone::Bad,
            _ => Tone::Plain,
        },
    }
}

fn event_row(event: &raddle_model::TaskEvent) -> Row {
    let tone = match event.event {
        TaskEventKind::Completed => Tone::Good,
        TaskEventKind::Failed
        | TaskEventKind::Timeout
        | TaskEventKind::Killed
        | TaskEventKind::Reclaimed
        | TaskEventKind::OutputLost
        | TaskEventKind::StaleWrite => Tone::Bad,
        TaskEventKind::Running => Tone::Busy,
        _ => Tone::Plain,
    };
    Row {
        id: RowId::Task(event.tid),
        cells: vec![
            event.at.strftime("%H:%M:%S%.3f").to_string(),
            event.tid.short().to_string(),
            event.event.to_string(),
            event.attempt.to_string(),
            event
                .worker
                .map_or_else(|| "-".into(), |worker| worker.short().to_string()),
            printable(event.detail.as_deref().unwrap_or_default()),
        ],
        tone,
    }
}
