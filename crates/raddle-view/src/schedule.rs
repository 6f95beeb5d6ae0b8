//! Schedules and their due times.

use std::collections::BTreeMap;

use jiff::Timestamp;
use raddle_broker::{Broker, ScheduleView, TaskFilter};
use raddle_client::schedule::{self, Error, zone};
use raddle_model::{TaskState, schedule::ScheduleEntry};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

/// A schedule as JSON. A paused one keeps a time at which it is not due.
pub fn schedule_record(view: &ScheduleView) -> Value {
    let mut record = serde_json::to_value(view).expect("a schedule has only string keys");
    record["next"] = json!(view.entry.due());
    record
}

/// A schedule, with its next due times and its last task.
#[derive(Clone, Debug)]
pub struct ScheduleDetail {
    /// The schedule.
    pub view: ScheduleView,
    /// Its next due times.
    pub upcoming: Vec<Timestamp>,
    /// The state of its last task; `None` if there was none, or if its record is gone.
    pub task_state: Option<TaskState>,
}

impl ScheduleDetail {
    /// Reads a schedule, with `count` due times.
    pub async fn read(broker: &dyn Broker, name: &str, count: usize) -> Result<Self, Error> {
        let view = broker
            .schedule(name)
            .await?
            .ok_or_else(|| Error::Absent(name.into()))?;
        let task_state = match view.task {
            Some(tid) => broker.task(tid).await?.map(|task| task.state),
            None => None,
        };
        Ok(Self {
            upcoming: upcoming(&view.entry, count),
            view,
            task_state,
        })
    }

    /// The schedule as JSON.
    pub fn record(&self) -> Value {
        let mut record = schedule_record(&self.view);
        record["upcoming"] = json!(self.upcoming);
        record
    }
}

/// Reads all schedules by name, with `count` due times each.
pub async fn list_schedules(
    broker: &dyn Broker,
    count: usize,
) -> Result<Vec<ScheduleDetail>, Error> {
    let views = broker.schedules(None).await?;
    let filter = TaskFilter {
        among: Some(views.iter().filter_map(|view| view.task).collect()),
        ..TaskFilter::default()
    };
    let tasks: BTreeMap<_, _> = broker
        .tasks(filter)
        .await?
        .into_iter()
        .map(|task| (task.tid, task.state))
        .collect();
    let details = views.into_iter().map(|view| ScheduleDetail {
        upcoming: upcoming(&view.entry, count),
        task_state: view.task.and_then(|tid| tasks.get(&tid).copied()),
        view,
    });
    Ok(details.collect())
}

fn upcoming(entry: &ScheduleEntry, count: usize) -> Vec<Timestamp> {
    match zone(entry.schedule.zone()) {
        Some(zone) if !entry.paused => entry.upcoming(&zone, count),
        _ => Vec::new(),
    }
}

/// Whether some live worker fires schedules.
pub async fn is_fired(broker: &dyn Broker) -> Result<bool, Error> {
    let workers = broker.workers().await?;
    Ok(workers.iter().any(|worker| schedule::fires(&worker.info)))
}

impl Serialize for ScheduleDetail {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.record().serialize(serializer)
    }
}
