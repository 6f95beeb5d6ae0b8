//! `raddle status`: how many of what.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use raddle_broker::{Broker, Summary, TaskFilter};
use raddle_core::{State, TaskView, WorkerEntry};
use raddle_fabric::wait::LONG;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    context::Context,
    error::Outcome,
    format::{self, count},
    table,
};

/// No more often than this, however much happens.
const BREATHE: Duration = Duration::from_millis(500);
/// Of how many running tasks the progress is shown.
const SHOWN: u32 = 20;
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";

pub(super) async fn status(context: &Context, watch: bool) -> Outcome {
    let broker = context.onlooker().await?;
    if !watch {
        show(context, &*broker, false).await?;
        return Ok(0);
    }
    let in_place = !context.json && io::stdout().is_terminal();
    loop {
        // Asked for before the rest is looked at, so that no change falls in between.
        let seen = broker.last_event().await?;
        let shows_progress = show(context, &*broker, in_place).await?;
        sleep(BREATHE).await;
        // Progress is no event.
        broker.events(Some(seen), None, 1, if shows_progress { BREATHE } else { LONG }).await?;
    }
}

/// Returns whether there was progress to show, which changes without an event.
async fn show(context: &Context, broker: &dyn Broker, in_place: bool) -> Outcome<bool> {
    let mut summary = broker.summary().await?;
    for state in State::ALL {
        summary.states.entry(state).or_default();
    }
    let workers = broker.workers().await?;
    let filter = TaskFilter { states: vec![State::Running], limit: SHOWN, ..TaskFilter::default() };
    let mut running = broker.tasks(filter).await?;
    running.retain(|task| task.progress.is_some());
    let clear = if in_place { CLEAR_SCREEN } else { "" };
    context.show(&record(context, &summary, &workers, &running), || {
        format!("{clear}{}", text(context, &summary, &workers, &running))
    })?;
    Ok(!running.is_empty())
}

fn record(context: &Context, summary: &Summary, workers: &[WorkerEntry], running: &[TaskView]) -> Value {
    let progress = running.iter().map(|task| json!({ "tid": task.tid, "progress": task.progress }));
    json!({
        "broker": context.project.url.to_string(),
        "tasks": summary.states,
        "ready": summary.ready,
        "delayed": summary.delayed,
        "paused": summary.paused,
        "dead": summary.dead,
        "stale_writes": summary.stale_writes,
        "workers": workers,
        "progress": progress.collect::<Vec<_>>(),
    })
}

fn text(context: &Context, summary: &Summary, workers: &[WorkerEntry], running: &[TaskView]) -> String {
    let join = |parts: Vec<String>| if parts.is_empty() { "none".into() } else { parts.join(", ") };
    let states =
        join(summary.states.iter().filter(|(_, n)| **n > 0).map(|(state, n)| format!("{n} {state}")).collect());
    let ready =
        join(summary.ready.iter().filter(|(_, n)| **n > 0).map(|(queue, n)| format!("{n} in {queue}")).collect());
    let mut lines = vec![("broker", context.project.url.to_string()), ("tasks", states), ("ready", ready)];
    if summary.delayed + summary.paused > 0 {
        lines.push(("held back", format!("{} delayed, {} paused", summary.delayed, summary.paused)));
    }
    if summary.dead > 0 {
        lines.push((
            "dead",
            format!("{} (see 'raddle task list --dead', 'raddle task retry --all-dead')", summary.dead),
        ));
    }
    let (callees, workers): (Vec<&WorkerEntry>, Vec<_>) = workers.iter().partition(|worker| worker.info.takes_calls());
    let slots: u64 = workers.iter().map(|worker| u64::from(worker.info.concurrency)).sum();
    let busy: f64 = workers.iter().map(|worker| worker.load * f64::from(worker.info.concurrency)).sum();
    let workers = match workers.len() as u64 {
        0 => "none (start one with 'raddle worker start')".into(),
        n => format!("{}, {busy:.0} of {} busy", count(n, "worker"), count(slots, "slot")),
    };
    lines.push(("workers", workers));
    if !callees.is_empty() {
        lines.push(("calls", format!("{} for them", count(callees.len() as u64, "worker"))));
    }
    for (task, progress) in running.iter().filter_map(|task| Some((task, task.progress.as_ref()?))) {
        lines.push(("progress", format!("{} {}: {}", task.tid, task.spec.display_name(), format::progress(progress))));
    }
    table::labelled(&lines)
}
