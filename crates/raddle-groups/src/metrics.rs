//! Metrics of a manager of groups.

use raddle_telemetry::metrics::{MetricKind, MetricsPage};

use crate::GroupSnapshot;

/// Adds the metrics of a manager to a page.
pub fn show_group(page: &mut MetricsPage, snapshot: &GroupSnapshot) {
    let mut wanted = page.family(
        "raddle_group_processes_wanted",
        MetricKind::Gauge,
        "Desired number of processes.",
    );
    for (process, census) in &snapshot.groups {
        wanted.sample(&[("process", process)], census.wanted as f64);
    }
    let mut processes = page.family(
        "raddle_group_processes",
        MetricKind::Gauge,
        "Current number of processes, by state.",
    );
    for (process, census) in &snapshot.groups {
        let states = [
            ("starting", census.starting),
            ("ready", census.ready),
            ("stopping", census.stopping),
        ];
        for (state, count) in states {
            processes.sample(&[("process", process), ("state", state)], count as f64);
        }
    }
    let help = "Replicas that are in crash-loop backoff.";
    let mut backing_off = page.family(
        "raddle_group_processes_backing_off",
        MetricKind::Gauge,
        help,
    );
    for (process, census) in &snapshot.groups {
        backing_off.sample(&[("process", process)], census.backing_off as f64);
    }
    page.count(
        "raddle_group_launch_total",
        "Processes started so far.",
        snapshot.started,
    );
}
