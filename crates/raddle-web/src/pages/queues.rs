//! Queues of tasks: what waits in each, and why it does not move.

use std::collections::BTreeMap;

use raddle_broker::TaskFilter;
use raddle_client::{explain::explain_task, text::count};
use raddle_model::{QueueName, TaskState};

use super::{
    context::{Context, shell},
    model::{Action, Block, Body, Cell, Empty, Notice, Page, Stat, Table, number},
    tasks::{name_cell, state_cell},
};
use crate::{auth::Right, problem::Result};

/// How many waiting tasks of a queue are looked at.
const SAMPLE: u32 = 200;
/// How many queues that do not move are explained.
const EXPLAINED: usize = 5;

/// The numbers of a queue.
#[derive(Clone, Debug, Default)]
struct QueueRow {
    ready: u64,
    workers: u64,
    slots: u64,
    busy: u64,
}

pub(super) async fn list(cx: &Context) -> Result<Page> {
    let rows = read(cx).await?;
    let mut table = Table::new(&[("Queue", ""), ("Ready", "num"), ("Slots", "nowrap p2"), ("Workers", "num")]).empty(Empty::new(
        "No queue",
        "A queue exists while a task waits in it or a worker serves it.",
        "raddle submit --queue mail -- echo hello",
    ));
    for (name, row) in &rows {
        let load = match row.slots {
            0 => Cell::none(),
            slots => Cell::bar(row.busy as f64, slots as f64, format!("{}/{slots}", row.busy)),
        };
        let served = match row.workers {
            0 => Cell::badge("none", "warn", if row.ready > 0 { "warn" } else { "wait" }),
            workers => Cell::num(workers),
        };
        let cells = vec![
            Cell::Named {
                href: cx.url_of("/queues", name),
                name: name.clone(),
                under: None,
            },
            Cell::num(row.ready),
            load,
            served,
        ];
        table.push(name, name, cells);
    }
    let ready = rows.iter().map(|(name, row)| (name.clone(), row.ready)).collect();
    let waiting = waiting_reasons(cx, &ready).await?;
    let mut blocks = Vec::new();
    if !waiting.is_empty() {
        blocks.push(Block::new("waiting", "Why they wait", Body::Notices(waiting)));
    }
    blocks.push(Block::new("queues", "", Body::Table(table)));
    Ok(Page {
        title: "Queues".into(),
        section: "/queues",
        blocks,
        commands: vec!["raddle queue list".into(), cx.curl("/queues")],
        is_live: true,
        ..Page::default()
    })
}

async fn read(cx: &Context) -> Result<BTreeMap<String, QueueRow>> {
    let summary = cx.broker().summary().await?;
    let mut rows: BTreeMap<String, QueueRow> = BTreeMap::new();
    for (name, ready) in summary.ready {
        rows.entry(name).or_default().ready = ready;
    }
    for worker in cx.broker().workers().await? {
        let is_task_queue = |name: &&String| matches!(name.parse::<QueueName>(), Ok(QueueName::Free(_)));
        for name in worker.info.queues.iter().filter(is_task_queue) {
            let row = rows.entry(name.clone()).or_default();
            row.workers += 1;
            row.slots += u64::from(worker.info.concurrency);
            row.busy += u64::from(raddle_client::explain::busy_slots(&worker));
        }
    }
    Ok(rows)
}

/// One notice for each queue whose newest waiting task is waiting for something that does not come
/// by itself.
pub(super) async fn waiting_reasons(cx: &Context, ready: &BTreeMap<String, u64>) -> Result<Vec<Notice>> {
    let mut notices = Vec::new();
    for (queue, n) in ready.iter().filter(|(_, n)| **n > 0).take(EXPLAINED * 4) {
        let Some(reason) = reasons_of(cx, queue, 1).await?.into_iter().next() else {
            continue;
        };
        if !reason.is_unserved {
            continue;
        }
        notices.push(Notice {
            tone: "warn",
            text: format!("{queue}: {} {}", count(*n, "task"), reason.text),
            hint: reason.hint,
        });
        if notices.len() == EXPLAINED {
            break;
        }
    }
    Ok(notices)
}

struct Reason {
    tasks: u64,
    text: String,
    hint: Option<String>,
    is_unserved: bool,
}

