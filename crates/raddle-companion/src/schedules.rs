//! Requests about schedules.

use raddle_broker::Broker;
use raddle_client::schedule::{self, PutOutcome};
use raddle_model::Schedule;
use serde_json::{Value, json, value::RawValue};

use crate::{Failure, connection::Success};

pub(crate) async fn put(broker: &dyn Broker, written: &RawValue) -> Result<Success, Failure> {
    let schedule = Schedule::from_json(written.get())
        .map_err(|error| Failure::invalid(format!("the schedule cannot be used, {error}")))?;
    let put = schedule::put(broker, schedule, true).await?;
    let outcome = match &put {
        PutOutcome::Added(_) => "added",
        PutOutcome::Replaced(_) => "replaced",
        PutOutcome::Unchanged(_) => "unchanged",
    };
    let next = put.entry().due();
    Ok((json!({ "outcome": outcome, "next": next }), None))
}

pub(crate) async fn remove(broker: &dyn Broker, name: &str) -> Result<Success, Failure> {
    schedule::remove(broker, name).await?;
    Ok((Value::Null, None))
}

pub(crate) async fn list(broker: &dyn Broker) -> Result<Success, Failure> {
    let schedules = broker.schedules(None).await?;
    let list = serde_json::to_value(&schedules).map_err(Failure::invalid)?;
    Ok((list, None))
}
