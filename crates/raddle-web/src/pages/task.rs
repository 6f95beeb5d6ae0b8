//! A task: why it waits, the way it has taken, its attempts, output, spec and events.

use std::time::Duration;

use raddle_client::{
    explain::{WaitReason, explain_task},
    text::three_digits,
};
use raddle_model::{TaskEvent, TaskEventKind, TaskState, TaskView, Tid};
use raddle_view::{
    events::{AttemptSpan, attempts as attempts_of, task_events},
    find::get_task_or_worker,
    task::{attempt_limits, expiry},
};

use super::{
    charts,
    context::{Context, cut},
    model::{Action, Badge, Block, Cell, Content, Empty, Notice, Screen, Table, bytes},
    output,
    overview::progress_cell,
    search,
    tasks::{VERBS, name_cell, state_cell},
};
use crate::{auth::Right, problem::Result};

mod attempts;

/// How many events are shown.
const SHOWN_EVENTS: usize = 50;
/// How many tasks that it has submitted are shown.
const CHILDREN: usize = 20;

pub(super) async fn show(cx: &Context, arg: &str) -> Result<Screen> {
    let broker = cx.broker();
    let tid = search::tid_of(cx, arg).await?;
    let (task, _) = get_task_or_worker(broker, tid).await?;
    let events = task_events(broker, tid).await?;
    let attempts = attempts_of(&events);
    let mut blocks = Vec::new();
    if !task.state.is_terminal() || task.paused {
        blocks.push(explain_block(cx, &task).await?);
    } else if let Some(report) = task
        .report
        .as_ref()
        .filter(|report| !report.exit.is_success())
    {
        let notice = Notice {
            tone: Badge::of_state(task.state).tone,
            text: format!("The last attempt: {}", report.exit),
            hint: task.dead.then(|| {
                "Its attempts are used up: it is a dead letter until it is retried or deleted."
                    .into()
            }),
        };
        blocks.push(Block::new("explain", "", Content::Notices(vec![notice])));
    }
    blocks.push(facts(cx, &task).width("half"));
    blocks.push(path_block(cx, &task, &events, &attempts).width("half"));
    if cx.caller.may(Right::SeeData) {
        blocks.extend(output::blocks(cx, &task).await?);
    }
    if attempts.len() > 1 {
        blocks.push(attempts_block(cx, &attempts));
    }
    blocks.push(spec_block(cx, &task).width("half"));
    blocks.push(events_block(cx, &events).width("half"));
    if let Some(block) = relatives(cx, &task).await? {
        blocks.push(block);
    }
    Ok(Screen {
        title: cut(task.spec.display_name()),
        section: "/tasks",
        subtitle: subtitle(cx, &task),
        actions: actions(cx, &task),
        blocks,
        commands: vec![
            format!("raddle task status {tid}"),
            format!("raddle logs {tid}"),
            cx.curl(&format!("/tasks/{tid}")),
        ],
        is_live: true,
        ..Screen::default()
    })
}

fn subtitle(cx: &Context, task: &TaskView) -> Vec<Cell> {
    let mut cells = vec![state_cell(task), Cell::Code(task.tid.to_string())];
    cells.push(Cell::Many(vec![
        Cell::soft("queue"),
        Cell::Link {
            href: cx.url_of("/queues", &task.spec.queue),
            text: task.spec.queue.clone(),
        },
    ]));
    cells.push(Cell::Many(vec![
        Cell::soft("created"),
        Cell::time(task.created_at, cx.now),
    ]));
    match (task.finished_at, task.claimed_at) {
        (Some(_), _) => {
            if let Some(took) = task.run_time(cx.now) {
                cells.push(Cell::text(format!("took {}", three_digits(took))));
            }
        }
        (None, Some(at)) => cells.push(Cell::Many(vec![
            Cell::soft("runs for"),
            Cell::since(at, cx.now),
        ])),
        (None, None) => {}
    }
    cells
}

/// The buttons that make sense in the state of the task.
fn actions(cx: &Context, task: &TaskView) -> Vec<Action> {
    let is_finished = task.state.is_terminal();
    let suits = |verb: &str| match verb {
        "retry" | "delete" => is_finished,
        "resume" => task.paused,
        "pause" => !is_finished && !task.paused,
        _ => !is_finished,
    };
    VERBS
        .into_iter()
        .filter(|(verb, ..)| suits(verb))
        .map(|(verb, label, right)| Action {
            fields: vec![
                ("action", verb.into()),
                ("tid", task.tid.to_string()),
                ("back", format!("/tasks/{}", task.tid)),
            ],
            is_main: verb == "retry",
            is_danger: matches!(verb, "kill" | "delete"),
            confirm: matches!(verb, "kill" | "delete").then(|| format!("{label} this task?")),
            ..cx.action(label, "/tasks/act", right)
        })
        .collect()
}

