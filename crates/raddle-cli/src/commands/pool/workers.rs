//! `raddle pool workers`: a table of pool workers.

use raddle_view::pool::{QueriedWorker, query::query_all};
use serde_json::Value;

use super::{credentials, find, note};
use crate::{
    args::{Global, PoolWorkersArgs},
    error::Outcome,
    format, output,
    table::Table,
};

pub(super) async fn workers(global: &Global, args: &PoolWorkersArgs) -> Outcome {
    let own = credentials::load(&args.find.credentials)?;
    let pools = find::select_workers(global, &args.find, args.target.as_deref()).await?;
    let mut queried: Vec<(&str, QueriedWorker)> = Vec::new();
    for pool in &pools {
        queried.extend(
            query_all(&pool.workers, own.as_ref())
                .await
                .into_iter()
                .map(|queried| (pool.name.as_str(), queried)),
        );
    }
    if global.json {
        let records: Vec<Value> = queried
            .iter()
            .map(|(pool, queried)| queried.record(pool))
            .collect();
        output::print_json(&records)?;
        return Ok(0);
    }
    output::print_raw(render(&queried).as_bytes())?;
    for (_, QueriedWorker { worker, answer }) in &queried {
        if let Err(reason) = answer {
            note(
                global,
                &format!("worker {} does not answer: {reason}", worker.uid),
            );
        }
    }
    Ok(0)
}

fn render(queried: &[(&str, QueriedWorker)]) -> String {
    let mut table = Table::new(&[
        "POOL",
        "UID",
        "PID",
        "STATUS",
        "IN FLIGHT",
        "TAKEN",
        "UPTIME",
        "TAGS",
        "ADDRESS",
    ]);
    for (pool, queried) in queried {
        let QueriedWorker { worker, answer } = queried;
        let [in_flight, taken, uptime] = match answer {
            Ok(report) => [
                report.in_flight.to_string(),
                report.taken.to_string(),
                format::one_unit(report.uptime),
            ],
            Err(_) => ["-", "-", "-"].map(str::to_owned),
        };
        let tags: Vec<&str> = worker.tags.iter().map(String::as_str).collect();
        table.row([
            (*pool).to_owned(),
            worker.uid.to_string(),
            worker.pid.to_string(),
            queried.status().to_owned(),
            in_flight,
            taken,
            uptime,
            tags.join(","),
            worker.address.clone(),
        ]);
    }
    table.render()
}
