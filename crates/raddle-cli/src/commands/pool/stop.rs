//! `raddle pool stop`.

use std::time::Duration;

use raddle_discovery::{LocalDiscovery, WorkerMetadata};
use raddle_rpc::worker::StopMode;
use raddle_tls::WorkerCredentials;
use raddle_view::pool::{QueryFailure, query};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{credentials, find, note};
use crate::{
    args::{Global, PoolStopArgs},
    error::{Outcome, TASK_FAILED, TIMED_OUT},
    format, output, table,
};

/// How long a worker may take to exit after its calls.
const BEYOND: Duration = Duration::from_secs(2);
/// The pause between two checks whether a worker has exited.
const AGAIN: Duration = Duration::from_millis(50);

/// The outcome of a stop.
enum StopOutcome {
    /// The worker has exited.
    Gone(CallsOutcome),
    /// The worker has exited before it could report its calls.
    Lost,
    /// The worker is stopping, and has not exited in time.
    Lingers(CallsOutcome),
    /// The worker did not answer in time.
    Silent,
    /// The request could not be sent.
    Unable(String),
}

/// The outcome of the calls in flight.
#[derive(Clone, Copy)]
struct CallsOutcome {
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
            let one = StopTarget {
                worker: worker.clone(),
                own: own.clone(),
                local: pool.local.clone(),
            };
            told.push((
                worker,
                pool.local.is_some(),
                tokio::spawn(one.end(args.timeout)),
            ));
        }
    }
    if told.is_empty() {
        note(global, "no worker was found");
    }
    let (mut records, mut code) = (Vec::new(), 0);
    for (worker, is_here, stopped) in told {
        let stopped = stopped
            .await
            .unwrap_or_else(|error| StopOutcome::Unable(error.to_string()));
        code = code.max(stopped.code());
        // An address is all that is known of a worker that was named by it.
        let who = query::expected_uid(&worker)
            .map_or_else(|| worker.address.clone(), |uid| uid.to_string());
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
struct StopTarget {
    worker: WorkerMetadata,
    own: Option<WorkerCredentials>,
    /// The local discovery that knows its process, if it runs on this machine.
    local: Option<LocalDiscovery>,
}

impl StopTarget {
    /// Stops it, and waits until it is gone.
    async fn end(self, patience: StopMode) -> StopOutcome {
        // A wrong publication must not stop another worker.
        if let Err(silence) = query::query_published(self.worker.clone(), self.own.clone()).await {
            return match silence {
                _ if self.is_gone() => StopOutcome::Lost,
                QueryFailure::TimedOut => StopOutcome::Silent,
                QueryFailure::Other(why) => StopOutcome::Unable(why),
            };
        }
        let stopping = async {
            Ok(query::connect(&self.worker, self.own.as_ref())?
                .stop(patience)
                .await?)
        };
        let answer: Result<Result<_, QueryFailure>, _> = match patience {
            StopMode::Drain => Ok(stopping.await),
            StopMode::DrainFor(time) => timeout(time.saturating_add(BEYOND), stopping).await,
            StopMode::Cancel => timeout(BEYOND, stopping).await,
        };
        let is_gone = match &answer {
            // The request was refused: do not wait for an exit.
            Ok(Err(_)) if self.local.is_none() => false,
            Ok(_) => timeout(BEYOND, self.gone()).await.is_ok(),
            Err(_) => self.is_gone(),
        };
        let calls = answer.map(|answer| {
            answer.map(|reply| CallsOutcome {
                ended: reply.ended,
                cancelled: reply.cancelled,
            })
        });
        match (calls, is_gone) {
            (Ok(Ok(calls)), true) => StopOutcome::Gone(calls),
            (Ok(Ok(calls)), false) => StopOutcome::Lingers(calls),
            (_, true) => StopOutcome::Lost,
            (Ok(Err(error)), false) => StopOutcome::Unable(error.to_string()),
            (Err(_), false) => StopOutcome::Silent,
        }
    }

    /// Waits until its process has exited or, for a remote worker, its address no longer answers.
    async fn gone(&self) {
        loop {
            let is_gone = match &self.local {
                Some(_) => self.is_gone(),
                None => query::query_published(self.worker.clone(), self.own.clone())
                    .await
                    .is_err(),
            };
            if is_gone {
                return;
            }
            sleep(AGAIN).await;
        }
    }

    /// Whether its process is known to have exited.
    fn is_gone(&self) -> bool {
        let is_it =
            |other: &WorkerMetadata| other.uid == self.worker.uid && other.pid == self.worker.pid;
        self.local
            .as_ref()
            .is_some_and(|discovery| !discovery.snapshot().iter().any(is_it))
    }
}

impl StopOutcome {
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

    fn calls(&self) -> Option<CallsOutcome> {
        match self {
            Self::Gone(calls) | Self::Lingers(calls) => Some(*calls),
            Self::Lost | Self::Silent | Self::Unable(_) => None,
        }
    }

    fn told(&self) -> String {
        match self.calls() {
            Some(CallsOutcome { ended, cancelled }) => {
                format!(
                    "{}, {} ended, {cancelled} cancelled",
                    self.status(),
                    format::count(ended, "call")
                )
            }
            None => self.status().to_owned(),
        }
    }

    /// A hint about a local process, if its pid is known.
    fn remark(&self, who: &str, pid: Option<u32>) -> Option<String> {
        let instead = |before: &str| {
            pid.map(|pid| format!("{before}'kill -9 {pid}' ends it"))
                .unwrap_or_default()
        };
        match self {
            Self::Gone(_) => None,
            Self::Lost => Some(format!(
                "worker {who} ended before it could say what became of its calls"
            )),
            Self::Lingers(_) => Some(format!("worker {who} has not ended yet{}", instead(": "))),
            Self::Silent => Some(format!("worker {who} does not answer{}", instead(": "))),
            Self::Unable(why) => Some(format!(
                "worker {who} cannot be told to stop: {why}{}",
                instead("; ")
            )),
        }
    }

    fn record(&self, worker: &WorkerMetadata) -> Value {
        let calls = self.calls();
        let error = if let Self::Unable(why) = self {
            Some(why)
        } else {
            None
        };
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
