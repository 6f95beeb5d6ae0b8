//! Queues of tasks: what waits in each, and why it does not move.

use raddle_broker::TaskFilter;
use raddle_client::text::count;
use raddle_model::{QueueName, TaskState};
use raddle_view::queues::{QueueList, QueueState, StuckTasks};

use super::{
    context::{Context, encode, shell},
    model::{Action, Block, Cell, Content, Empty, Notice, Screen, Stat, Table, number},
    tasks::{name_cell, state_cell},
};
use crate::{auth::Right, problem::Result};

/// How many of its tasks are shown.
const SHOWN: u32 = 20;

pub(super) async fn list(cx: &Context) -> Result<Screen> {
    let list = QueueList::read(cx.broker()).await?;
    let mut table = Table::new(&[
        ("Queue", ""),
        ("Ready", "num"),
        ("Running", "num"),
        ("Delayed", "num p2"),
        ("Paused", "num p3"),
        ("Oldest waits", "num nowrap"),
        ("Workers", "num p2"),
    ])
    .empty(Empty::new(
        "No queue",
        "A queue exists while a task waits in it or a worker serves it.",
        "raddle submit --queue mail -- echo hello",
    ));
    for queue in list.items.iter().filter(|queue| is_users(queue)) {
        let cells = vec![
            Cell::Named {
                href: cx.url_of("/queues", &queue.queue),
                name: queue.queue.clone(),
                under: queue.stuck.first().map(|stuck| stuck.explanation.clone()),
            },
            Cell::num(queue.ready),
            Cell::num(queue.running),
            Cell::num(queue.delayed),
            Cell::num(queue.paused),
            queue
                .oldest
                .map_or_else(Cell::none, |at| Cell::since(at, cx.now)),
            match queue.workers {
                0 if queue.ready > 0 => Cell::badge("none", "warn", "warn"),
                workers => Cell::num(workers),
            },
        ];
        table.push(&queue.queue, &queue.queue, cells);
    }
    let waiting = stuck_notices(&list);
    let mut blocks = Vec::new();
    if !waiting.is_empty() {
        blocks.push(Block::new(
            "waiting",
            "Why they wait",
            Content::Notices(waiting),
        ));
    }
    blocks.push(Block::new("queues", "", Content::Table(table)));
    Ok(Screen {
        title: "Queues".into(),
        section: "/queues",
        blocks,
        commands: vec!["raddle queue list".into(), cx.curl("/queues")],
        is_live: true,
        ..Screen::default()
    })
}

/// Whether users name the queue: not one of Raddle's own.
fn is_users(queue: &QueueState) -> bool {
    matches!(queue.queue.parse::<QueueName>(), Ok(QueueName::Free(_)))
}

/// One notice for each reason for which tasks wait and none is about to take them.
pub(super) fn stuck_notices(list: &QueueList) -> Vec<Notice> {
    let stuck = list
        .items
        .iter()
        .flat_map(|queue| queue.stuck.iter().map(move |stuck| (queue, stuck)));
    stuck
        .map(|(queue, stuck)| Notice {
            tone: "warn",
            text: format!("{}: {}", queue.queue, sentence(stuck)),
            hint: stuck.hint.clone(),
        })
        .collect()
}

/// `3 tasks wait: no worker is alive`
fn sentence(stuck: &StuckTasks) -> String {
    let tasks = count(stuck.tasks, "task");
    match stuck.explanation.strip_prefix("waits") {
        Some(rest) if stuck.tasks != 1 => format!("{tasks} wait{rest}"),
        _ => format!("{tasks} {}", stuck.explanation),
    }
}

