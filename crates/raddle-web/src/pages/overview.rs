//! Overview: what runs, what waits and why, what has failed.

use raddle_broker::TaskFilter;
use raddle_client::text;
use raddle_model::{TaskState, TaskView, WorkerEntry};
use raddle_view::{overview::Overview, queues::QueueList, select::FAILED};

use super::{
    context::{Context, cut},
    model::{Block, Cell, Content, Empty, Screen, Stat, Table, number, worker_badge},
    queues::stuck_notices,
    tasks::task_row,
};
use crate::problem::Result;

/// How many of the newest failures are shown.
const FAILURES: u32 = 6;
/// How many running tasks are shown.
const RUNNING: u32 = 8;

pub(super) async fn show(cx: &Context) -> Result<Screen> {
    let broker = cx.broker();
    let overview = Overview::read(broker, cx.state.options.broker_url.clone()).await?;
    let newest = async |states: Vec<TaskState>, limit| {
        let filter = TaskFilter {
            states,
            limit,
            ..TaskFilter::default()
        };
        broker.tasks(filter).await
    };
    let running = newest(vec![TaskState::Running, TaskState::Spawning], RUNNING).await?;
    let failures = newest(FAILED.to_vec(), FAILURES).await?;
    let oldest = newest(vec![TaskState::Created], 1).await?;
    let has_tasks = overview.tasks.values().any(|n| *n > 0);
    let mut blocks =
        vec![Block::new("numbers", "", Content::Stats(stats(cx, &overview))).width("flat")];
    let waiting = stuck_notices(&QueueList::read(broker).await?);
    if !has_tasks && oldest.is_empty() {
        blocks.push(welcome());
    }
    if !waiting.is_empty() {
        let notices = Content::Notices(waiting);
        blocks.push(Block::new("waiting", "Queues that are not moving", notices));
    }
    blocks.push(running_block(cx, &running));
    blocks.push(worker_block(cx, &overview.workers));
    blocks.push(failure_block(cx, &failures));
    Ok(Screen {
        title: "Overview".into(),
        section: "/",
        blocks,
        commands: vec!["raddle status --watch".into(), cx.curl("/status")],
        is_live: true,
        ..Screen::default()
    })
}

fn stats(cx: &Context, overview: &Overview) -> Vec<Stat> {
    let of = |state| overview.tasks.get(&state).copied().unwrap_or_default();
    let slots: u32 = overview
        .workers
        .iter()
        .map(|worker| worker.info.concurrency)
        .sum();
    let busy: u32 = overview
        .workers
        .iter()
        .map(raddle_client::explain::busy_slots)
        .sum();
    let stat = |label: &str, n: u64, under: String, query: &str| Stat {
        label: label.into(),
        value: number(n),
        under,
        href: Some(cx.tasks_url(query)),
        ..Stat::default()
    };
    let ready = overview.ready.values().sum();
    let delayed = match (overview.delayed, overview.paused) {
        (0, 0) => String::new(),
        (delayed, paused) => format!("{} delayed, {} paused", number(delayed), number(paused)),
    };
    let running = of(TaskState::Running) + of(TaskState::Spawning);
    let failed = FAILED.iter().map(|state| of(*state)).sum();
    let dead = overview.dead;
    vec![
        stat("Ready", ready, delayed, "state:created"),
        stat("Running", running, String::new(), "state:running,spawning"),
        stat(
            "Completed",
            of(TaskState::Completed),
            String::new(),
            "state:completed",
        ),
        Stat {
            tone: if dead > 0 { "bad" } else { "" },
            ..stat(
                "Failed",
                failed,
                format!("{} out of attempts", number(dead)),
                "state:failed,timeout,killed",
            )
        },
        Stat {
            label: "Free slots".into(),
            value: number(slots.saturating_sub(busy).into()),
            under: format!(
                "of {slots}, on {}",
                text::count(overview.workers.len() as u64, "worker")
            ),
            href: Some(cx.url("/workers")),
            tone: if slots == 0 && ready > 0 { "warn" } else { "" },
            ..Stat::default()
        },
    ]
}

fn welcome() -> Block {
    let empty = Empty::new(
        "No task yet",
        "Submit the first one from a terminal, and watch it arrive here.",
        "raddle submit -- echo hello",
    );
    Block::new("welcome", "", Content::Empty(empty))
}

fn running_block(cx: &Context, tasks: &[TaskView]) -> Block {
    let mut table = Table::new(&[
        ("Task", ""),
        ("Queue", "p2"),
        ("Progress", ""),
        ("Runs for", "num nowrap"),
    ])
    .empty(Empty::new(
        "Nothing runs",
        "Tasks that run now are listed here.",
        "",
    ));
    for task in tasks {
        let progress = task
            .progress
            .as_ref()
            .map_or_else(Cell::none, progress_cell);
        let since = task
            .claimed_at
            .map_or_else(Cell::none, |at| Cell::since(at, cx.now));
        let name = Cell::Named {
            href: cx.url(&format!("/tasks/{}", task.tid)),
            name: cut(task.spec.display_name()),
            under: None,
        };
        let cells = vec![name, Cell::text(&task.spec.queue), progress, since];
        table.push(task.tid.to_string(), task.spec.display_name(), cells);
    }
    Block::new("running", "Running now", Content::Table(table))
        .width("half")
        .note(Cell::Link {
            href: cx.tasks_url("state:running,spawning"),
            text: "All that run".into(),
        })
}

/// Reported progress, as a bar if a share is known.
pub(super) fn progress_cell(progress: &raddle_model::Progress) -> Cell {
    match progress.percent {
        Some(percent) => Cell::bar(percent, 100.0, text::progress(progress)),
        None => Cell::text(text::progress(progress)),
    }
}

fn worker_block(cx: &Context, workers: &[WorkerEntry]) -> Block {
    let mut table = Table::new(&[
        ("Worker", ""),
        ("Host", "p2"),
        ("Status", ""),
        ("Slots", "num"),
    ])
    .empty(Empty::new(
        "No worker is alive",
        "Tasks wait until one is. Start one in a terminal:",
        "raddle worker start",
    ));
    for worker in workers.iter().take(8) {
        let busy = raddle_client::explain::busy_slots(worker);
        let slots = worker.info.concurrency;
        let load = Cell::bar(busy.into(), slots.into(), format!("{busy}/{slots}"));
        let name = Cell::Named {
            href: cx.url(&format!("/workers/{}", worker.tid)),
            name: worker.info.name.clone(),
            under: None,
        };
        let cells = vec![
            name,
            Cell::text(&worker.info.host),
            worker_badge(worker.status),
            load,
        ];
        table.push(format!("w{}", worker.tid), &worker.info.name, cells);
    }
    Block::new("workers", "Workers", Content::Table(table))
        .width("half")
        .note(Cell::Link {
            href: cx.url("/workers"),
            text: "All workers".into(),
        })
}

fn failure_block(cx: &Context, tasks: &[TaskView]) -> Block {
    let mut table = Table::new(&[
        ("State", "nowrap"),
        ("Task", ""),
        ("Queue", "p2"),
        ("Took", "num p2"),
        ("Ended", "num nowrap"),
    ])
    .empty(Empty::new(
        "Nothing has failed",
        "Tasks that fail, time out or are killed are listed here.",
        "",
    ));
    for task in tasks {
        table.push(
            format!("f{}", task.tid),
            task.spec.display_name(),
            task_row(cx, task),
        );
    }
    Block::new("failures", "Newest failures", Content::Table(table)).note(Cell::Link {
        href: cx.url("/failures"),
        text: "By cause".into(),
    })
}
