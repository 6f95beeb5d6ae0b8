//! `raddle status`: counts of tasks, queues and workers.

use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use raddle_broker::{Broker, Summary, TaskFilter};
use raddle_client::wait::LONG;
use raddle_model::{TaskState, TaskView, WorkerEntry};
use serde_json::{Value, json};
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
/// The number of running tasks whose progress is shown.
const SHOWN: u32 = 20;
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";

pub(super) async fn status(context: &Context, watch: bool) -> Outcome {
    let broker = context.open_read_only().await?;
    if !watch {
        show(context, &*broker, false, None).await?;
        return Ok(0);
    }
    let in_place = !context.json && io::stdout().is_terminal();
    let mut work = WatchedTasks::default();
    loop {
        // Read first, so that no change is missed.
        let seen = broker.last_event().await?;
        let shows_progress = show(context, &*broker, in_place, Some(&mut work)).await?;
        if work.is_done() {
            return Ok(0);
        }
        sleep(MIN_PAUSE).await;
        // Progress and estimates change without an event.
        broker
            .events(
                Some(seen),
                None,
                1,
                if shows_progress { MIN_PAUSE } else { LONG },
            )
            .await?;
    }
}

/// The unfinished tasks that a watch has seen, and how many of them have ended.
#[derive(Debug, Default)]
struct WatchedTasks {
    /// The time of the first update, and the number of finished tasks then.
    begun: Option<(Instant, u64)>,
    finished: u64,
    left: u64,
    was_any: bool,
}

impl WatchedTasks {
    fn see(&mut self, summary: &Summary, now: Instant) {
        let unfinished = |state: &TaskState| !state.is_terminal();
        self.left = summary
            .states
            .iter()
            .filter(|(state, _)| unfinished(state))
            .map(|(_, n)| n)
            .sum();
        let finished = summary.states.values().sum::<u64>() - self.left;
        let (_, before) = *self.begun.get_or_insert((now, finished));
        // Records that have expired meanwhile are missing.
        self.finished = finished.saturating_sub(before).max(self.finished);
        self.was_any |= self.left + self.finished > 0;
    }

    /// Whether there was work and none is left. A watch that begins before the work waits for it.
    fn is_done(&self) -> bool {
        self.left == 0 && self.was_any
    }

    /// The remaining time at the present rate.
    fn estimate(&self, now: Instant) -> Option<Duration> {
        let (begun, _) = self.begun?;
        let each = (now - begun).checked_div(u32::try_from(self.finished).ok()?)?;
        each.checked_mul(u32::try_from(self.left).ok()?)
    }

    fn line(&self, now: Instant) -> String {
        let total = self.finished + self.left;
        let filled = (self.finished * BAR / total.max(1)) as usize;
        let bar = "█".repeat(filled) + &"░".repeat(BAR as usize - filled);
        let left = match self.estimate(now) {
            _ if self.left == 0 => String::new(),
            Some(left) => format!(", about {} left", format::coarse(left)),
            None => String::new(),
        };
        format!("{bar} {} of {total} done{left}", self.finished)
    }
}

/// Returns whether there was progress to show, which changes without an event.
async fn show(
    context: &Context,
    broker: &dyn Broker,
    in_place: bool,
    work: Option<&mut WatchedTasks>,
) -> Outcome<bool> {
    let mut summary = broker.summary().await?;
    for state in TaskState::ALL {
        summary.states.entry(state).or_default();
    }
    let workers = broker.workers().await?;
    let filter = TaskFilter {
        states: vec![TaskState::Running],
        limit: SHOWN,
        ..TaskFilter::default()
    };
    let mut running = broker.tasks(filter).await?;
    running.retain(|task| task.progress.is_some());
    let clear = if in_place { CLEAR_SCREEN } else { "" };
    let now = Instant::now();
    let work = work.map(|work| {
        work.see(&summary, now);
        &*work
    });
    let mut record = record(context, &summary, &workers, &running);
    if let Some(work) = work {
        let left_seconds = work.estimate(now).map(|left| left.as_secs());
        record["work"] =
            json!({ "done": work.finished, "left": work.left, "left_seconds": left_seconds });
    }
    context.show(&record, || {
        let work = work
            .map(|work| table::labelled(&[("work", work.line(now))]))
            .unwrap_or_default();
        format!(
            "{clear}{}{work}",
            text(context, &summary, &workers, &running)
        )
    })?;
    Ok(!running.is_empty())
}