pub(super) async fn show(cx: &Context, name: &str) -> Result<Screen> {
    let list = QueueList::read(cx.broker()).await?;
    let queue = list
        .items
        .into_iter()
        .find(|queue| queue.queue == name)
        .unwrap_or_default();
    let summary = cx.broker().summary().await?;
    let is_paused = summary
        .queues
        .get(name)
        .is_some_and(|queue| queue.is_paused);
    let (state, verb, label) = match is_paused {
        true => (
            Cell::badge("paused: no task is taken from it", "paused", "off"),
            "resume",
            "Resume",
        ),
        false => (Cell::soft("Queue of tasks"), "pause", "Pause"),
    };
    let action = Action {
        fields: vec![("action", verb.into()), ("queue", name.into())],
        ..cx.action(label, "/queues/act", Right::Control)
    };
    let stat = |label: &str, n: u64| Stat {
        label: label.into(),
        value: number(n),
        ..Stat::default()
    };
    let link = |states: &str| Some(cx.tasks_url(&format!("state:{states} queue:{name}")));
    let stats = vec![
        Stat {
            href: link("created"),
            ..stat("Ready", queue.ready)
        },
        Stat {
            href: link("running,spawning"),
            ..stat("Running", queue.running)
        },
        stat("Delayed", queue.delayed),
        stat("Paused", queue.paused),
        stat("Workers", queue.workers),
    ];
    let mut blocks = vec![Block::new("numbers", "", Content::Stats(stats)).width("flat")];
    if !queue.stuck.is_empty() {
        let notices = queue.stuck.iter().map(|stuck| Notice {
            tone: "warn",
            text: sentence(stuck),
            hint: stuck.hint.clone(),
        });
        blocks.push(Block::new(
            "waiting",
            "Why its tasks wait",
            Content::Notices(notices.collect()),
        ));
    }
    if !queue.needs.is_empty() {
        let mut table = Table::new(&[
            ("Needs", ""),
            ("Tasks", "num"),
            ("Able workers", "num"),
            ("Free", "num"),
        ]);
        for need in &queue.needs {
            let needs = match need.needs.is_empty() {
                true => Cell::soft("nothing special"),
                false => Cell::Tags(need.needs.clone()),
            };
            let able = match need.able {
                0 => Cell::badge("none", "warn", "warn"),
                able => Cell::num(able),
            };
            table.push(
                format!("n-{}", need.needs.join(",")),
                "need",
                vec![needs, Cell::num(need.tasks), able, Cell::num(need.free)],
            );
        }
        blocks.push(Block::new(
            "needs",
            "Needs of its tasks",
            Content::Table(table),
        ));
    }
    blocks.push(tasks_block(cx, name).await?);
    Ok(Screen {
        title: name.into(),
        section: "/queues",
        subtitle: vec![state],
        actions: vec![action],
        blocks,
        commands: vec![
            format!("raddle queue stats {}", shell(name)),
            cx.curl(&format!("/queues/{}", encode(name))),
        ],
        is_live: true,
        ..Screen::default()
    })
}

async fn tasks_block(cx: &Context, name: &str) -> Result<Block> {
    let filter = TaskFilter {
        queue: Some(name.into()),
        states: vec![TaskState::Created, TaskState::Spawning, TaskState::Running],
        limit: SHOWN,
        ..TaskFilter::default()
    };
    let mut table = Table::new(&[
        ("State", "nowrap"),
        ("Task", ""),
        ("Needs", "p2"),
        ("Created", "num nowrap"),
    ])
    .empty(Empty::new(
        "Nothing waits or runs here",
        "Submit a task to this queue from a terminal:",
        &format!("raddle submit --queue {} -- echo hello", shell(name)),
    ));
    for task in cx.broker().tasks(filter).await? {
        let needs = task.spec.needs().iter().map(str::to_owned).collect();
        let cells = vec![
            state_cell(&task),
            name_cell(cx, &task),
            Cell::Tags(needs),
            Cell::time(task.created_at, cx.now),
        ];
        table.push(task.tid.to_string(), task.spec.display_name(), cells);
    }
    Ok(
        Block::new("tasks", "Waiting and running", Content::Table(table)).note(Cell::Link {
            href: cx.tasks_url(&format!("queue:{name}")),
            text: "All of its tasks".into(),
        }),
    )
}
