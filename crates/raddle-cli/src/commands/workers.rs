//! `raddle worker list`.

use jiff::Timestamp;
use raddle_core::WorkerEntry;

use crate::{context::Context, error::Outcome, format, output, table::Table};

pub(super) async fn list(context: &Context) -> Outcome {
    let workers = context.onlooker().await?.workers().await?;
    if context.json {
        output::json(&workers)?;
    } else {
        output::raw(render(&workers).as_bytes())?;
    }
    Ok(0)
}

fn render(workers: &[WorkerEntry]) -> String {
    let now = Timestamp::now();
    let mut table =
        Table::new(&["TID", "NAME", "TYPE", "STATUS", "BUSY", "TASKS", "AGE", "PID", "HOST", "QUEUES", "CAPS"]);
    for WorkerEntry { tid, info, status, load, spawned_count, started_at, .. } in workers {
        // One that takes calls has no slots, and nothing of what it does is known here.
        let [busy, tasks] = match info.takes_calls() {
            true => ["-".to_owned(), "-".to_owned()],
            false => {
                [format!("{:.0}/{}", load * f64::from(info.concurrency), info.concurrency), spawned_count.to_string()]
            }
        };
        table.row([
            tid.to_string(),
            info.name.clone(),
            info.kind.clone(),
            status.as_str().into(),
            busy,
            tasks,
            format::age(*started_at, now),
            info.pid.to_string(),
            info.host.clone(),
            info.queues.join(","),
            info.capabilities.to_string(),
        ]);
    }
    table.render()
}
