//! `QueueExporter`: metrics of what waits in a broker, of its workers, and whether it answers.
//!
//! A scrape triggers a query, but not too often: after a slow query the exporter rests and shows
//! cached values. A scrape never waits long, because a hanging broker is worth reporting.

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

/// Exports metrics of a broker.
pub struct QueueExporter {
    broker: Arc<dyn Broker>,
    /// The query that runs, or the last one.
    running: Mutex<Option<RunningQuery>>,
    cache: watch::Sender<ExporterCache>,
}

struct RunningQuery {
    since: Instant,
    task: JoinHandle<()>,
}

/// Results of past queries.
#[derive(Clone, Debug, Default)]
struct ExporterCache {
    snapshot: Option<Arc<QueueSnapshot>>,
    /// When the last query ended.
    at: Option<Instant>,
    /// How long it took.
    took: Duration,
    /// Whether it failed.
    failed: bool,
}

#[derive(Debug)]
struct QueueSnapshot {
    summary: Summary,
    workers: Vec<WorkerEntry>,
}

/// Shortest time between two queries.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// The rest after a query, as a multiple of its duration.
const PAUSE_FACTOR: u32 = 50;
/// How long a scrape waits for the broker.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(2);
/// Most queues with their own sample: thousands of series would fill the memory of Prometheus.
const MAX_QUEUES: usize = 100;
/// Label for all other queues, and for managers, whose names users choose.
const OTHER: &str = "other";

impl QueueExporter {
    /// An exporter for this broker.
    pub fn new(broker: Arc<dyn Broker>) -> Self {
        Self {
            broker,
            running: Mutex::default(),
            cache: watch::Sender::default(),
        }
    }

    /// Adds current or cached values to a page.
    pub async fn show(&self, page: &mut MetricsPage) {
        let mut cache = self.cache.subscribe();
        if self.query_if_due() {
            // After this, cached values must do.
            let _ = timeout(SCRAPE_TIMEOUT, cache.changed()).await;
        }
        let latest = self.cache.borrow().clone();
        let is_up = latest.snapshot.is_some() && !latest.failed && !self.is_overdue();
        page.gauge(
            "raddle_broker_up",
            "Whether the broker answers.",
            f64::from(u8::from(is_up)),
        );
        page.gauge(
            "raddle_broker_query_seconds",
            "How long the last query of the broker took.",
            latest.took.as_secs_f64(),
        );
        if let Some(snapshot) = latest.snapshot {
            show_tasks(page, &snapshot.summary, Timestamp::now());
            show_workers(page, &snapshot.workers);
        }
    }

    /// Starts a query if one is due. Returns whether one runs.
    fn query_if_due(&self) -> bool {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running
            .as_ref()
            .is_some_and(|running| !running.task.is_finished())
        {
            return true;
        }
        let latest = self.cache.borrow().clone();
        let rest = MIN_PAUSE.max(latest.took * PAUSE_FACTOR);
        if !latest.failed && latest.at.is_some_and(|at| at.elapsed() < rest) {
            return false;
        }
        let task = tokio::spawn(query_into(Arc::clone(&self.broker), self.cache.clone()));
        *running = Some(RunningQuery {
            since: Instant::now(),
            task,
        });
        true
    }

    /// Whether the broker takes longer than a scrape waits, and much longer than before.
    fn is_overdue(&self) -> bool {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let took = self.cache.borrow().took;
        running.as_ref().is_some_and(|running| {
            !running.task.is_finished()
                && running.since.elapsed() >= SCRAPE_TIMEOUT.max(took.saturating_mul(3))
        })
    }
}

impl Drop for QueueExporter {
    fn drop(&mut self) {
        if let Some(running) = self
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            running.task.abort();
        }
    }
}

async fn query_into(broker: Arc<dyn Broker>, cache: watch::Sender<ExporterCache>) {
    let began = Instant::now();
    let found = query(&*broker).await;
    cache.send_modify(|cache| {
        (cache.at, cache.took) = (Some(Instant::now()), began.elapsed());
        match found {
            Ok(snapshot) => (cache.snapshot, cache.failed) = (Some(Arc::new(snapshot)), false),
            Err(error) => {
                if !cache.failed {
                    tracing::error!(%error, "the broker cannot be queried");
                }
                cache.failed = true;
            }
        }
    });
}

async fn query(broker: &dyn Broker) -> Result<QueueSnapshot> {
    let summary = broker
        .summarize(SummaryDetail {
            kinds: true,
            ..SummaryDetail::default()
        })
        .await?;
    Ok(QueueSnapshot {
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
        // One sample always exists, so that alert rules can compare it.
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
            "Tasks whose delay is not over.",
            summary.delayed,
        ),
        (
            "raddle_tasks_paused",
            "Tasks that were paused.",
            summary.paused,
        ),
        (
            "raddle_tasks_active",
            "Tasks that workers have claimed.",
            active,
        ),
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
            "Tasks that were reclaimed from dead workers.",
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
    fn counts_workers_by_kind_and_managers_as_other() {
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
