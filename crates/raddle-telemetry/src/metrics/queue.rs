//! The queue exporter: what waits in a broker, who is there for it, and whether the broker can be asked at all.
//!
//! The broker is asked when somebody looks, and not more often than is worth it: a look at a long queue is followed by a rest, during which
//! the last one is shown. Whoever looks never waits for long: a broker that does not answer is what they want to know of.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use raddle_broker::{Broker, Result, Summary, SummaryDetail};
use raddle_model::{
    TaskState, WorkerEntry,
    worker::{WorkerStatus, kind},
};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::text_format::{MetricKind, MetricsPage};

/// Shows what waits in a broker.
pub struct QueueExporter {
    broker: Arc<dyn Broker>,
    /// The look that is under way, or the last one.
    looking: Mutex<Option<ExporterQueries>>,
    seen: watch::Sender<ExporterCache>,
}

struct ExporterQueries {
    since: Instant,
    task: JoinHandle<()>,
}

/// What the last looks found.
#[derive(Clone, Debug, Default)]
struct ExporterCache {
    look: Option<Arc<QueueQuery>>,
    /// When the last look was over.
    at: Option<Instant>,
    /// How long it took.
    took: Duration,
    /// Whether it failed.
    failed: bool,
}

#[derive(Debug)]
struct QueueQuery {
    summary: Summary,
    workers: Vec<WorkerEntry>,
}

/// No more often than this, however many look.
const REST: Duration = Duration::from_secs(1);
/// Nor more than this part of the time.
const SHARE: u32 = 50;
/// How long somebody who looks waits for the broker.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many queues have a sample of their own: one for each of thousands would fill the memory of those who collect them.
const MAX_QUEUES: usize = 100;
/// Queues beyond those, and managers: what people call these must not become a label.
const OTHER: &str = "other";

impl QueueExporter {
    /// For this broker.
    pub fn new(broker: Arc<dyn Broker>) -> Self {
        Self {
            broker,
            looking: Mutex::default(),
            seen: watch::Sender::default(),
        }
    }

    /// Shows what there is now, or was a moment ago.
    pub async fn show(&self, page: &mut MetricsPage) {
        let mut seen = self.seen.subscribe();
        if self.look_if_due() {
            // Past that, what was seen before has to do.
            let _ = timeout(PATIENCE, seen.changed()).await;
        }
        let latest = self.seen.borrow().clone();
        let is_up = latest.look.is_some() && !latest.failed && !self.is_overdue();
        page.gauge(
            "raddle_broker_up",
            "Whether the broker answers.",
            f64::from(u8::from(is_up)),
        );
        page.gauge(
            "raddle_broker_look_seconds",
            "How long the last look at the broker took.",
            latest.took.as_secs_f64(),
        );
        if let Some(look) = latest.look {
            show_tasks(page, &look.summary, Timestamp::now());
            show_workers(page, &look.workers);
        }
    }

    /// Begins a look if it is time for one. Returns whether one is under way.
    fn look_if_due(&self) -> bool {
        let mut looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        if looking
            .as_ref()
            .is_some_and(|looking| !looking.task.is_finished())
        {
            return true;
        }
        let latest = self.seen.borrow().clone();
        let rest = REST.max(latest.took * SHARE);
        if !latest.failed && latest.at.is_some_and(|at| at.elapsed() < rest) {
            return false;
        }
        let task = tokio::spawn(look(Arc::clone(&self.broker), self.seen.clone()));
        *looking = Some(ExporterQueries {
            since: Instant::now(),
            task,
        });
        true
    }

    /// Whether the broker has not answered for longer than anybody waits for it, and did not take that long before.
    fn is_overdue(&self) -> bool {
        let looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let took = self.seen.borrow().took;
        looking.as_ref().is_some_and(|looking| {
            !looking.task.is_finished()
                && looking.since.elapsed() >= PATIENCE.max(took.saturating_mul(3))
        })
    }
}

impl Drop for QueueExporter {
    fn drop(&mut self) {
        if let Some(looking) = self
            .looking
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            looking.task.abort();
        }
    }
}

async fn look(broker: Arc<dyn Broker>, seen: watch::Sender<ExporterCache>) {
    let began = Instant::now();
    let found = ask(&*broker).await;
    seen.send_modify(|seen| {
        (seen.at, seen.took) = (Some(Instant::now()), began.elapsed());
        match found {
            Ok(look) => (seen.look, seen.failed) = (Some(Arc::new(look)), false),
            Err(error) => {
                if !seen.failed {
                    tracing::error!(%error, "the broker cannot be looked at");
                }
                seen.failed = true;
            }
        }
    });
}

async fn ask(broker: &dyn Broker) -> Result<QueueQuery> {
    let summary = broker
        .summarize(SummaryDetail {
            kinds: true,
            ..SummaryDetail::default()
        })
        .await?;
    Ok(QueueQuery {
        summary,
        workers: broker.workers().await?,
    })
}

