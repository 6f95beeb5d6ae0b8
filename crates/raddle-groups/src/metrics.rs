//! Metrics of a manager of groups.

use raddle_telemetry::metrics::{MetricKind, MetricsPage};

use crate::GroupSnapshot;

/// Adds the metrics of a manager to a page.
pub fn show_group(page: &mut MetricsPage, snapshot: &GroupSnapshot) {
    let mut wanted = page.family(
        "raddle_group_processes_wanted",
        MetricKind::Gauge,
        "Processes that there are to be.",
    );
    for (process, census) in &snapshot.groups {
        wanted.sample(&[("process", process)], census.wanted as f64);
    }
    let mut processes = page.family(
        "raddle_group_processes",
        MetricKind::Gauge,
        "Processes that there are, by what they do.",
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
    let help = "Processes that die as soon as they are started, and are held back.";
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
        "Processes that were started.",
        snapshot.started,
    );
}
