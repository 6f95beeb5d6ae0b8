//! Pools in `raddle task tree`: each a tree of its workers, beside those of the tasks.

use raddle_view::pool::{QueriedWorker, query::query_all};
use serde_json::{Value, json};

use super::find;
use crate::{format, table};

/// All pools, as lines and as records. Empty if they cannot be listed: the user asked for tasks.
pub(in crate::commands) async fn trees() -> (String, Vec<Value>) {
    let (mut drawing, mut records) = (String::new(), Vec::new());
    for pool in find::all().unwrap_or_default() {
        let workers = query_all(&pool.workers, None).await;
        drawing.push_str(&draw(&pool.name, &workers));
        let below: Vec<Value> = workers
            .iter()
            .map(|asked| asked.record(&pool.name))
            .collect();
        records.push(json!({ "pool": pool.name, "children": below }));
    }
    (drawing, records)
}

fn draw(pool: &str, workers: &[QueriedWorker]) -> String {
    let mut text = format!("pool {}\n", table::printable(pool));
    for (place, asked) in workers.iter().enumerate() {
        let branch = if place + 1 == workers.len() {
            "└─ "
        } else {
            "├─ "
        };
        let does = match &asked.answer {
            Ok(doing) => format!(
                "{}, {} in flight",
                asked.status(),
                format::count(doing.in_flight, "call")
            ),
            Err(_) => asked.status().to_owned(),
        };
        text.push_str(&format!(
            "{branch}{} pid {} ({does})\n",
            asked.worker.uid, asked.worker.pid
        ));
    }
    text
}
