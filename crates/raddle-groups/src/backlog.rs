//! Tasks that wait for a worker, and were made of events when its file said something else.

use std::collections::BTreeMap;

use raddle_broker::{Broker, Result, TaskFilter};
use raddle_model::TaskState;

use super::{Process, process::is_event};

/// How many waiting tasks of a worker are looked at.
const LOOKED_AT: u32 = 1000;

/// Logs what tasks that wait will run where that is not what the file says now: a task is what it was submitted as.
pub(super) async fn log_outdated(broker: &dyn Broker, processes: &[Process]) -> Result<()> {
    for worker in processes.iter().flat_map(|process| &process.workers) {
        let Some(event) = worker.event() else {
            continue;
        };
        let filter = TaskFilter {
            states: vec![TaskState::Created],
            queue: Some(worker.slug.clone()),
            limit: LOOKED_AT,
            ..TaskFilter::default()
        };
        let mut outdated = BTreeMap::<String, usize>::new();
        for task in broker.tasks(filter).await? {
            if is_event(&task.spec) && task.spec.target != event.target {
                *outdated.entry(shown(&task.spec.target)).or_default() += 1;
            }
        }
        for (runs, tasks) in outdated {
            let (slug, now) = (&worker.slug, shown(&event.target));
            tracing::warn!(
                slug,
                tasks,
                %runs,
                %now,
                "tasks that wait were made before the file was changed, and run what it said then: what comes from now on runs what it says now"
            );
        }
    }
    Ok(())
}

fn shown(target: &raddle_model::Target) -> String {
    serde_json::to_string(target).expect("a target has only string keys")
}
