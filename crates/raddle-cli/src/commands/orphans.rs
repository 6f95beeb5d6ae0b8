//! `raddle requeue-orphans`: reclaims the tasks of dead workers, as live workers do at every lease
//! renewal.

use raddle_client::orphan_processes;
use raddle_view::reclaimed::ReclaimedTask;

use crate::{context::Context, error::Outcome, format};

pub(super) async fn requeue(context: &Context) -> Outcome {
    let broker = context.open_existing().await?;
    let reclaimed = broker.reclaim().await?;
    // Kills also processes of tasks that another process has reclaimed.
    orphan_processes::kill_orphans_of_broker(&*broker).await?;
    let orphans: Vec<_> = reclaimed.iter().filter_map(ReclaimedTask::new).collect();
    if orphans.is_empty() && !context.json {
        context.note("no task belongs to a dead worker");
    }
    context.show(&orphans, || orphans.iter().map(text).collect())
}

fn text(task: &ReclaimedTask) -> String {
    let ReclaimedTask {
        tid,
        worker,
        state,
        run_at,
        ..
    } = task;
    let became = match run_at {
        Some(at) if *at > jiff::Timestamp::now() => {
            format!("requeued, not before {}", format::time(*at))
        }
        Some(_) => "requeued".to_owned(),
        None => state.to_string(),
    };
    format!("{tid} {became} (worker {worker} is dead)\n")
}