async fn explain_block(cx: &Context, task: &TaskView) -> Result<Block> {
    let explanation = explain_task(cx.broker(), task).await?;
    let tone = match explanation.reason {
        WaitReason::Delayed { .. }
        | WaitReason::Behind { .. }
        | WaitReason::Launched { .. }
        | WaitReason::Finished => "",
        WaitReason::Next { .. } | WaitReason::Worker { .. } => "run",
        WaitReason::Running { worker_alive, .. } if worker_alive => "run",
        _ => "warn",
    };
    let notice = Notice {
        tone,
        text: format!("This task {}.", explanation.text),
        hint: explanation.hint,
    };
    let title = if task.state == TaskState::Created {
        "Why does it wait?"
    } else {
        "What is it doing?"
    };
    Ok(Block::new("explain", title, Content::Notices(vec![notice])))
}

fn facts(cx: &Context, task: &TaskView) -> Block {
    let spec = &task.spec;
    let mut fields = vec![("State", state_cell(task))];
    let mut add = |name, cell| fields.push((name, cell));
    if let Some(progress) = &task.progress {
        add("Progress", progress_cell(progress));
    }
    if let Some(at) = task.run_at {
        add("Runs", Cell::time(at, cx.now));
    }
    if let Some(at) = expiry(task) {
        add("Expires", Cell::time(at, cx.now));
    }
    let limits =
        attempt_limits(task).map_or_else(String::new, |(failures, _)| format!(" of {failures}"));
    let counts = format!(
        "{} begun, {}{limits} failed, {} lost with their worker",
        task.attempt, task.failures, task.losses
    );
    add("Attempts", Cell::text(counts));
    if let Some(worker) = task.worker {
        add("Worker", cx.worker(worker));
    }
    if let Some(pid) = task.pid {
        add("Process", Cell::text(pid.to_string()));
    }
    if let Some(report) = &task.report {
        add(
            "Ended",
            Cell::Many(vec![
                Cell::text(report.exit.to_string()),
                Cell::time(report.ended_at, cx.now),
            ]),
        );
        if let Some(wait) = report
            .started_at
            .map(|at| at.duration_since(task.created_at))
        {
            add("Until it ran", Cell::took(Duration::try_from(wait).ok()));
        }
        let usage = report.usage;
        if usage.peak_rss_bytes > 0 {
            let limit = spec
                .limits
                .memory_mb
                .map(|mb| format!(" of {mb} MB"))
                .unwrap_or_default();
            add(
                "Memory, peak",
                Cell::text(format!("{}{limit}", bytes(usage.peak_rss_bytes))),
            );
            let cpu = Duration::from_micros(usage.user_us + usage.system_us);
            add("CPU time", Cell::took(Some(cpu)));
        }
    }
    if let Some(timeout) = &spec.timeout {
        add("Timeout", Cell::text(timeout.to_string()));
    }
    let needs: Vec<String> = spec.needs().iter().map(str::to_owned).collect();
    if !needs.is_empty() {
        add("Needs", Cell::Tags(needs));
    }
    if let Some(batch) = &spec.batch {
        add(
            "Batch",
            Cell::Link {
                href: cx.tasks_url(&format!("batch:{batch}")),
                text: batch.clone(),
            },
        );
    }
    if let Some(key) = &spec.unique_key {
        add("Unique key", Cell::text(cut(key)));
    }
    if let Some(original) = spec
        .metadata
        .get("retry_of")
        .and_then(|it| it.as_str())
        .and_then(|it| it.parse().ok())
    {
        add("Retry of", cx.task(original));
    }
    if let Some(trace) = &spec.traceparent {
        add("Trace", Cell::Code(trace.to_string()));
    }
    Block::new("facts", "Facts", Content::Fields(fields))
}

fn path_block(
    cx: &Context,
    task: &TaskView,
    events: &[TaskEvent],
    attempts: &[AttemptSpan],
) -> Block {
    let visited: Vec<TaskState> = events
        .iter()
        .filter_map(|event| match event.event {
            TaskEventKind::Retrying | TaskEventKind::Released | TaskEventKind::Reclaimed => {
                Some(TaskState::Created)
            }
            kind => TaskState::ALL
                .into_iter()
                .find(|state| TaskEventKind::from(*state) == kind),
        })
        .collect();
    let machine = charts::state_machine(task.state, &visited);
    let rows = attempts::gantt_rows(task, attempts, cx.now);
    let svg = match charts::gantt(&rows, "The attempts over time") {
        Some(gantt) => charts::Svg(format!("{}<div class=\"pad\"></div>{}", machine.0, gantt.0)),
        None => machine,
    };
    let legend = vec![
        ("f-wait", "waited"),
        ("f-run", "ran"),
        ("f-ok", "completed"),
        ("f-bad", "failed"),
    ];
    Block::new("path", "The way it took", Content::Chart { svg, legend })
}

