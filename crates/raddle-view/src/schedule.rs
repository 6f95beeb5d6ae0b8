//! Schedules and their due times.

use jiff::Timestamp;
use raddle_broker::{Broker, ScheduleView};
use raddle_client::schedule::{self, Error, zone};
use raddle_model::TaskState;
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
        let entry = &view.entry;
        let upcoming = match zone(entry.schedule.zone()) {
            Some(zone) if !entry.paused => entry.upcoming(&zone, count),
            _ => Vec::new(),
        };
        let task_state = match view.task {
            Some(tid) => broker.task(tid).await?.map(|task| task.state),
            None => None,
        };
        Ok(Self {
            view,
            upcoming,
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

/// Whether some live worker fires schedules.
pub async fn is_fired(broker: &dyn Broker) -> Result<bool, Error> {
    let workers = broker.workers().await?;
    Ok(workers.iter().any(|worker| schedule::fires(&worker.info)))
}
