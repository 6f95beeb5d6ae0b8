//! `raddle worker list`: a table of workers.

use jiff::Timestamp;
use raddle_model::{WorkerEntry, worker::WorkerInfo};

use crate::{context::Context, error::Outcome, format, table::Table};

/// A table of workers: how busy each is, how much it has done, and which tasks it takes.
pub(super) fn render<'a>(
    [busy, done, from, what]: [&str; 4],
    workers: impl IntoIterator<Item = (&'a WorkerEntry, [String; 4])>,
) -> String {
    let now = Timestamp::now();
    let mut table = Table::new(&[
        "TID", "NAME", "TYPE", "STATUS", busy, done, "AGE", "PID", "HOST", from, what,
    ]);
    for (
        WorkerEntry {
            tid,
            info,
            status,
            started_at,
            ..
        },
        [busy, done, from, what],
    ) in workers
    {
        table.row([
            tid.to_string(),
            info.name.clone(),
            info.kind.clone(),
            status.as_str().into(),
            busy,
            done,
            format::age(*started_at, now),
            info.pid.to_string(),
            info.host.clone(),
            from,
            what,
        ]);
    }
    table.render()
}

pub(super) async fn list(context: &Context) -> Outcome {
    let workers = context.open_existing().await?.workers().await?;
    context.show(&workers, || {
        render(
            ["BUSY", "TASKS", "QUEUES", "CAPS"],
            workers.iter().map(|worker| (worker, columns(worker))),
        )
    })
}

/// The slots in use, of all; and how many of these share hosts.
fn busy_slots(info: &WorkerInfo, load: f64) -> String {
    let slots = info.concurrency;
    let busy = load * f64::from(slots);
    match info.shared {
        0 => format!("{busy:.0}/{slots}"),
        shared => format!("{busy:.0}/{slots}, {shared} shared"),
    }
}

/// The columns that depend on the kind of worker.
fn columns(worker: &WorkerEntry) -> [String; 4] {
    let WorkerEntry {
        info,
        load,
        spawned_count,
        ..
    } = worker;
    // A pool worker has no slots, and the broker does not know its calls.
    let [busy, tasks] = match info.takes_calls() {
        true => ["-".to_owned(), "-".to_owned()],
        false => [busy_slots(info, *load), spawned_count.to_string()],
    };
    [
        busy,
        tasks,
        info.queues.join(","),
        info.capabilities.to_string(),
    ]
}
