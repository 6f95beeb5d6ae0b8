//! `raddle pool list`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::find::{self, FoundWorkers};
use crate::{args::Global, error::Outcome, output, table::Table};

pub(super) fn list(global: &Global) -> Outcome {
    let pools = find::all()?;
    if global.json {
        let records: Vec<Value> = pools.iter().map(record).collect();
        output::json(&records)?;
        return Ok(0);
    }
    let mut table = Table::new(&["POOL", "WORKERS", "TAGS"]);
    for pool in &pools {
        let tags: Vec<&str> = tags(pool).into_iter().collect();
        table.row([
            pool.name.clone(),
            pool.workers.len().to_string(),
            tags.join(","),
        ]);
    }
    output::raw(table.render().as_bytes())?;
    Ok(0)
}

fn record(pool: &FoundWorkers) -> Value {
    json!({ "name": pool.name, "workers": pool.workers.len(), "tags": tags(pool) })
}

/// The tags of all its workers.
fn tags(pool: &FoundWorkers) -> BTreeSet<&str> {
    pool.workers
        .iter()
        .flat_map(|worker| &worker.tags)
        .map(String::as_str)
        .collect()
}
