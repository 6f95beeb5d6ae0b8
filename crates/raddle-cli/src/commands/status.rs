//! `raddle status`: counts of tasks, queues and workers.

use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use raddle_broker::Broker;
use raddle_client::wait::MAX_WAIT;
use raddle_model::WorkerEntry;
use raddle_view::overview::{Overview, WatchedTasks, WorkLeft};
use serde_json::json;
use tokio::time::sleep;

use crate::{
    context::Context,
    error::Outcome,
    format::{self, count},
    table,
};

/// The shortest pause between two updates.
const MIN_PAUSE: Duration = Duration::from_millis(500);
/// How many characters the bar has.
const BAR: u64 = 30;
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";

pub(super) async fn status(context: &Context, watch: bool) -> Outcome {
    let broker = context.open_existing().await?;
    if !watch {
        show(context, &*broker, false, None).await?;
        return Ok(0);
    }
    let in_place = !context.json && io::stdout().is_terminal();
    let mut watched = WatchedTasks::default();
    loop {
        // Read first, so that no change is missed.
        let last_event = broker.last_event().await?;
        let shows_progress = show(context, &*broker, in_place, Some(&mut watched)).await?;
        if watched.is_done() {
            return Ok(0);
        }
        sleep(MIN_PAUSE).await;
        // Progress and estimates change without an event.
        let wait = if shows_progress { MIN_PAUSE } else { MAX_WAIT };
        broker.events(Some(last_event), None, 1, wait).await?;
    }
}

/// Returns whether there was progress to show, which changes without an event.
async fn show(
    context: &Context,
    broker: &dyn Broker,
    in_place: bool,
    watched: Option<&mut WatchedTasks>,
) -> Outcome<bool> {
    let mut overview = Overview::read(broker, context.project.url.to_string()).await?;
    overview.work = watched.map(|watched| {
        let now = Instant::now();
        watched.update(&overview.tasks, now);
        watched.work_left(now)
    });
    let clear = if in_place { CLEAR_SCREEN } else { "" };
    context.show(&json!(overview), || format!("{clear}{}", text(&overview)))?;
    Ok(!overview.progress.is_empty())
}

/// A bar of the work that is done, with the rest in words.
fn bar(work: &WorkLeft) -> String {
    let total = work.done + work.left;
    let filled = (work.done * BAR / total.max(1)) as usize;
    let bar = "█".repeat(filled) + &"░".repeat(BAR as usize - filled);
    let left = match work.left_seconds {
        _ if work.left == 0 => String::new(),
        Some(left) => {
            let left = format::one_unit(Duration::from_secs(left));
            format!(", about {left} left")
        }
        None => String::new(),
    };
    format!("{bar} {} of {total} done{left}", work.done)
}

fn text(overview: &Overview) -> String {
    let join = |parts: Vec<String>| {
        if parts.is_empty() {
            "none".into()
        } else {
            parts.join(", ")
        }
    };
    let states = overview.tasks.iter().filter(|(_, n)| **n > 0);
    let ready = overview.ready.iter().filter(|(_, n)| **n > 0);
    let mut lines = vec![
        ("broker", overview.broker.clone()),
        (
            "tasks",
            join(states.map(|(state, n)| format!("{n} {state}")).collect()),
        ),
        (
            "ready",
            join(ready.map(|(queue, n)| format!("{n} in {queue}")).collect()),
        ),
    ];
    let Overview {
        delayed,
        paused,
        dead,
        ..
    } = overview;
    if delayed + paused > 0 {
        lines.push(("held back", format!("{delayed} delayed, {paused} paused")));
    }
    if *dead > 0 {
        let hint = "see 'raddle task list --dead', 'raddle task retry --all-dead'";
        lines.push(("dead", format!("{dead} ({hint})")));
    }
    let (callees, workers): (Vec<&WorkerEntry>, Vec<_>) = overview
        .workers
        .iter()
        .partition(|worker| worker.info.takes_calls());
    lines.push(("workers", workers_text(&workers)));
    if !callees.is_empty() {
        let callees = count(callees.len() as u64, "worker");
        lines.push(("calls", format!("{callees} for them")));
    }
    for task in &overview.progress {
        let progress = format::progress(&task.progress);
        lines.push((
            "progress",
            format!("{} {}: {progress}", task.tid, task.name),
        ));
    }
    lines.extend(overview.work.as_ref().map(|work| ("work", bar(work))));
    table::labelled(&lines)
}

fn workers_text(workers: &[&WorkerEntry]) -> String {
    let slots: u64 = workers
        .iter()
        .map(|worker| u64::from(worker.info.concurrency))
        .sum();
    let busy: f64 = workers
        .iter()
        .map(|worker| worker.load * f64::from(worker.info.concurrency))
        .sum();
    match workers.len() as u64 {
        0 => "none (start one with 'raddle worker start')".into(),
        n => format!(
            "{}, {busy:.0} of {} busy",
            count(n, "worker"),
            count(slots, "slot")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_shows_the_share_that_is_done() {
        let work = |done, left, left_seconds| WorkLeft {
            done,
            left,
            left_seconds,
        };
        let empty = "░".repeat(30);
        assert_eq!(bar(&work(0, 4, None)), format!("{empty} 0 of 4 done"));
        let begun = bar(&work(1, 3, Some(30)));
        assert!(begun.ends_with("1 of 4 done, about 30s left"), "{begun}");
        assert!(bar(&work(4, 0, Some(0))).ends_with("4 of 4 done"));
    }
}
