//! Runs a task in a process of this companion, as `raddle run` does.

use std::{ops::ControlFlow, sync::Arc};

use raddle_broker::Broker;
use raddle_model::Tid;
use raddle_worker::run::{RunOptions, RunOutcome, run_task};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use crate::{
    Failure,
    connection::{Replier, Success},
    tasks::{describe_end, parse_task},
};

/// Submits a task, runs it here unless it needs another worker, and returns how it ended. A request
/// that is cancelled leaves the task to other workers: its lease is not renewed any more.
pub(crate) async fn run(
    broker: Arc<dyn Broker>,
    spec: Box<RawValue>,
    parent: Option<Tid>,
    replier: &Replier,
) -> Result<Success, Failure> {
    let options = RunOptions {
        task: parse_task(&spec, parent)?,
        progress: false,
        inline: true,
    };
    // Nothing is sent: the program stops the task by its id.
    let (_commands, receiver) = mpsc::channel(1);
    let mut observe = |event: raddle_worker::run::RunEvent<'_>| {
        if let raddle_worker::run::RunEvent::OutputLost(what) = event {
            replier.note(what);
        }
        ControlFlow::Continue(())
    };
    match run_task(Arc::clone(&broker), options, receiver, &mut observe).await? {
        RunOutcome::Finished(task) => describe_end(&*broker, *task).await,
        RunOutcome::Recursive(tid) => Err(Failure::invalid(format!(
            "task {tid} has this unique key and waits for this program: give this one another key"
        ))),
        _ => Err(Failure::new("cancelled", "the task was interrupted")),
    }
}
