//! Asking workers how they are.

use std::{fmt, time::Duration};

use raddle_pool::{RpcError, Uid, WorkerMetadata, connection::Control, credentials::WorkerCredentials};
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
    /// Who it says that it is.
    pub(super) who: Option<WorkerMetadata>,
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
            "secure": worker.secure,
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
pub(super) async fn all(workers: &[WorkerMetadata], own: Option<&WorkerCredentials>) -> Vec<Asked> {
    let ask = |worker: &WorkerMetadata| tokio::spawn(published(worker.clone(), own.cloned()));
    let asking: Vec<_> = workers.iter().map(ask).collect();
    let mut asked = Vec::new();
    for (worker, answer) in workers.iter().zip(asking) {
        let answer = answer.await.unwrap_or_else(|error| Err(Silence::Because(error.to_string())));
        let who = answer.as_ref().ok().and_then(|doing| doing.who.clone());
        asked.push(Asked { worker: known(worker, who), answer });
    }
    asked
}

/// Asks a worker that was found. What is written of it may be wrong: who answers must be who it says.
pub(super) async fn published(worker: WorkerMetadata, own: Option<WorkerCredentials>) -> Result<Doing, Silence> {
    once(&mut control(&worker, own.as_ref())?, &worker).await
}

/// A way to speak to a worker: over TLS if we have credentials, and only if it has them, too.
pub(super) fn control(worker: &WorkerMetadata, own: Option<&WorkerCredentials>) -> Result<Control, Silence> {
    match (worker.secure, own) {
        (true, None) => Err(Silence::Because(
            "it serves over TLS: say who you are with --credentials-ca, --credentials-cert and --credentials-key"
                .into(),
        )),
        (false, Some(_)) => Err(Silence::Because("it serves without TLS: ask it without credentials".into())),
        _ => Ok(Control::with_credentials(&worker.address, own)?),
    }
}

/// Which worker it must be, unless nobody has said so: then all that is known is where it serves.
pub(super) fn named(worker: &WorkerMetadata) -> Option<Uid> {
    (worker.uid != Uid::of_address(&worker.address)).then_some(worker.uid)
}

/// What is known of a worker that was asked. Where it serves is known before.
fn known(worker: &WorkerMetadata, who: Option<WorkerMetadata>) -> WorkerMetadata {
    match (named(worker), who) {
        (None, Some(who)) => WorkerMetadata { address: worker.address.clone(), secure: worker.secure, ..who },
        _ => worker.clone(),
    }
}

/// Asks whoever is at the other end, who is to be this worker, if it is known which it is.
pub(super) async fn once(control: &mut Control, worker: &WorkerMetadata) -> Result<Doing, Silence> {
    let uid = named(worker);
    let info = match timeout(ANSWER, control.info()).await {
        Ok(Ok(info)) => info,
        Ok(Err(error)) if uid.is_none() && !worker.secure && !error.is_of_nobody() => {
            // What becomes of words in plain where TLS is spoken depends on who is quicker to hang up.
            let flags = "--credentials-ca, --credentials-cert and --credentials-key";
            return Err(Silence::Because(format!("{error}; if it serves over TLS, say who you are with {flags}")));
        }
        Ok(Err(error)) => return Err(error.into()),
        Err(_) => return Err(Silence::Late),
    };
    let said = info.worker.as_ref().map(|worker| worker.uid.parse());
    if let (Some(uid), Some(said)) = (uid, said)
        && said != Ok(uid)
    {
        return Err(Silence::Because("another worker answers at its address".to_owned()));
    }
    let uptime = Duration::try_from_secs_f64(info.uptime).unwrap_or_default();
    // What could not be published by it is not believed of it either.
    let who = info.worker.and_then(|worker| WorkerMetadata::try_from(worker).ok()).filter(|who| who.check().is_ok());
    Ok(Doing { in_flight: info.in_flight, taken: info.taken, uptime, is_stopping: info.stopping, who })
}
