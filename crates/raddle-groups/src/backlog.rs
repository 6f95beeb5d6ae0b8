//! Waiting tasks that were made from events under an older version of the file.

use std::collections::BTreeMap;

use raddle_broker::{Broker, Result, TaskFilter};
use raddle_model::TaskState;

use super::{Process, process::is_event};

/// Most waiting tasks of a worker to check.
const LOOKED_AT: u32 = 1000;

/// Warns about waiting tasks that will run another target than the file names now: a task keeps the
/// spec that it was submitted with.
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
                "waiting tasks were made before the file was changed, and run the old target"
            );
        }
    }
    Ok(())
}

fn shown(target: &raddle_model::Target) -> String {
    serde_json::to_string(target).expect("a target has only string keys")
}
