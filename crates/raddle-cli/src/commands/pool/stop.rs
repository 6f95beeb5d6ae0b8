//! `raddle pool stop`: stops pool workers, and reports the outcome of their calls.

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
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause between two checks whether a worker has exited.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The outcome of a stop.
enum StopOutcome {
    /// The worker has exited.
    Stopped(CallsOutcome),
    /// The worker has exited before it reported its calls.
    StoppedUnreported,
    /// The worker is stopping, and has not exited in time.
    StillRunning(CallsOutcome),
    /// The worker did not answer in time.
    NoAnswer,
    /// The request could not be sent.
    Failed(String),
}

/// The outcome of the calls in flight.
#[derive(Clone, Copy)]
struct CallsOutcome {
    ended: u64,
    cancelled: u64,
}

pub(super) async fn stop(global: &Global, args: &PoolStopArgs) -> Outcome {
    let own = credentials::load(&args.find.credentials)?;
    let pools = find::select_workers(global, &args.find, args.target.as_deref()).await?;
    // Send all requests first, so that the workers stop side by side.
    let mut stopping_workers = Vec::new();
    for pool in pools {
        for worker in pool.workers {
            let one = StopTarget {
                worker: worker.clone(),
                own: own.clone(),
                local: pool.local.clone(),
            };
            stopping_workers.push((
                worker,
                pool.local.is_some(),
                tokio::spawn(one.stop(args.timeout)),
            ));
        }
    }
    if stopping_workers.is_empty() {
        note(global, "no worker was found");
    }
    let (mut records, mut code) = (Vec::new(), 0);
    for (worker, is_here, stopped) in stopping_workers {
        let stopped = stopped
            .await
            .unwrap_or_else(|error| StopOutcome::Failed(error.to_string()));
        code = code.max(stopped.code());
        // Of a worker that was named by its address, only the address is known.
        let name = query::expected_uid(&worker)
            .map_or_else(|| worker.address.clone(), |uid| uid.to_string());
        if let Some(hint) = stopped.hint(&name, is_here.then_some(worker.pid)) {
            note(global, &hint);
        }
        if global.json {
            records.push(stopped.record(&worker));
        } else {
            output::print_line(table::printable(&format!("{name} {}", stopped.text())))?;
        }
    }
    if global.json {
        output::print_json(&records)?;
    }
    Ok(code)
}

/// A worker to stop.
struct StopTarget {
    worker: WorkerMetadata,
    own: Option<WorkerCredentials>,
    /// The local discovery that knows its process, if it runs on this machine.
    local: Option<LocalDiscovery>,
}

impl StopTarget {
    /// Stops the worker, and waits for its exit.
    async fn stop(self, mode: StopMode) -> StopOutcome {
        // Checks the uid: a wrong publication must not stop another worker.
        if let Err(failure) = query::query_published(self.worker.clone(), self.own.clone()).await {
            return match failure {
                _ if self.has_exited() => StopOutcome::StoppedUnreported,
                QueryFailure::TimedOut => StopOutcome::NoAnswer,
                QueryFailure::Other(why) => StopOutcome::Failed(why),
            };
        }
        let stopping = async {
            Ok(query::connect(&self.worker, self.own.as_ref())?
                .stop(mode)
                .await?)
        };
        let answer: Result<Result<_, QueryFailure>, _> = match mode {
            StopMode::Drain => Ok(stopping.await),
            StopMode::DrainFor(time) => timeout(time.saturating_add(EXIT_TIMEOUT), stopping).await,
            StopMode::Cancel => timeout(EXIT_TIMEOUT, stopping).await,
        };
        let has_exited = match &answer {
            // The request was refused: do not wait for an exit.
            Ok(Err(_)) if self.local.is_none() => false,
            Ok(_) => timeout(EXIT_TIMEOUT, self.wait_for_exit()).await.is_ok(),
            Err(_) => self.has_exited(),
        };
        let calls = answer.map(|answer| {
            answer.map(|reply| CallsOutcome {
                ended: reply.ended,
                cancelled: reply.cancelled,
            })
        });
        match (calls, has_exited) {
            (Ok(Ok(calls)), true) => StopOutcome::Stopped(calls),
            (Ok(Ok(calls)), false) => StopOutcome::StillRunning(calls),
            (_, true) => StopOutcome::StoppedUnreported,
            (Ok(Err(error)), false) => StopOutcome::Failed(error.to_string()),
            (Err(_), false) => StopOutcome::NoAnswer,
        }
    }

    /// Waits until its process has exited or, for a remote worker, its address no longer answers.
    async fn wait_for_exit(&self) {
        loop {
            let has_exited = match &self.local {
                Some(_) => self.has_exited(),
                None => query::query_published(self.worker.clone(), self.own.clone())
                    .await
                    .is_err(),
            };
            if has_exited {
                return;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether its process is known to have exited.
    fn has_exited(&self) -> bool {
        let is_same =
            |other: &WorkerMetadata| other.uid == self.worker.uid && other.pid == self.worker.pid;
        self.local
            .as_ref()
            .is_some_and(|discovery| !discovery.snapshot().iter().any(is_same))
    }
}

impl StopOutcome {
    fn code(&self) -> u8 {
        match self {
            Self::Stopped(_) | Self::StoppedUnreported => 0,
            Self::StillRunning(_) | Self::NoAnswer => TIMED_OUT,
            Self::Failed(_) => TASK_FAILED,
        }
    }

    fn status(&self) -> &'static str {
        match self {
            Self::Stopped(_) | Self::StoppedUnreported => "stopped",
            Self::StillRunning(_) => "stopping",
            Self::NoAnswer | Self::Failed(_) => "no answer",
        }
    }

    fn calls(&self) -> Option<CallsOutcome> {
        match self {
            Self::Stopped(calls) | Self::StillRunning(calls) => Some(*calls),
            Self::StoppedUnreported | Self::NoAnswer | Self::Failed(_) => None,
        }
    }

    fn text(&self) -> String {
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
    fn hint(&self, name: &str, pid: Option<u32>) -> Option<String> {
        let instead = |before: &str| {
            pid.map(|pid| format!("{before}kill it with 'kill -9 {pid}'"))
                .unwrap_or_default()
        };
        match self {
            Self::Stopped(_) => None,
            Self::StoppedUnreported => Some(format!(
                "worker {name} exited before it reported the outcome of its calls"
            )),
            Self::StillRunning(_) => {
                Some(format!("worker {name} has not exited yet{}", instead(": ")))
            }
            Self::NoAnswer => Some(format!("worker {name} does not answer{}", instead(": "))),
            Self::Failed(why) => Some(format!("cannot stop worker {name}: {why}{}", instead("; "))),
        }
    }

    fn record(&self, worker: &WorkerMetadata) -> Value {
        let calls = self.calls();
        let error = if let Self::Failed(why) = self {
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
