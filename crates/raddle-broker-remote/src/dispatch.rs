//! One call: from the request to the encoded reply.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use raddle_model::{Tid, frame::encode};
use tokio::sync::mpsc;

use super::{
    container_clients::ContainerClient,
    protocol::{MAX_REPLY, RenewalRequest, ToClient},
};
use raddle_broker::{
    Broker, Call, Error, LeaseRenewer, LeaseStatus, LeasedTask, Release, Reply, Result,
};

/// An encoded reply.
pub(super) struct EncodedReply {
    pub(super) frame: Vec<u8>,
    pub(super) taken: Option<UndeliveredTasks>,
}

/// Claims that are not delivered yet. Unless they are [delivered](Self::delivered), they are
/// released on drop.
pub(super) struct UndeliveredTasks {
    back: Vec<Release>,
    returns: ReturnSender,
}

/// Sends undelivered claims to the task that releases them.
pub(super) type ReturnSender = mpsc::UnboundedSender<Vec<Release>>;

/// The lease renewer of a connection, kept between renewals. There is one: a client renews over a
/// connection of its own.
pub(super) type RenewerCache = Arc<Mutex<Option<CachedRenewer>>>;

pub(super) struct CachedRenewer {
    worker: Tid,
    ttl: Duration,
    renewer: Box<dyn LeaseRenewer>,
}

/// A request of a client.
#[expect(
    clippy::large_enum_variant,
    reason = "short-lived: a box would cost an allocation per call"
)]
pub(super) enum CallInput {
    Call(Call),
    Renew(RenewalRequest),
}

impl CallInput {
    /// For how long the request may block.
    pub(super) fn max_wait(&self) -> Duration {
        match self {
            Self::Call(call) => call.max_wait(),
            Self::Renew(_) => Duration::ZERO,
        }
    }
}

/// Performs a request, as far as this client may make it: `container_client` is set if it is not
/// trusted.
pub(super) async fn perform(
    broker: Arc<dyn Broker>,
    input: CallInput,
    id: u64,
    renewer_cache: RenewerCache,
    container_client: Option<&ContainerClient>,
    returns: ReturnSender,
) -> EncodedReply {
    let outcome = match (input, container_client) {
        (CallInput::Call(call), Some(container_client)) => {
            container_client.perform(&*broker, call).await
        }
        (CallInput::Call(call), None) => call.perform(&*broker).await,
        (CallInput::Renew(renewal), container_client) => {
            let status = match container_client {
                Some(container_client) => container_client.admit_renewal(&*broker, &renewal).await,
                None => Ok(()),
            };
            let status = match status {
                Ok(()) => renew_once(broker, renewer_cache, renewal).await,
                Err(error) => Err(error),
            };
            return EncodedReply {
                frame: answer(id, status.map(|status| ToClient::Renewed { id, status })),
                taken: None,
            };
        }
    };
    // Nothing is awaited from here on, so that claims are either delivered or released.
    let taken = match &outcome {
        Ok(Reply::Claim(claims)) => UndeliveredTasks::new(claims, returns),
        _ => None,
    };
    EncodedReply {
        frame: answer(id, outcome.map(|reply| ToClient::Done { id, reply })),
        taken,
    }
}

/// Renews on a blocking thread, because renewers block.
async fn renew_once(
    broker: Arc<dyn Broker>,
    renewer_cache: RenewerCache,
    renewal: RenewalRequest,
) -> Result<LeaseStatus> {
    let RenewalRequest {
        worker,
        ttl,
        heartbeat,
    } = renewal;
    let kept = lock(&renewer_cache)
        .take()
        .filter(|cached| cached.worker == worker && cached.ttl == ttl);
    let beats = tokio::task::spawn_blocking(move || {
        let mut cached = kept.unwrap_or_else(|| CachedRenewer {
            worker,
            ttl,
            renewer: broker.lease_renewer(worker, ttl),
        });
        let status = cached.renewer.renew(heartbeat);
        *lock(&renewer_cache) = Some(cached);
        status
    });
    beats.await.unwrap_or(Err(Error::Closed))
}

fn lock(renewer_cache: &RenewerCache) -> std::sync::MutexGuard<'_, Option<CachedRenewer>> {
    renewer_cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Encodes the result of a request.
pub(super) fn answer(id: u64, outcome: Result<ToClient>) -> Vec<u8> {
    let frame = encode(&outcome.unwrap_or_else(|error| ToClient::Failed { id, error }));
    if frame.len() <= MAX_REPLY {
        return frame;
    }
    let reason = format!(
        "the reply is longer than {} MiB: ask for less at a time",
        MAX_REPLY >> 20
    );
    encode(&ToClient::Failed {
        id,
        error: Error::AgentRefused {
            path: "this socket".into(),
            reason,
        },
    })
}

impl UndeliveredTasks {
    fn new(claims: &[LeasedTask], returns: ReturnSender) -> Option<Self> {
        let release = |claim: &LeasedTask| Release {
            attempt_id: claim.attempt_id,
            reason: "its claimer is gone".into(),
        };
        (!claims.is_empty()).then(|| Self {
            back: claims.iter().map(release).collect(),
            returns,
        })
    }

    /// The reply is in the kernel's buffer, and so counts as delivered: a client that dies before
    /// it reads it is a worker whose lease expires.
    pub(super) fn delivered(mut self) {
        self.back.clear();
    }
}

impl Drop for UndeliveredTasks {
    fn drop(&mut self) {
        if !self.back.is_empty() {
            // The receiver outlives all calls; without it the process is ending.
            let _ = self.returns.send(std::mem::take(&mut self.back));
        }
    }
}
