//! Pools in `raddle task tree`: each is a tree of its workers, after the trees of tasks.

use raddle_view::pool::{QueriedWorker, query::query_all};
use serde_json::{Value, json};

use super::find;
use crate::{format, table};

/// All pools, as lines and as records. Empty if they cannot be listed: the user queried for tasks.
pub(in crate::commands) async fn trees() -> (String, Vec<Value>) {
    let (mut drawing, mut records) = (String::new(), Vec::new());
    for pool in find::local().unwrap_or_default() {
        let workers = query_all(&pool.workers, None).await;
        drawing.push_str(&draw(&pool.name, &workers));
        let below: Vec<Value> = workers
            .iter()
            .map(|queried| queried.record(&pool.name))
            .collect();
        records.push(json!({ "pool": pool.name, "children": below }));
    }
    (drawing, records)
}

fn draw(pool: &str, workers: &[QueriedWorker]) -> String {
    let mut text = format!("pool {}\n", table::printable(pool));
    for (index, queried) in workers.iter().enumerate() {
        let branch = if index + 1 == workers.len() {
            "└─ "
        } else {
            "├─ "
        };
        let activity = match &queried.answer {
            Ok(report) => format!(
                "{}, {} in flight",
                queried.status(),
                format::count(report.in_flight, "call")
            ),
            Err(_) => queried.status().to_owned(),
        };
        text.push_str(&format!(
            "{branch}{} pid {} ({activity})\n",
            queried.worker.uid, queried.worker.pid
        ));
    }
    text
}