fn attempts_block(cx: &Context, attempts: &[AttemptSpan]) -> Block {
    let mut table = Table::new(&[
        ("Try", "num"),
        ("Worker", "p2"),
        ("Began", "num nowrap"),
        ("Ran", "num nowrap"),
        ("How it ended", ""),
    ]);
    for attempt in attempts.iter().rev().take(SHOWN_EVENTS) {
        let ran = attempt
            .ended_at
            .zip(attempt.started_at)
            .and_then(|(end, begin)| Duration::try_from(end.duration_since(begin)).ok());
        let how = match attempt.end {
            Some(kind) => Cell::Many(vec![
                event_badge(kind),
                Cell::soft(attempt.detail.as_deref().map(cut).unwrap_or_default()),
            ]),
            None => Cell::badge("running", "running", "run"),
        };
        let cells = vec![
            Cell::text(attempt.attempt.to_string()),
            attempt.worker.map_or_else(Cell::none, |tid| cx.worker(tid)),
            Cell::time(attempt.started_at.unwrap_or(attempt.claimed_at), cx.now),
            Cell::took(ran),
            how,
        ];
        table.push(format!("a{}", attempt.attempt), "attempt", cells);
    }
    Block::new("attempts", "Attempts", Content::Table(table))
}

fn spec_block(cx: &Context, task: &TaskView) -> Block {
    let mut spec = serde_json::to_value(&task.spec).unwrap_or_default();
    let mut note = None;
    if !cx.caller.may(Right::SeeData) {
        spec.as_object_mut()
            .into_iter()
            .for_each(crate::api::reply::hide_spec);
        note = Some(Cell::soft("data is hidden from viewers"));
    } else if let Some(env) = spec.get_mut("env").and_then(|env| env.as_object_mut()) {
        // Values of the environment are often secrets: the command line shows them.
        env.values_mut().for_each(|value| *value = "•••".into());
        note = Some(Cell::soft("values of the environment are hidden"));
    }
    let text = serde_json::to_string_pretty(&spec).unwrap_or_default();
    let body = Content::Pre {
        text: output::shorten(&text),
        label: "The spec as JSON".into(),
    };
    let block = Block::new("spec", "Spec", body);
    match note {
        Some(note) => block.note(note),
        None => block,
    }
}

fn events_block(cx: &Context, events: &[TaskEvent]) -> Block {
    let mut table =
        Table::new(&[("When", "nowrap"), ("Event", "nowrap"), ("Detail", "")]).empty(Empty::new(
            "No event is left",
            "Events are kept for a limited time.",
            "",
        ));
    for event in events.iter().rev().take(SHOWN_EVENTS) {
        let detail = event
            .detail
            .as_deref()
            .map_or_else(Cell::none, |detail| Cell::soft(cut(detail)));
        let cells = vec![
            Cell::time(event.at, cx.now),
            event_badge(event.event),
            detail,
        ];
        table.push(format!("e{}", event.id), "event", cells);
    }
    Block::new("log", "Events", Content::Table(table))
}

/// An event as a badge.
pub(super) fn event_badge(kind: TaskEventKind) -> Cell {
    let state = TaskState::ALL
        .into_iter()
        .find(|state| TaskEventKind::from(*state) == kind);
    let word = kind.as_str().replace('_', " ");
    match (state, kind) {
        (Some(state), _) => Cell::state(state),
        (_, TaskEventKind::Retrying) => Cell::badge(word, "created", "warn"),
        (_, TaskEventKind::Paused) => Cell::badge(word, "paused", "off"),
        (_, TaskEventKind::Resumed) => Cell::badge(word, "running", "run"),
        (_, TaskEventKind::Released) => Cell::badge(word, "created", "wait"),
        _ => Cell::badge(word, "warn", "warn"),
    }
}

/// The task that submitted it, and those that it has submitted.
async fn relatives(cx: &Context, task: &TaskView) -> Result<Option<Block>> {
    let mut table = Table::new(&[
        ("Relation", "nowrap"),
        ("State", "nowrap"),
        ("Task", ""),
        ("Created", "num nowrap p2"),
    ]);
    let mut add = |role: &str, task: &TaskView| {
        let cells = vec![
            Cell::soft(role),
            state_cell(task),
            name_cell(cx, task),
            Cell::time(task.created_at, cx.now),
        ];
        table.push(format!("k{}", task.tid), task.spec.display_name(), cells);
    };
    if let Some(tid) = task.parent
        && let Some(parent) = cx.broker().task(tid).await?
    {
        add("submitted by", &parent);
    }
    for child in children(cx, task.tid).await? {
        add("submitted", &child);
    }
    let is_empty = table.rows.is_empty();
    Ok((!is_empty).then(|| Block::new("relatives", "Parents and children", Content::Table(table))))
}

/// The newest tasks that this one has submitted. Its children are younger than it is.
async fn children(cx: &Context, tid: Tid) -> Result<Vec<TaskView>> {
    let query = search::parse(&format!("parent:{tid}"))?;
    let mut found = search::find(cx, &query, None).await?.tasks;
    found.truncate(CHILDREN);
    Ok(found)
}
