//! `raddle schedule list`.

use jiff::Timestamp;
use raddle_broker::ScheduleView;
use raddle_core::{Schedule, schedule::Entry};
use serde_json::{Value, json};

use super::warn_if_nobody_fires;
use crate::{context::Context, error::Outcome, format, output, table::Table};

pub(super) async fn list(context: &Context) -> Outcome {
    let broker = context.onlooker().await?;
    let schedules = broker.schedules(None).await?;
    if context.json {
        output::json(&schedules.iter().map(to_json).collect::<Vec<_>>())?;
        return Ok(0);
    }
    output::raw(render(&schedules).as_bytes())?;
    if schedules.iter().any(|view| view.entry.due().is_some()) {
        warn_if_nobody_fires(context, &*broker).await?;
    }
    Ok(0)
}

/// A schedule as programs are shown it. One that is paused keeps a time that it is not due at.
pub(super) fn to_json(view: &ScheduleView) -> Value {
    let mut shown = serde_json::to_value(view).expect("a schedule has only string keys");
    shown["next"] = json!(view.entry.due());
    shown
}

fn render(schedules: &[ScheduleView]) -> String {
    let mut table = Table::new(&["NAME", "WHEN", "NEXT", "LAST", "FIRED", "MISSED", "POLICY", "TASK", "NOTE"]);
    for ScheduleView { entry, task, .. } in schedules {
        let schedule = &entry.schedule;
        table.row([
            schedule.name.clone(),
            when(schedule),
            or_dash(entry.due()),
            or_dash(entry.last),
            entry.fired.to_string(),
            entry.missed.to_string(),
            schedule.missed.as_str().into(),
            task.map_or_else(|| "-".into(), |tid| tid.to_string()),
            note(entry),
        ]);
    }
    table.render()
}

/// What is to be said of it besides.
fn note(entry: &Entry) -> String {
    let of = entry.owner.as_deref().map(|owner| format!("of the file of '{owner}'"));
    let all: Vec<String> = entry.paused.then(|| "paused".to_owned()).into_iter().chain(of).collect();
    all.join(", ")
}

/// When it is due, in words.
pub(super) fn when(schedule: &Schedule) -> String {
    match (&schedule.every, &schedule.cron) {
        (Some(every), _) => format!("every {every}"),
        (None, Some(cron)) => format!("{cron} {}", schedule.zone()),
        (None, None) => "-".into(),
    }
}

pub(super) fn or_dash(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "-".into(), format::time)
}
