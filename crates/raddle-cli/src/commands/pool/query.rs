//! Queries the state of workers.

use std::{fmt, time::Duration};

use raddle_discovery::{WorkerMetadata, WorkerUid};
use raddle_rpc::{RpcError, connection::ControlConnection};
use raddle_tls::WorkerCredentials;
use serde_json::{Value, json};
use tokio::time::timeout;

/// How long a worker may take to answer. User code does not delay the answer, so a slower worker is
/// not healthy.
pub(super) const ANSWER: Duration = Duration::from_secs(1);

/// The activity that a worker reports.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WorkerActivity {
    pub(super) in_flight: u64,
    pub(super) taken: u64,
    pub(super) uptime: Duration,
    pub(super) is_stopping: bool,
    /// The identity that it reports.
    pub(super) who: Option<WorkerMetadata>,
}

/// A worker, and its report or the reason for its silence.
pub(super) struct QueriedWorker {
    pub(super) worker: WorkerMetadata,
    pub(super) answer: Result<WorkerActivity, QueryFailure>,
}

/// Why a worker did not report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum QueryFailure {
    /// It did not answer in time.
    Late,
    /// Another reason.
    Because(String),
}

impl QueriedWorker {
    /// The status in one word.
    pub(super) fn status(&self) -> &'static str {
        match &self.answer {
            Ok(WorkerActivity {
                is_stopping: true, ..
            }) => "stopping",
            Ok(_) => "listening",
            Err(_) => "no answer",
        }
    }

    /// As JSON.
    pub(super) fn record(&self, pool: &str) -> Value {
        let Self { worker, answer } = self;
        let doing = answer.as_ref().ok();
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
            "in_flight": doing.map(|doing| doing.in_flight),
            "taken": doing.map(|doing| doing.taken),
            "uptime_seconds": doing.map(|doing| doing.uptime.as_secs_f64()),
            "stopping": doing.map(|doing| doing.is_stopping),
            "error": error,
        })
    }
}

impl fmt::Display for QueryFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late => write!(f, "it said nothing for {ANSWER:?}"),
            Self::Because(why) => f.write_str(why),
        }
    }
}

impl From<RpcError> for QueryFailure {
    fn from(error: RpcError) -> Self {
        Self::Because(error.to_string())
    }
}

/// Queries all at once, and returns them in order.
pub(super) async fn all(
    workers: &[WorkerMetadata],
    own: Option<&WorkerCredentials>,
) -> Vec<QueriedWorker> {
    let ask = |worker: &WorkerMetadata| tokio::spawn(published(worker.clone(), own.cloned()));
    let asking: Vec<_> = workers.iter().map(ask).collect();
    let mut asked = Vec::new();
    for (worker, answer) in workers.iter().zip(asking) {
        let answer = answer
            .await
            .unwrap_or_else(|error| Err(QueryFailure::Because(error.to_string())));
        let who = answer.as_ref().ok().and_then(|doing| doing.who.clone());
        asked.push(QueriedWorker {
            worker: known(worker, who),
            answer,
        });
    }
    asked
}

/// Queries a published worker. The publication may be wrong, so the worker must report the same
/// uid.
pub(super) async fn published(
    worker: WorkerMetadata,
    own: Option<WorkerCredentials>,
) -> Result<WorkerActivity, QueryFailure> {
    once(&mut control(&worker, own.as_ref())?, &worker).await
}

/// Connects to a worker: over TLS if both have credentials.
pub(super) fn control(
    worker: &WorkerMetadata,
    own: Option<&WorkerCredentials>,
) -> Result<ControlConnection, QueryFailure> {
    match (worker.secure, own) {
        (true, None) => Err(QueryFailure::Because(
            "it serves over TLS: say who you are with --credentials-ca, --credentials-cert and --credentials-key"
                .into(),
        )),
        (false, Some(_)) => Err(QueryFailure::Because("it serves without TLS: ask it without credentials".into())),
        _ => Ok(ControlConnection::with_credentials(&worker.address, own)?),
    }
}

/// The uid to expect, or `None` where only the address is known.
pub(super) fn named(worker: &WorkerMetadata) -> Option<WorkerUid> {
    (worker.uid != WorkerUid::of_address(&worker.address)).then_some(worker.uid)
}

/// Merges the published metadata with what the worker reports.
fn known(worker: &WorkerMetadata, who: Option<WorkerMetadata>) -> WorkerMetadata {
    match (named(worker), who) {
        (None, Some(who)) => WorkerMetadata {
            address: worker.address.clone(),
            secure: worker.secure,
            ..who
        },
        _ => worker.clone(),
    }
}

/// Queries the worker at the other end, and checks its uid if one is expected.
pub(super) async fn once(
    control: &mut ControlConnection,
    worker: &WorkerMetadata,
) -> Result<WorkerActivity, QueryFailure> {
    let uid = named(worker);
    let info = match timeout(ANSWER, control.info()).await {
        Ok(Ok(info)) => info,
        Ok(Err(error)) if uid.is_none() && !worker.secure && !error.is_of_nobody() => {
            // Plain text to a TLS port fails in one of two ways, depending on which side closes
            // first.
            let flags = "--credentials-ca, --credentials-cert and --credentials-key";
            return Err(QueryFailure::Because(format!(
                "{error}; if it serves over TLS, say who you are with {flags}"
            )));
        }
        Ok(Err(error)) => return Err(error.into()),
        Err(_) => return Err(QueryFailure::Late),
    };
    let said = info.worker.as_ref().map(|worker| worker.uid.parse());
    if let (Some(uid), Some(said)) = (uid, said)
        && said != Ok(uid)
    {
        return Err(QueryFailure::Because(
            "another worker answers at its address".to_owned(),
        ));
    }
    let uptime = Duration::try_from_secs_f64(info.uptime).unwrap_or_default();
    // Metadata that could not be published is not accepted from the worker either.
    let who = info
        .worker
        .and_then(|worker| WorkerMetadata::try_from(worker).ok())
        .filter(|who| who.check().is_ok());
    Ok(WorkerActivity {
        in_flight: info.in_flight,
        taken: info.taken,
        uptime,
        is_stopping: info.stopping,
        who,
    })
}
