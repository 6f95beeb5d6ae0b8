//! `raddle pool ping`: round trips to workers.

use std::time::{Duration, Instant};

use raddle_discovery::WorkerMetadata;
use raddle_rpc::connection::ControlConnection;
use raddle_tls::WorkerCredentials;
use raddle_view::pool::{QueryFailure, RoundTrips, query};
use serde_json::{Value, json};

use super::{credentials, find};
use crate::{
    args::{Global, PingArgs},
    error::{Outcome, TASK_FAILED},
    output, table,
};

/// A worker to ping. Its connection is kept, so that only round trips are measured.
struct PingTarget {
    worker: WorkerMetadata,
    /// The connection, or why it failed.
    control: Result<ControlConnection, QueryFailure>,
}

impl PingTarget {
    fn new(worker: WorkerMetadata, own: Option<&WorkerCredentials>) -> Self {
        Self {
            control: query::connect(&worker, own),
            worker,
        }
    }

    fn label(&self) -> String {
        query::expected_uid(&self.worker)
            .map_or_else(|| self.worker.address.clone(), |uid| uid.to_string())
    }

    async fn ping(&mut self) -> Result<Duration, QueryFailure> {
        let began = Instant::now();
        let control = self.control.as_mut().map_err(|error| error.clone())?;
        query::query(control, &self.worker).await?;
        Ok(began.elapsed())
    }

    fn record(&self, number: u32, answer: &Result<Duration, QueryFailure>) -> Value {
        let error = answer.as_ref().err().map(QueryFailure::to_string);
        let seconds = answer.as_ref().ok().map(Duration::as_secs_f64);
        let (uid, address) = (query::expected_uid(&self.worker), &self.worker.address);
        json!({ "uid": uid, "address": address, "seq": number, "seconds": seconds, "error": error })
    }
}

pub(super) async fn ping(global: &Global, args: &PingArgs) -> Outcome {
    let own = credentials::load(&args.find.credentials)?;
    let pools = find::select_workers(global, &args.find, args.target.as_deref()).await?;
    let target = match (&args.target, pools.as_slice()) {
        (Some(target), _) => target.clone(),
        (None, [pool]) => pool.name.clone(),
        (None, _) => "all".to_owned(),
    };
    let workers = pools.into_iter().flat_map(|pool| pool.workers);
    let mut targets: Vec<PingTarget> = workers
        .map(|worker| PingTarget::new(worker, own.as_ref()))
        .collect();
    let mut records = Vec::new();
    let (mut sent, mut times) = (0, Vec::new());
    for number in 1..=args.count {
        if number > 1 {
            tokio::time::sleep(args.interval.0).await;
        }
        // One after the other, so that pings do not delay each other.
        for worker in &mut targets {
            let answer = worker.ping().await;
            sent += 1;
            times.extend(answer.as_ref().ok());
            if global.json {
                records.push(worker.record(number, &answer));
            } else {
                output::print_line(table::printable(&reply_text(
                    &worker.label(),
                    number,
                    &answer,
                )))?;
            }
        }
    }
    let summary = RoundTrips::new(&mut times);
    if global.json {
        let in_seconds = |time: fn(&RoundTrips) -> Duration| {
            summary.as_ref().map(|summary| time(summary).as_secs_f64())
        };
        output::print_json(&json!({
            "target": target,
            "asked": sent,
            "answered": times.len(),
            "min_seconds": in_seconds(|summary| summary.min),
            "median_seconds": in_seconds(|summary| summary.median),
            "max_seconds": in_seconds(|summary| summary.max),
            "pings": records,
        }))?;
    } else {
        output::print_line(table::printable(&format!(
            "{target}: {sent} asked, {} answered",
            times.len()
        )))?;
        if let Some(RoundTrips { min, median, max }) = summary {
            let [min, median, max] = [min, median, max].map(millis);
            output::print_line(format!("round trip min/median/max {min}/{median}/{max} ms"))?;
        }
    }
    Ok(if times.len() == sent { 0 } else { TASK_FAILED })
}

fn reply_text(label: &str, number: u32, answer: &Result<Duration, QueryFailure>) -> String {
    match answer {
        Ok(time) => format!("{label}: seq={number} time={} ms", millis(*time)),
        Err(reason) => format!("{label}: seq={number} no answer: {reason}"),
    }
}

fn millis(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64() * 1e3)
}
