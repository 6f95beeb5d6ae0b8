//! `raddle pool stop`.

use std::time::Duration;

use raddle_pool::{WorkerMetadata, credentials::WorkerCredentials, discovery::LocalDiscovery, worker::Patience};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{
    ask::{self, Silence},
    credentials, find, note,
};
use crate::{
    args::{Global, PoolStopArgs},
    error::{Outcome, TASK_FAILED, TIMED_OUT},
    format, output, table,
};

/// How long a worker may take to end, beyond what its calls may.
const BEYOND: Duration = Duration::from_secs(2);
/// How often it is looked whether a worker has ended.
const AGAIN: Duration = Duration::from_millis(50);

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
    let own = credentials::load(&args.find.credentials)?;
    let pools = find::meant(global, &args.find, args.target.as_deref()).await?;
    // All of them are told first, so that they end side by side.
    let mut told = Vec::new();
    for pool in pools {
        for worker in pool.workers {
            let one = One { worker: worker.clone(), own: own.clone(), local: pool.local.clone() };
            told.push((worker, pool.local.is_some(), tokio::spawn(one.end(args.timeout))));
        }
    }
    if told.is_empty() {
        note(global, "no worker was found");
    }
    let (mut records, mut code) = (Vec::new(), 0);
    for (worker, is_here, stopped) in told {
        let stopped = stopped.await.unwrap_or_else(|error| Stopped::Unable(error.to_string()));
        code = code.max(stopped.code());
        // All that is known of one that was named by its address.
        let who = ask::named(&worker).map_or_else(|| worker.address.clone(), |uid| uid.to_string());
        if let Some(remark) = stopped.remark(&who, is_here.then_some(worker.pid)) {
            note(global, &remark);
        }
        if global.json {
            records.push(stopped.record(&worker));
        } else {
            output::line(table::printable(&format!("{who} {}", stopped.told())))?;
        }
    }
    if global.json {
        output::json(&records)?;
    }
    Ok(code)
}

/// A worker that is to stop.
struct One {
    worker: WorkerMetadata,
    own: Option<WorkerCredentials>,
    /// What knows of its process, if that is on this machine.
    local: Option<LocalDiscovery>,
}

impl One {
    /// Stops it, and waits until it is gone.
    async fn end(self, patience: Patience) -> Stopped {
        // What is written of it may be wrong, and must not end another.
        if let Err(silence) = ask::published(self.worker.clone(), self.own.clone()).await {
            return match silence {
                _ if self.is_gone() => Stopped::Lost,
                Silence::Late => Stopped::Silent,
                Silence::Because(why) => Stopped::Unable(why),
            };
        }
        let stopping = async { Ok(ask::control(&self.worker, self.own.as_ref())?.stop(patience).await?) };
        let answer: Result<Result<_, Silence>, _> = match patience {
            Patience::Endless => Ok(stopping.await),
            Patience::For(time) => timeout(time.saturating_add(BEYOND), stopping).await,
            Patience::None => timeout(BEYOND, stopping).await,
        };
        let is_gone = match &answer {
            // Who may not stop it need not wait for that.
            Ok(Err(_)) if self.local.is_none() => false,
            Ok(_) => timeout(BEYOND, self.gone()).await.is_ok(),
            Err(_) => self.is_gone(),
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

    /// Waits until it is gone: the process that it was or, of one elsewhere, whoever answered at its address.
    async fn gone(&self) {
        loop {
            let is_gone = match &self.local {
                Some(_) => self.is_gone(),
                None => ask::published(self.worker.clone(), self.own.clone()).await.is_err(),
            };
            if is_gone {
                return;
            }
            sleep(AGAIN).await;
        }
    }

    /// Whether the process that it was is known to be gone.
    fn is_gone(&self) -> bool {
        let is_it = |other: &WorkerMetadata| other.uid == self.worker.uid && other.pid == self.worker.pid;
        self.local.as_ref().is_some_and(|discovery| !discovery.snapshot().iter().any(is_it))
    }
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

    /// What there is to say besides, of a process of this machine if it has a number.
    fn remark(&self, who: &str, pid: Option<u32>) -> Option<String> {
        let instead = |before: &str| pid.map(|pid| format!("{before}'kill -9 {pid}' ends it")).unwrap_or_default();
        match self {
            Self::Gone(_) => None,
            Self::Lost => Some(format!("worker {who} ended before it could say what became of its calls")),
            Self::Lingers(_) => Some(format!("worker {who} has not ended yet{}", instead(": "))),
            Self::Silent => Some(format!("worker {who} does not answer{}", instead(": "))),
            Self::Unable(why) => Some(format!("worker {who} cannot be told to stop: {why}{}", instead("; "))),
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
