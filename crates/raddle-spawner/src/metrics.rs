//! Metrics of a spawner.

use crate::SpawnerSnapshot;
use raddle_telemetry::metrics::{Metrics, MetricsPage};

/// Shows a spawner: its workers, and what they have done.
pub fn show_spawner(page: &mut MetricsPage, now: &SpawnerSnapshot, metrics: &Metrics) {
    let mut gauge = |name, help, value: f64| page.gauge(name, help, value);
    gauge(
        "warm_spawner_live_workers",
        "Workers that are starting, idle or busy.",
        now.live().into(),
    );
    gauge(
        "warm_spawner_idle_workers",
        "Workers that wait for a task.",
        now.idle.into(),
    );
    gauge(
        "raddle_spawner_warm_pool",
        "Idle workers that are wanted.",
        now.warm_pool.into(),
    );
    gauge(
        "raddle_spawner_pending",
        "Tasks that its workers could take, when it last looked.",
        now.pending as f64,
    );
    gauge(
        "raddle_spawner_backing_off",
        "Whether launches are held back because workers die.",
        u8::from(now.backing_off).into(),
    );
    page.count(
        "warm_spawner_launch_total",
        "Workers that were launched.",
        now.launched,
    );
    page.count(
        "raddle_spawner_failed_starts_total",
        "Workers that died before they were ready.",
        now.failed_starts,
    );
    let failed = now
        .launch_failures
        .iter()
        .map(|(obstacle, count)| (obstacle.as_str(), count));
    let help = "Launches that failed, by what was in the way.";
    page.counts(
        "raddle_spawner_launch_failures_total",
        help,
        "reason",
        failed,
    );
    metrics.show_hits(page);
    metrics.show(page);
}
