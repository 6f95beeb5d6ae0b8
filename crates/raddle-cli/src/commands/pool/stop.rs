//! `raddle pool stop`.

use std::time::Duration;

use raddle_pool::{
    WorkerMetadata,
    connection::Control,
    discovery::{Discovery, LocalDiscovery},
    worker::Patience,
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    ask::{self, Silence},
    find::{self, Pool, Target},
    note,
};
use crate::{
    args::{Global, PoolStopArgs},
    error::{Failure, Outcome, TASK_FAILED, TIMED_OUT},
    format, output, table,
};

/// How long a worker may take to end, beyond what its calls may.
const BEYOND: Duration = Duration::from_secs(2);

/// What became of a worker.
enum Stopped {
    /// It is gone.
    Gone(Calls),
    /// It is gone, and it was too late to ask what became of its calls.
    Lost,
    /// It has said that it will end, and is still there.
    Lingers(Calls),
    /// It has not answered in time.
    Silent,
    /// It cannot be told.
    Unable(String),
}

/// What became of the calls in flight.
#[derive(Clone, Copy)]
struct Calls {
    ended: u64,
    cancelled: u64,
}

pub(super) async fn stop(global: &Global, args: &PoolStopArgs) -> Outcome {
    let Pool { discovery, workers } = match find::target(&args.target)? {
        Target::Workers(pool) => pool,
        Target::Address(address) => {
            let instead = "give the worker's uid, which 'raddle pool workers' shows";
            return Err(Failure::Usage(format!("'{address}' is an address: {instead}")));
        }
    };
    // All of them are told first, so that they end side by side.
    let tell = |worker: &WorkerMetadata| tokio::spawn(end(discovery.clone(), worker.clone(), args.timeout));
    let told: Vec<_> = workers.iter().map(tell).collect();
    let (mut records, mut code) = (Vec::new(), 0);
    for (worker, stopped) in workers.iter().zip(told) {
        let stopped = stopped.await.unwrap_or_else(|error| Stopped::Unable(error.to_string()));
        code = code.max(stopped.code());
        if let Some(remark) = stopped.remark(worker) {
            note(global, &remark);
        }
        if global.json {
            records.push(stopped.record(worker));
        } else {
            output::line(table::printable(&format!("{} {}", worker.uid, stopped.told())))?;
        }
    }
    if global.json {
        output::json(&records)?;
    }
    Ok(code)
}

/// Stops a worker, and waits until it is gone.
async fn end(discovery: LocalDiscovery, worker: WorkerMetadata, patience: Patience) -> Stopped {
    // What is written of it may be wrong, and must not end another.
    if let Err(silence) = ask::published(worker.clone()).await {
        return match silence {
            _ if !is_there(&discovery, &worker) => Stopped::Lost,
            Silence::Late => Stopped::Silent,
            Silence::Because(why) => Stopped::Unable(why),
        };
    }
    let stopping = async { Control::new(&worker.address)?.stop(patience).await };
    let answer = match patience {
        Patience::Endless => Ok(stopping.await),
        Patience::For(time) => timeout(time.saturating_add(BEYOND), stopping).await,
        Patience::None => timeout(BEYOND, stopping).await,
    };
    let is_gone = match &answer {
        Ok(_) => timeout(BEYOND, gone(&discovery, &worker)).await.is_ok(),
        Err(_) => !is_there(&discovery, &worker),
    };
    let calls = answer.map(|answer| answer.map(|reply| Calls { ended: reply.ended, cancelled: reply.cancelled }));
    match (calls, is_gone) {
        (Ok(Ok(calls)), true) => Stopped::Gone(calls),
        (Ok(Ok(calls)), false) => Stopped::Lingers(calls),
        (_, true) => Stopped::Lost,
        (Ok(Err(error)), false) => Stopped::Unable(error.to_string()),
        (Err(_), false) => Stopped::Silent,
    }
}

/// Waits until the process that a worker was is gone.
async fn gone(discovery: &LocalDiscovery, worker: &WorkerMetadata) {
    // Before the first look, so that nothing is missed after it.
    let Ok(mut news) = discovery.subscribe(None).await else { return std::future::pending().await };
    while is_there(discovery, worker) {
        if news.next().await.is_none() {
            return std::future::pending().await;
        }
    }
}

/// Whether a worker is there, as the process that it was.
fn is_there(discovery: &LocalDiscovery, worker: &WorkerMetadata) -> bool {
    discovery.snapshot().iter().any(|other| other.uid == worker.uid && other.pid == worker.pid)
}

impl Stopped {
    fn code(&self) -> u8 {
        match self {
            Self::Gone(_) | Self::Lost => 0,
            Self::Lingers(_) | Self::Silent => TIMED_OUT,
            Self::Unable(_) => TASK_FAILED,
        }
    }

    fn status(&self) -> &'static str {
        match self {
            Self::Gone(_) | Self::Lost => "stopped",
            Self::Lingers(_) => "stopping",
            Self::Silent | Self::Unable(_) => "no answer",
        }
    }

    fn calls(&self) -> Option<Calls> {
        match self {
            Self::Gone(calls) | Self::Lingers(calls) => Some(*calls),
            Self::Lost | Self::Silent | Self::Unable(_) => None,
        }
    }

    fn told(&self) -> String {
        match self.calls() {
            Some(Calls { ended, cancelled }) => {
                format!("{}, {} ended, {cancelled} cancelled", self.status(), format::count(ended, "call"))
            }
            None => self.status().to_owned(),
        }
    }

    /// What there is to say besides.
    fn remark(&self, worker: &WorkerMetadata) -> Option<String> {
        let WorkerMetadata { uid, pid, .. } = worker;
        let instead = format!("'kill -9 {pid}' ends it");
        match self {
            Self::Gone(_) => None,
            Self::Lost => Some(format!("worker {uid} ended before it could say what became of its calls")),
            Self::Lingers(_) => Some(format!("worker {uid} has not ended yet: {instead}")),
            Self::Silent => Some(format!("worker {uid} does not answer: {instead}")),
            Self::Unable(why) => Some(format!("worker {uid} cannot be told to stop: {why}; {instead}")),
        }
    }

    fn record(&self, worker: &WorkerMetadata) -> Value {
        let calls = self.calls();
        let error = if let Self::Unable(why) = self { Some(why) } else { None };
        json!({
            "uid": worker.uid,
            "pid": worker.pid,
            "status": self.status(),
            "ended": calls.map(|calls| calls.ended),
            "cancelled": calls.map(|calls| calls.cancelled),
            "error": error,
        })
    }
}