fn show_tasks(page: &mut MetricsPage, summary: &Summary, now: Timestamp) {
    let mut pending = page.family(
        "queue_pending_total",
        MetricKind::Untyped,
        "Tasks that wait for a worker, by kind.",
    );
    if summary.kinds.is_empty() {
        // So that there is something to compare with.
        pending.sample(&[("kind", "")], 0.0);
    }
    for (kind, waiting) in &summary.kinds {
        pending.sample(&[("kind", kind)], waiting.tasks as f64);
    }
    let help = "How long ago the first of those tasks could have been claimed, by kind.";
    let mut oldest = page.family("raddle_pending_oldest_seconds", MetricKind::Gauge, help);
    for (kind, waiting) in &summary.kinds {
        oldest.sample(
            &[("kind", kind)],
            now.duration_since(waiting.since).as_secs_f64().max(0.0),
        );
    }
    let mut queues = page.family(
        "raddle_queue_ready",
        MetricKind::Gauge,
        "Tasks that wait for a worker, by queue.",
    );
    let mut others = 0;
    for (number, (queue, tasks)) in summary.ready.iter().enumerate() {
        match number < MAX_QUEUES {
            true => queues.sample(&[("queue", queue)], *tasks as f64),
            false => others += tasks,
        }
    }
    if others > 0 {
        queues.sample(&[("queue", OTHER)], others as f64);
    }
    let active = [TaskState::Spawning, TaskState::Running]
        .iter()
        .filter_map(|state| summary.states.get(state))
        .sum();
    for (name, help, value) in [
        (
            "raddle_tasks_delayed",
            "Tasks whose time has not come.",
            summary.delayed,
        ),
        (
            "raddle_tasks_paused",
            "Tasks that are held back on request.",
            summary.paused,
        ),
        ("raddle_tasks_active", "Tasks that workers have.", active),
        (
            "raddle_tasks_dead",
            "Tasks in the dead-letter queue.",
            summary.dead,
        ),
    ] {
        page.gauge(name, help, value as f64);
    }
    for (name, help, value) in [
        (
            "raddle_reclaims_total",
            "Tasks that were taken back from workers that were gone.",
            summary.reclaims,
        ),
        (
            "raddle_stale_writes_total",
            "Writes of lost attempts that were refused.",
            summary.stale_writes,
        ),
    ] {
        page.count(name, help, value);
    }
}

fn show_workers(page: &mut MetricsPage, workers: &[WorkerEntry]) {
    let mut counts = BTreeMap::<(&str, &str), u64>::new();
    for kind in kind::ALL {
        counts.insert((kind, WorkerStatus::Active.as_str()), 0);
    }
    let (mut slots, mut busy) = (0.0, 0.0);
    for worker in workers {
        let kind = kind::ALL
            .into_iter()
            .find(|kind| *kind == worker.info.kind)
            .unwrap_or(OTHER);
        *counts.entry((kind, worker.status.as_str())).or_default() += 1;
        let concurrency = f64::from(worker.info.concurrency);
        slots += concurrency;
        busy += worker.load * concurrency;
    }
    let mut alive = page.family(
        "raddle_workers",
        MetricKind::Gauge,
        "Workers and managers that are alive, by type and status.",
    );
    for ((kind, status), count) in counts {
        alive.sample(&[("type", kind), ("status", status)], count as f64);
    }
    page.gauge(
        "raddle_worker_slots",
        "How many tasks all workers can run at once.",
        slots,
    );
    page.gauge(
        "raddle_worker_slots_busy",
        "How many of these slots are in use.",
        busy.round(),
    );
}

#[cfg(test)]
mod tests {
    use raddle_model::{
        Tid,
        worker::{Heartbeat, WorkerInfo},
    };

    use super::*;

    #[test]
    fn every_kind_of_worker_is_told_apart_and_managers_are_not() {
        let entry = |(number, kind): (usize, &str)| {
            let tid = Tid::from_u64(1_700_000_000_000_000_000 + number as u64).unwrap();
            WorkerEntry::new(
                tid,
                WorkerInfo::new("w", kind),
                Heartbeat::default(),
                Timestamp::UNIX_EPOCH,
            )
        };
        let workers: Vec<_> = kind::ALL
            .into_iter()
            .chain(["prime", "unix"])
            .enumerate()
            .map(entry)
            .collect();
        let mut page = MetricsPage::default();
        show_workers(&mut page, &workers);
        let text = page.into_text();
        let count = |kind: &str, count: u32| {
            let sample = format!("raddle_workers{{type=\"{kind}\",status=\"active\"}} {count}\n");
            assert!(text.contains(&sample), "{sample}{text}");
        };
        kind::ALL.into_iter().for_each(|kind| count(kind, 1));
        count(OTHER, 2);
    }
}