/// Why the newest waiting tasks of a queue wait, the commonest reason first.
async fn reasons_of(cx: &Context, queue: &str, sample: u32) -> Result<Vec<Reason>> {
    let filter = TaskFilter {
        states: vec![TaskState::Created],
        queue: Some(queue.into()),
        limit: sample,
        ..TaskFilter::default()
    };
    let mut reasons: Vec<(_, Reason)> = Vec::new();
    let mut by_needs = BTreeMap::new();
    for task in cx.broker().tasks(filter).await? {
        // Tasks with the same needs wait for the same.
        let key = (task.spec.needs().to_string(), task.paused, task.run_at.is_some_and(|at| at > cx.now));
        let kind = match by_needs.get(&key) {
            Some(kind) => *kind,
            None => {
                let explanation = explain_task(cx.broker(), &task).await?;
                let kind = explanation.kind();
                by_needs.insert(key, kind);
                if reasons.iter().all(|(known, _)| *known != kind) {
                    let is_unserved = explanation.is_unserved() || matches!(
                        explanation.reason,
                        raddle_client::explain::WaitReason::NoWorker
                            | raddle_client::explain::WaitReason::MissingCapabilities { .. }
                            | raddle_client::explain::WaitReason::WorkersNotTaking { .. }
                            | raddle_client::explain::WaitReason::NotLaunched { .. }
                    );
                    let reason = Reason {
                        tasks: 0,
                        text: explanation.text,
                        hint: explanation.hint,
                        is_unserved,
                    };
                    reasons.push((kind, reason));
                }
                kind
            }
        };
        if let Some((_, reason)) = reasons.iter_mut().find(|(known, _)| *known == kind) {
            reason.tasks += 1;
        }
    }
    reasons.sort_by_key(|(_, reason)| std::cmp::Reverse(reason.tasks));
    Ok(reasons.into_iter().map(|(_, reason)| reason).collect())
}

pub(super) async fn show(cx: &Context, name: &str) -> Result<Page> {
    let rows = read(cx).await?;
    let row = rows.get(name).cloned().unwrap_or_default();
    let stat = |label: &str, n: u64| Stat {
        label: label.into(),
        value: number(n),
        ..Stat::default()
    };
    let stats = vec![
        Stat {
            href: Some(cx.tasks_url(&format!("state:created queue:{name}"))),
            ..stat("Ready", row.ready)
        },
        stat("Workers", row.workers),
        stat("Slots", row.slots),
        stat("Busy", row.busy),
    ];
    let reasons = reasons_of(cx, name, SAMPLE).await?;
    let sampled: u64 = reasons.iter().map(|reason| reason.tasks).sum();
    let notices: Vec<Notice> = reasons
        .into_iter()
        .map(|reason| Notice {
            tone: if reason.is_unserved { "warn" } else { "run" },
            text: format!("{}: {}", count(reason.tasks, "task"), reason.text),
            hint: reason.hint,
        })
        .collect();
    let filter = TaskFilter {
        queue: Some(name.into()),
        states: vec![TaskState::Created, TaskState::Spawning, TaskState::Running],
        limit: 20,
        ..TaskFilter::default()
    };
    let mut table = Table::new(&[("State", "nowrap"), ("Task", ""), ("Needs", "p2"), ("Created", "num nowrap")]).empty(Empty::new(
        "Nothing waits or runs here",
        "Submit a task to this queue from a terminal:",
        &format!("raddle submit --queue {} -- echo hello", shell(name)),
    ));
    for task in cx.broker().tasks(filter).await? {
        let needs = task.spec.needs().iter().map(str::to_owned).collect();
        let cells = vec![state_cell(&task), name_cell(cx, &task), Cell::Tags(needs), Cell::time(task.created_at, cx.now)];
        table.push(task.tid.to_string(), task.spec.display_name(), cells);
    }
    let mut blocks = vec![Block::new("numbers", "", Body::Stats(stats)).width("flat")];
    if !notices.is_empty() {
        let block = Block::new("waiting", "Why its tasks wait", Body::Notices(notices));
        blocks.push(block.note(Cell::soft(format!("of the newest {}", count(sampled, "waiting task")))));
    }
    blocks.push(Block::new("tasks", "Waiting and running", Body::Table(table)).note(Cell::Link {
        href: cx.tasks_url(&format!("queue:{name}")),
        text: "All of its tasks".into(),
    }));
    Ok(Page {
        title: name.into(),
        section: "/queues",
        subtitle: vec![Cell::soft("Queue of tasks")],
        actions: actions(cx, name),
        blocks,
        commands: vec![format!("raddle queue stats {}", shell(name)), cx.curl(&format!("/queues/{}", super::context::encode(name)))],
        is_live: true,
        ..Page::default()
    })
}

fn actions(_cx: &Context, _name: &str) -> Vec<Action> {
    let _ = Right::Control;
    Vec::new()
}
