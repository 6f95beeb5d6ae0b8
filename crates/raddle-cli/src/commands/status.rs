//! `raddle status`: how many of what.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use raddle_broker::{Broker, Summary};
use raddle_core::{State, WorkerEntry};
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use crate::{args::StatusArgs, context::Context, error::Outcome, follow::LONG, format::count, output};

/// No more often than this, however much happens.
const BREATHE: Duration = Duration::from_millis(500);
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";

pub(super) async fn status(context: &Context, args: &StatusArgs) -> Outcome {
    if !args.watch {
        show(context, &*context.onlooker().await?, false).await?;
        return Ok(0);
    }
    let broker = context.broker().await?;
    let in_place = !context.json && io::stdout().is_terminal();
    loop {
        let seen = newest(&*broker).await?;
        show(context, &*broker, in_place).await?;
        sleep(BREATHE).await;
        broker.events(seen, None, 1, LONG).await?;
    }
}

async fn show(context: &Context, broker: &dyn Broker, in_place: bool) -> Outcome<()> {
    let summary = broker.summary().await?;
    let workers = broker.workers().await?;
    if context.json {
        return output::json(&record(context, &summary, &workers));
    }
    let clear = if in_place { CLEAR_SCREEN } else { "" };
    output::raw(format!("{clear}{}", text(context, &summary, &workers)).as_bytes())
}

fn record(context: &Context, summary: &Summary, workers: &[WorkerEntry]) -> Value {
    let states: Map<String, Value> =
        State::ALL.iter().map(|state| (state.to_string(), of(summary, *state).into())).collect();
    json!({
        "broker": context.project.url.to_string(),
        "tasks": states,
        "ready": summary.ready,
        "delayed": summary.delayed,
        "paused": summary.paused,
        "dead": summary.dead,
        "stale_writes": summary.stale_writes,
        "workers": workers,
    })
}

fn text(context: &Context, summary: &Summary, workers: &[WorkerEntry]) -> String {
    let join = |parts: Vec<String>| if parts.is_empty() { "none".into() } else { parts.join(", ") };
    let states = State::ALL.iter().map(|state| (of(summary, *state), state));
    let states = join(states.filter(|(n, _)| *n > 0).map(|(n, state)| format!("{n} {state}")).collect());
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
    let slots: u64 = workers.iter().map(|worker| u64::from(worker.info.concurrency)).sum();
    let busy: f64 = workers.iter().map(|worker| worker.load * f64::from(worker.info.concurrency)).sum();
    let workers = match workers.len() as u64 {
        0 => "none (start one with 'raddle worker start')".into(),
        n => format!("{}, {busy:.0} of {} busy", count(n, "worker"), count(slots, "slot")),
    };
    lines.push(("workers", workers));
    lines.iter().map(|(label, value)| format!("{label:<11}{value}\n")).collect()
}

fn of(summary: &Summary, state: State) -> u64 {
    summary.states.get(&state).copied().unwrap_or(0)
}

/// The last event there is. Taken before the rest is looked at, so that no change falls in between.
async fn newest(broker: &dyn Broker) -> Outcome<u64> {
    const PAGE: u32 = 10_000;
    let task = raddle_broker::TaskFilter { services: true, limit: 1, ..Default::default() };
    let mut seen = broker.tasks(task).await?.first().map_or(0, |task| task.tid.as_u64());
    while let Some(last) = broker.events(seen, None, PAGE, Duration::ZERO).await?.last() {
        seen = last.id.as_u64();
    }
    Ok(seen)
}
