//! `raddle pool list`: a table of local pools.

use raddle_view::pool::FoundWorkers;
use serde_json::Value;

use super::find;
use crate::{args::Global, error::Outcome, output, table::Table};

pub(super) fn list(global: &Global) -> Outcome {
    let pools = find::local()?;
    if global.json {
        let records: Vec<Value> = pools.iter().map(FoundWorkers::record).collect();
        output::print_json(&records)?;
        return Ok(0);
    }
    let mut table = Table::new(&["POOL", "WORKERS", "TAGS"]);
    for pool in &pools {
        let tags: Vec<&str> = pool.tags().into_iter().collect();
        table.row([
            pool.name.clone(),
            pool.workers.len().to_string(),
            tags.join(","),
        ]);
    }
    output::print_raw(table.render().as_bytes())?;
    Ok(0)
}
