//! Asking workers how they are.

use std::{fmt, time::Duration};

use raddle_pool::{RpcError, Uid, WorkerMetadata, connection::Control};
use serde_json::{Value, json};
use tokio::time::timeout;

/// How long a worker may take to answer. No code of a user's holds it up, so that one that takes longer is not well.
pub(super) const ANSWER: Duration = Duration::from_secs(1);

/// What a worker says that it is doing.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Doing {
    pub(super) in_flight: u64,
    pub(super) taken: u64,
    pub(super) uptime: Duration,
    pub(super) is_stopping: bool,
}

/// A worker, and what it says, or why it says nothing.
pub(super) struct Asked {
    pub(super) worker: WorkerMetadata,
    pub(super) answer: Result<Doing, Silence>,
}

/// Why a worker says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// It has had its time.
    Late,
    /// Something else.
    Because(String),
}

impl Asked {
    /// One word for what it does.
    pub(super) fn status(&self) -> &'static str {
        match &self.answer {
            Ok(Doing { is_stopping: true, .. }) => "stopping",
            Ok(_) => "listening",
            Err(_) => "no answer",
        }
    }

    /// As JSON.
    pub(super) fn record(&self, pool: &str) -> Value {
        let Self { worker, answer } = self;
        let doing = answer.as_ref().ok();
        let error = answer.as_ref().err().map(Silence::to_string);
        json!({
            "pool": pool,
            "uid": worker.uid,
            "pid": worker.pid,
            "address": worker.address,
            "version": worker.version,
            "tags": worker.tags,
            "extra": worker.extra,
            "in_flight": doing.map(|doing| doing.in_flight),
            "taken": doing.map(|doing| doing.taken),
            "uptime_seconds": doing.map(|doing| doing.uptime.as_secs_f64()),
            "stopping": doing.map(|doing| doing.is_stopping),
            "error": error,
        })
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late => write!(f, "it said nothing for {ANSWER:?}"),
            Self::Because(why) => f.write_str(why),
        }
    }
}

impl From<RpcError> for Silence {
    fn from(error: RpcError) -> Self {
        Self::Because(error.to_string())
    }
}

/// Asks all of them at once. They come back in their order.
pub(super) async fn all(workers: &[WorkerMetadata]) -> Vec<Asked> {
    let asking: Vec<_> = workers.iter().map(|worker| tokio::spawn(published(worker.clone()))).collect();
    let mut asked = Vec::new();
    for (worker, answer) in workers.iter().zip(asking) {
        let answer = answer.await.unwrap_or_else(|error| Err(Silence::Because(error.to_string())));
        asked.push(Asked { worker: worker.clone(), answer });
    }
    asked
}

/// Asks a worker that was found. What is written of it may be wrong: who answers must be who it says.
pub(super) async fn published(worker: WorkerMetadata) -> Result<Doing, Silence> {
    once(&mut Control::new(&worker.address)?, Some(worker.uid)).await
}

/// Asks whoever is at the other end, who is to be this worker, if one is named.
pub(super) async fn once(control: &mut Control, uid: Option<Uid>) -> Result<Doing, Silence> {
    let info = match timeout(ANSWER, control.info()).await {
        Ok(answer) => answer?,
        Err(_) => return Err(Silence::Late),
    };
    let said = info.worker.map(|worker| worker.uid);
    if let (Some(uid), Some(said)) = (uid, said)
        && said.parse() != Ok(uid)
    {
        return Err(Silence::Because("another worker answers at its address".to_owned()));
    }
    let uptime = Duration::try_from_secs_f64(info.uptime).unwrap_or_default();
    Ok(Doing { in_flight: info.in_flight, taken: info.taken, uptime, is_stopping: info.stopping })
}
