//! Tasks: the list that a query finds.

use raddle_model::{TaskState, TaskView, Tid};

use super::{
    context::{Context, cut, encode, shell},
    model::{Block, Bulk, Cell, Content, Empty, Facet, Screen, Table, number},
    search::{self, PAGE},
};
use crate::{auth::Right, problem::Result};

/// The actions on tasks: verb, label, right.
pub(super) const VERBS: [(&str, &str, Right); 6] = [
    ("retry", "Retry", Right::Retry),
    ("stop", "Stop", Right::Control),
    ("kill", "Kill", Right::Control),
    ("pause", "Pause", Right::Control),
    ("resume", "Resume", Right::Control),
    ("delete", "Delete", Right::Delete),
];

pub(super) async fn show(cx: &Context) -> Result<Screen> {
    let text = cx.param("q").unwrap_or_default();
    let query = search::parse(text)?;
    let before: Option<Tid> = cx.param("before").and_then(|text| text.parse().ok());
    let found = match cx.rows() {
        // A live page asks for the rows that it shows, and no others.
        Some(rows) => search::Found {
            tasks: search::among(cx, rows).await?,
            next: None,
            looked_at: 0,
        },
        None => search::find(cx, &query, before).await?,
    };
    let back = match before {
        Some(tid) => format!("/tasks?q={}&before={tid}", encode(text)),
        None => format!("/tasks?q={}", encode(text)),
    };
    let mut table = Table::new(&[
        ("State", "nowrap"),
        ("Task", ""),
        ("Queue", "p2"),
        ("Try", "num p3"),
        ("Created", "num nowrap p2"),
        ("Took", "num nowrap"),
        ("Worker", "p3"),
        ("Id", "p3 nowrap"),
    ]);
    for task in &found.tasks {
        table.push(
            task.tid.to_string(),
            task.spec.display_name(),
            list_row(cx, task),
        );
    }
    table.bulk = Some(Bulk {
        href: cx.url("/tasks/act"),
        query: text.into(),
        back,
        verbs: VERBS
            .into_iter()
            .map(|(verb, label, right)| (verb, label, cx.missing(right)))
            .collect(),
    });
    table.empty = Some(empty(text, found.next.is_some()));
    table.pager = pager(cx, text, before, &found);
    let command = match text {
        "" => "raddle task list".into(),
        text => format!("raddle task list {}", shell(text)),
    };
    Ok(Screen {
        title: "Tasks".into(),
        section: "/tasks",
        facets: facets(cx, text).await?,
        blocks: vec![Block::new("tasks", "", Content::Table(table))],
        commands: vec![
            command,
            cx.curl(&format!("/tasks?q={}&limit={PAGE}", encode(text))),
        ],
        is_live: true,
        ..Screen::default()
    })
}

fn empty(text: &str, has_more: bool) -> Empty {
    match (text, has_more) {
        (_, true) => Empty::new(
            "None among those looked at",
            "Older tasks may match: look further back.",
            "",
        ),
        ("", false) => Empty::new(
            "No task yet",
            "Submit one from a terminal:",
            "raddle submit -- echo hello",
        ),
        _ => Empty::new(
            "No task matches",
            "Remove a term, or choose a state above. Help lists the fields of a query.",
            "",
        ),
    }
}

/// Links to the same list by state, with counts of all tasks.
async fn facets(cx: &Context, text: &str) -> Result<Vec<Facet>> {
    let summary = cx.broker().summary().await?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let others: Vec<&str> = words
        .iter()
        .copied()
        .filter(|word| !word.starts_with("state:"))
        .collect();
    let chosen: Vec<&str> = words
        .iter()
        .copied()
        .filter_map(|word| word.strip_prefix("state:"))
        .collect();
    // Counts are of all tasks: with other terms they would mislead.
    let counts = others.is_empty();
    let facet = |label: &str, states: &str, count: Option<u64>| {
        let mut parts = others.clone();
        let term = format!("state:{states}");
        if !states.is_empty() {
            parts.insert(0, &term);
        }
        Facet {
            href: cx.tasks_url(&parts.join(" ")),
            label: label.into(),
            count: count.filter(|_| counts),
            is_current: chosen.join(" ") == states,
        }
    };
    let mut facets = vec![facet("All", "", Some(summary.states.values().sum()))];
    for state in TaskState::ALL {
        let count = summary.states.get(&state).copied().unwrap_or_default();
        facets.push(facet(state.as_str(), state.as_str(), Some(count)));
    }
    Ok(facets)
}

fn pager(cx: &Context, text: &str, before: Option<Tid>, found: &search::Found) -> Vec<Cell> {
    let mut pager = Vec::new();
    let q = encode(text);
    if before.is_some() {
        pager.push(Cell::Link {
            href: cx.url(&format!("/tasks?q={q}")),
            text: "« Newest".into(),
        });
    }
    if let Some(next) = found.next {
        let label = match found.tasks.len() == PAGE {
            true => "Older »",
            false => "Look further back »",
        };
        pager.push(Cell::Link {
            href: cx.url(&format!("/tasks?q={q}&before={next}")),
            text: label.into(),
        });
    }
    if found.looked_at > found.tasks.len() as u64 {
        let back_to = found.next.map(|tid| {
            let at = jiff::Timestamp::from_nanosecond(tid.unix_nanos().into()).unwrap_or_default();
            format!(", back to {}", raddle_client::text::time(at))
        });
        pager.push(Cell::soft(format!(
            "looked at {} tasks{}",
            number(found.looked_at),
            back_to.unwrap_or_default()
        )));
    }
    pager
}

fn list_row(cx: &Context, task: &TaskView) -> Vec<Cell> {
    let took = match (task.finished_at, task.claimed_at) {
        (None, Some(at)) => Cell::since(at, cx.now),
        _ => Cell::took(task.run_time(cx.now)),
    };
    let tries = match task.attempt {
        0 => Cell::none(),
        attempt => Cell::text(attempt.to_string()),
    };
    vec![
        state_cell(task),
        name_cell(cx, task),
        Cell::text(&task.spec.queue),
        tries,
        Cell::time(task.created_at, cx.now),
        took,
        task.worker.map_or_else(Cell::none, |tid| cx.worker(tid)),
        cx.task(task.tid),
    ]
}

/// The state, with a word for what it lacks.
pub(super) fn state_cell(task: &TaskView) -> Cell {
    match task.state {
        _ if task.paused => Cell::badge("paused", "paused", "off"),
        TaskState::Created if task.run_at.is_some() => Cell::badge("delayed", "timeout", "wait"),
        TaskState::Created if task.attempt > 0 => Cell::badge("retrying", "created", "warn"),
        state => Cell::state(state),
    }
}

/// The name, and below it what is to be said about the task.
pub(super) fn name_cell(cx: &Context, task: &TaskView) -> Cell {
    let exit = task
        .report
        .as_ref()
        .filter(|report| !report.exit.is_success());
    let progress = task.progress.as_ref().map(raddle_client::text::progress);
    let under = exit
        .map(|report| cut(&report.exit.to_string()))
        .or(progress);
    Cell::Named {
        href: cx.url(&format!("/tasks/{}", task.tid)),
        name: cut(task.spec.display_name()),
        under,
    }
}

/// A row of a short list: state, name, queue, run time, end.
pub(super) fn task_row(cx: &Context, task: &TaskView) -> Vec<Cell> {
    vec![
        state_cell(task),
        name_cell(cx, task),
        Cell::text(&task.spec.queue),
        Cell::took(task.run_time(cx.now)),
        Cell::time_or_none(task.finished_at, cx.now),
    ]
}
