//! Workers: who is alive, what each runs and what it takes.

use raddle_client::{explain::busy_slots, text};
use raddle_model::{WorkerEntry, worker::WorkerStatus};
use raddle_view::find::held_tasks;

use super::{
    context::Context,
    model::{Action, Block, Cell, Content, Empty, Screen, Stat, Table, number, worker_badge},
    search,
    tasks::{name_cell, state_cell},
};
use crate::{
    auth::Right,
    problem::{Problem, Result},
};

pub(super) async fn list(cx: &Context) -> Result<Screen> {
    let mut workers = cx.broker().workers().await?;
    workers.sort_by(|a, b| {
        (&a.info.host, a.info.takes_calls(), a.tid).cmp(&(
            &b.info.host,
            b.info.takes_calls(),
            b.tid,
        ))
    });
    let mut table = Table::new(&[
        ("Worker", ""),
        ("Status", "nowrap"),
        ("Slots", "nowrap"),
        ("Host", "p2"),
        ("Type", "p3"),
        ("Queues", "p3"),
        ("Started", "num nowrap p2"),
        ("Id", "p3 nowrap"),
    ])
    .empty(Empty::new(
        "No worker is alive",
        "Tasks wait until one is. Start one in a terminal:",
        "raddle worker start",
    ));
    for worker in &workers {
        let queues = worker.info.queues.iter().take(5).cloned().collect();
        let cells = vec![
            Cell::Named {
                href: cx.url(&format!("/workers/{}", worker.tid)),
                name: worker.info.name.clone(),
                under: None,
            },
            worker_badge(worker.status),
            slots(worker),
            Cell::text(&worker.info.host),
            Cell::text(&worker.info.kind),
            Cell::Tags(queues),
            Cell::time(worker.started_at, cx.now),
            cx.worker(worker.tid),
        ];
        table.push(worker.tid.to_string(), &worker.info.name, cells);
    }
    Ok(Screen {
        title: "Workers".into(),
        section: "/workers",
        blocks: vec![
            Block::new("numbers", "", Content::Stats(stats(&workers))).width("flat"),
            Block::new("workers", "", Content::Table(table)),
        ],
        commands: vec!["raddle worker list".into(), cx.curl("/workers")],
        is_live: true,
        ..Screen::default()
    })
}

fn stats(workers: &[WorkerEntry]) -> Vec<Stat> {
    let stat = |label: &str, n: u64| Stat {
        label: label.into(),
        value: number(n),
        ..Stat::default()
    };
    let hosts: std::collections::BTreeSet<&str> = workers
        .iter()
        .map(|worker| worker.info.host.as_str())
        .collect();
    let total: u32 = workers.iter().map(|worker| worker.info.concurrency).sum();
    let busy: u32 = workers.iter().map(busy_slots).sum();
    vec![
        stat("Workers", workers.len() as u64),
        stat("Hosts", hosts.len() as u64),
        stat("Slots", total.into()),
        stat("Busy", busy.into()),
    ]
}

fn slots(worker: &WorkerEntry) -> Cell {
    let (busy, slots) = (busy_slots(worker), worker.info.concurrency);
    match slots {
        0 => Cell::none(),
        slots => Cell::bar(busy.into(), slots.into(), format!("{busy}/{slots}")),
    }
}

pub(super) async fn show(cx: &Context, arg: &str) -> Result<Screen> {
    let tid = search::tid_of(cx, arg).await?;
    let workers = cx.broker().workers().await?;
    let Some(worker) = workers.iter().find(|worker| worker.tid == tid) else {
        return Err(Problem::not_found(format!("the worker {tid} is not alive"))
            .with_hint(format!("its record may still be there: open /tasks/{tid}")));
    };
    let info = &worker.info;
    let mut fields = vec![
        ("Status", worker_badge(worker.status)),
        ("Slots", slots(worker)),
        ("Type", Cell::text(&info.kind)),
        ("Host", Cell::text(&info.host)),
        ("Process", Cell::text(info.pid.to_string())),
        ("Started", Cell::time(worker.started_at, cx.now)),
        ("Queues", Cell::Tags(info.queues.clone())),
    ];
    let caps: Vec<String> = info.capabilities.iter().map(str::to_owned).collect();
    if !caps.is_empty() {
        fields.push(("Offers", Cell::Tags(caps)));
    }
    if worker.spawned_count > 0 {
        fields.push((
            "Has launched",
            Cell::text(text::count(worker.spawned_count, "worker")),
        ));
    }
    if let Some(parent) = info.parent {
        fields.push(("Launched by", cx.worker(parent)));
    }
    let held = held_tasks(cx.broker(), tid).await?;
    let mut table = Table::new(&[
        ("State", "nowrap"),
        ("Task", ""),
        ("Queue", "p2"),
        ("Runs for", "num nowrap"),
    ])
    .empty(Empty::new("It runs nothing now", "Its slots are free.", ""));
    for task in search::among(cx, held).await? {
        let since = task
            .claimed_at
            .map_or_else(Cell::none, |at| Cell::since(at, cx.now));
        let cells = vec![
            state_cell(&task),
            name_cell(cx, &task),
            Cell::text(&task.spec.queue),
            since,
        ];
        table.push(task.tid.to_string(), task.spec.display_name(), cells);
    }
    let is_task = cx.broker().task(tid).await?.is_some();
    let mut subtitle = vec![worker_badge(worker.status), Cell::Code(tid.to_string())];
    if is_task {
        subtitle.push(Cell::Link {
            href: cx.url(&format!("/tasks/{tid}")),
            text: "as a task".into(),
        });
    }
    Ok(Screen {
        title: info.name.clone(),
        section: "/workers",
        subtitle,
        actions: actions(cx, worker),
        blocks: vec![
            Block::new("facts", "Facts", Content::Fields(fields)).width("third"),
            Block::new("tasks", "Runs now", Content::Table(table)).width("two"),
        ],
        commands: vec![
            format!("raddle task tree {tid}"),
            format!("raddle logs {tid}"),
            cx.curl(&format!("/workers/{tid}")),
        ],
        is_live: true,
        ..Screen::default()
    })
}

fn actions(cx: &Context, worker: &WorkerEntry) -> Vec<Action> {
    let pause = match worker.status {
        WorkerStatus::Paused => ("resume", "Resume"),
        _ => ("pause", "Pause"),
    };
    [pause, ("stop", "Stop"), ("kill", "Kill")]
        .into_iter()
        .map(|(verb, label)| Action {
            fields: vec![("action", verb.into()), ("tid", worker.tid.to_string())],
            is_danger: verb == "kill",
            confirm: (verb != "resume" && verb != "pause")
                .then(|| format!("{label} this worker? Its tasks return to their queues.")),
            ..cx.action(label, "/workers/act", Right::Control)
        })
        .collect()
}