fn record(
    context: &Context,
    summary: &Summary,
    workers: &[WorkerEntry],
    running: &[TaskView],
) -> Value {
    let progress = running
        .iter()
        .map(|task| json!({ "tid": task.tid, "progress": task.progress }));
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

fn text(
    context: &Context,
    summary: &Summary,
    workers: &[WorkerEntry],
    running: &[TaskView],
) -> String {
    let join = |parts: Vec<String>| {
        if parts.is_empty() {
            "none".into()
        } else {
            parts.join(", ")
        }
    };
    let states = join(
        summary
            .states
            .iter()
            .filter(|(_, n)| **n > 0)
            .map(|(state, n)| format!("{n} {state}"))
            .collect(),
    );
    let ready = join(
        summary
            .ready
            .iter()
            .filter(|(_, n)| **n > 0)
            .map(|(queue, n)| format!("{n} in {queue}"))
            .collect(),
    );
    let mut lines = vec![
        ("broker", context.project.url.to_string()),
        ("tasks", states),
        ("ready", ready),
    ];
    if summary.delayed + summary.paused > 0 {
        lines.push((
            "held back",
            format!("{} delayed, {} paused", summary.delayed, summary.paused),
        ));
    }
    if summary.dead > 0 {
        lines.push((
            "dead",
            format!(
                "{} (see 'raddle task list --dead', 'raddle task retry --all-dead')",
                summary.dead
            ),
        ));
    }
    let (callees, workers): (Vec<&WorkerEntry>, Vec<_>) =
        workers.iter().partition(|worker| worker.info.takes_calls());
    let slots: u64 = workers
        .iter()
        .map(|worker| u64::from(worker.info.concurrency))
        .sum();
    let busy: f64 = workers
        .iter()
        .map(|worker| worker.load * f64::from(worker.info.concurrency))
        .sum();
    let workers = match workers.len() as u64 {
        0 => "none (start one with 'raddle worker start')".into(),
        n => format!(
            "{}, {busy:.0} of {} busy",
            count(n, "worker"),
            count(slots, "slot")
        ),
    };
    lines.push(("workers", workers));
    if !callees.is_empty() {
        lines.push((
            "calls",
            format!("{} for them", count(callees.len() as u64, "worker")),
        ));
    }
    for (task, progress) in running
        .iter()
        .filter_map(|task| Some((task, task.progress.as_ref()?)))
    {
        lines.push((
            "progress",
            format!(
                "{} {}: {}",
                task.tid,
                task.spec.display_name(),
                format::progress(progress)
            ),
        ));
    }
    table::labelled(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(created: u64, completed: u64) -> Summary {
        let states = [
            (TaskState::Created, created),
            (TaskState::Completed, completed),
        ]
        .into_iter()
        .collect();
        Summary {
            states,
            ..Summary::default()
        }
    }

    #[test]
    fn a_watch_ends_when_the_work_that_it_has_seen_does() {
        let (mut work, begun) = (WatchedTasks::default(), Instant::now());
        let at = |secs| begun + Duration::from_secs(secs);
        work.see(&summary(0, 7), begun);
        assert!(!work.is_done(), "there was none yet");
        work.see(&summary(4, 7), begun);
        assert_eq!(
            (work.estimate(at(1)), work.line(at(1))),
            (None, format!("{} 0 of 4 done", "░".repeat(30)))
        );
        work.see(&summary(3, 8), begun);
        assert_eq!(work.estimate(at(10)), Some(Duration::from_secs(30)));
        assert!(
            work.line(at(10)).ends_with("1 of 4 done, about 30s left"),
            "{}",
            work.line(at(10))
        );
        // Some records are purged.
        work.see(&summary(0, 5), begun);
        assert!(work.is_done());
    }
}
