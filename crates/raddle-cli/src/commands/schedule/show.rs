//! `raddle schedule show`.

use raddle_broker::ScheduleView;
use raddle_fabric::schedule::{Error, zone};
use serde_json::json;

use super::{
    list::{or_dash, to_json, when},
    warn_if_nobody_fires,
};
use crate::{context::Context, error::Outcome, output};

pub(super) async fn show(context: &Context, name: &str, count: usize) -> Outcome {
    let broker = context.onlooker().await?;
    let view = broker.schedule(name).await?.ok_or_else(|| Error::Absent(name.into()))?;
    let ScheduleView { entry, task, .. } = &view;
    let schedule = &entry.schedule;
    let upcoming = match zone(schedule.zone()) {
        Some(zone) if !entry.paused => entry.upcoming(&zone, count),
        _ => Vec::new(),
    };
    if context.json {
        let mut shown = to_json(&view);
        shown["upcoming"] = json!(upcoming);
        output::json(&shown)?;
        return Ok(0);
    }
    let state = match *task {
        Some(tid) => match broker.task(tid).await? {
            Some(task) => format!("{tid} ({})", task.state),
            None => format!("{tid} (its record is gone)"),
        },
        None => "-".into(),
    };
    let rows = [
        ("name", schedule.name.clone()),
        ("due", when(schedule)),
        ("missed", format!("{}; {} left out until now", schedule.missed.as_str(), entry.missed)),
        ("lifetime", schedule.lifetime.map_or_else(|| "-".into(), |lifetime| lifetime.to_string())),
        ("jitter", schedule.jitter.map_or_else(|| "-".into(), |jitter| jitter.to_string())),
        ("paused", if entry.paused { "yes" } else { "no" }.into()),
        ("last", or_dash(entry.last)),
        ("fired", entry.fired.to_string()),
        ("last task", state),
        ("task", serde_json::to_string(&schedule.task).expect("a spec has only string keys")),
    ];
    for (key, value) in rows {
        output::line(format!("{:<10} {}", format!("{key}:"), crate::table::printable(&value)))?;
    }
    for (n, at) in upcoming.into_iter().enumerate() {
        output::line(format!("{:<10} {}", if n == 0 { "next:" } else { "" }, or_dash(Some(at))))?;
    }
    if entry.due().is_some() {
        warn_if_nobody_fires(context, &*broker).await?;
    }
    Ok(0)
}
