//! Queries the workers of pools for their activity.

use std::{fmt, time::Duration};

use raddle_discovery::{WorkerMetadata, WorkerUid};
use raddle_rpc::{RpcError, connection::ControlConnection};
use raddle_tls::WorkerCredentials;
use serde_json::{Value, json};
use tokio::time::timeout;

/// How long a worker may take to answer. User code does not delay the answer, so a slower worker is
/// not healthy.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The activity that a worker reports.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerActivity {
    /// How many calls are in flight.
    pub in_flight: u64,
    /// How many calls it has taken.
    pub taken: u64,
    /// How long it has run.
    pub uptime: Duration,
    /// Whether it is stopping.
    pub is_stopping: bool,
    /// The identity that it reports.
    pub identity: Option<WorkerMetadata>,
}

/// A worker, and its report or the reason for its silence.
pub struct QueriedWorker {
    /// The worker.
    pub worker: WorkerMetadata,
    /// Its report.
    pub answer: Result<WorkerActivity, QueryFailure>,
}

/// Why a worker did not report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueryFailure {
    /// It did not answer in time.
    TimedOut,
    /// Another reason.
    Other(String),
}

impl QueriedWorker {
    /// The status in one word.
    pub fn status(&self) -> &'static str {
        match &self.answer {
            Ok(WorkerActivity {
                is_stopping: true, ..
            }) => "stopping",
            Ok(_) => "listening",
            Err(_) => "no answer",
        }
    }

    /// The worker as JSON.
    pub fn record(&self, pool: &str) -> Value {
        let Self { worker, answer } = self;
        let activity = answer.as_ref().ok();
        let error = answer.as_ref().err().map(QueryFailure::to_string);
        json!({
            "pool": pool,
            "uid": worker.uid,
            "pid": worker.pid,
            "address": worker.address,
            "version": worker.version,
            "tags": worker.tags,
            "extra": worker.extra,
            "secure": worker.secure,
            "in_flight": activity.map(|activity| activity.in_flight),
            "taken": activity.map(|activity| activity.taken),
            "uptime_seconds": activity.map(|activity| activity.uptime.as_secs_f64()),
            "stopping": activity.map(|activity| activity.is_stopping),
            "error": error,
        })
    }
}

impl fmt::Display for QueryFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => write!(f, "no answer within {ANSWER_TIMEOUT:?}"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

impl From<RpcError> for QueryFailure {
    fn from(error: RpcError) -> Self {
        Self::Other(error.to_string())
    }
}

/// Queries all workers at once, and returns them in order.
pub async fn query_all(
    workers: &[WorkerMetadata],
    own: Option<&WorkerCredentials>,
) -> Vec<QueriedWorker> {
    let spawn_query =
        |worker: &WorkerMetadata| tokio::spawn(query_published(worker.clone(), own.cloned()));
    let queries: Vec<_> = workers.iter().map(spawn_query).collect();
    let mut queried = Vec::new();
    for (worker, answer) in workers.iter().zip(queries) {
        let answer = answer
            .await
            .unwrap_or_else(|error| Err(QueryFailure::Other(error.to_string())));
        let identity = answer
            .as_ref()
            .ok()
            .and_then(|activity| activity.identity.clone());
        queried.push(QueriedWorker {
            worker: merge_metadata(worker, identity),
            answer,
        });
    }
    queried
}

/// Queries a published worker. The publication may be wrong, so the worker must report the same
/// uid.
pub async fn query_published(
    worker: WorkerMetadata,
    own: Option<WorkerCredentials>,
) -> Result<WorkerActivity, QueryFailure> {
    query(&mut connect(&worker, own.as_ref())?, &worker).await
}

/// Connects to a worker: over TLS if both have credentials.
pub fn connect(
    worker: &WorkerMetadata,
    own: Option<&WorkerCredentials>,
) -> Result<ControlConnection, QueryFailure> {
    match (worker.secure, own) {
        (true, None) => Err(QueryFailure::Other(
            "it serves over TLS: give --credentials-ca, --credentials-cert and --credentials-key"
                .into(),
        )),
        (false, Some(_)) => Err(QueryFailure::Other(
            "it serves without TLS: leave out the credentials".into(),
        )),
        _ => Ok(ControlConnection::with_credentials(&worker.address, own)?),
    }
}

/// The uid to expect, or `None` where only the address is known.
pub fn expected_uid(worker: &WorkerMetadata) -> Option<WorkerUid> {
    (worker.uid != WorkerUid::from_address(&worker.address)).then_some(worker.uid)
}

/// Merges the published metadata with what the worker reports.
fn merge_metadata(worker: &WorkerMetadata, identity: Option<WorkerMetadata>) -> WorkerMetadata {
    match (expected_uid(worker), identity) {
        (None, Some(identity)) => WorkerMetadata {
            address: worker.address.clone(),
            secure: worker.secure,
            ..identity
        },
        _ => worker.clone(),
    }
}

/// Queries the worker at the other end, and checks its uid if one is expected.
pub async fn query(
    control: &mut ControlConnection,
    worker: &WorkerMetadata,
) -> Result<WorkerActivity, QueryFailure> {
    let uid = expected_uid(worker);
    let info = match timeout(ANSWER_TIMEOUT, control.info()).await {
        Ok(Ok(info)) => info,
        Ok(Err(error)) if uid.is_none() && !worker.secure && !error.is_no_listener() => {
            // Plain text to a TLS port fails in one of two ways, depending on which side closes
            // first.
            let flags = "--credentials-ca, --credentials-cert and --credentials-key";
            return Err(QueryFailure::Other(format!(
                "{error}; if it serves over TLS, give {flags}"
            )));
        }
        Ok(Err(error)) => return Err(error.into()),
        Err(_) => return Err(QueryFailure::TimedOut),
    };
    let reported_uid = info.worker.as_ref().map(|worker| worker.uid.parse());
    if let (Some(uid), Some(reported)) = (uid, reported_uid)
        && reported != Ok(uid)
    {
        return Err(QueryFailure::Other(
            "another worker answers at its address".to_owned(),
        ));
    }
    let uptime = Duration::try_from_secs_f64(info.uptime).unwrap_or_default();
    // Metadata that could not be published is not accepted from the worker either.
    let identity = info
        .worker
        .and_then(|worker| WorkerMetadata::try_from(worker).ok())
        .filter(|identity| identity.validate().is_ok());
    Ok(WorkerActivity {
        in_flight: info.in_flight,
        taken: info.taken,
        uptime,
        is_stopping: info.stopping,
        identity,
    })
}
