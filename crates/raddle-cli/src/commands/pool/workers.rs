//! `raddle pool workers`.

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
    let pools = find::meant(global, &args.find, args.target.as_deref()).await?;
    let mut asked: Vec<(&str, QueriedWorker)> = Vec::new();
    for pool in &pools {
        asked.extend(
            query_all(&pool.workers, own.as_ref())
                .await
                .into_iter()
                .map(|asked| (pool.name.as_str(), asked)),
        );
    }
    if global.json {
        let records: Vec<Value> = asked
            .iter()
            .map(|(pool, asked)| asked.record(pool))
            .collect();
        output::json(&records)?;
        return Ok(0);
    }
    output::raw(render(&asked).as_bytes())?;
    for (_, QueriedWorker { worker, answer }) in &asked {
        if let Err(why) = answer {
            note(
                global,
                &format!("worker {} does not answer: {why}", worker.uid),
            );
        }
    }
    Ok(0)
}

fn render(asked: &[(&str, QueriedWorker)]) -> String {
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
    for (pool, asked) in asked {
        let QueriedWorker { worker, answer } = asked;
        let [in_flight, taken, uptime] = match answer {
            Ok(doing) => [
                doing.in_flight.to_string(),
                doing.taken.to_string(),
                format::coarse(doing.uptime),
            ],
            Err(_) => ["-", "-", "-"].map(str::to_owned),
        };
        let tags: Vec<&str> = worker.tags.iter().map(String::as_str).collect();
        table.row([
            (*pool).to_owned(),
            worker.uid.to_string(),
            worker.pid.to_string(),
            asked.status().to_owned(),
            in_flight,
            taken,
            uptime,
            tags.join(","),
            worker.address.clone(),
        ]);
    }
    table.render()
}
