//! One call: from what was asked to the frame that answers it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use raddle_model::{Tid, frame::encode};
use tokio::sync::mpsc;

use super::{
    container_clients::ContainerClient,
    protocol::{MAX_ANSWER, RenewalRequest, ToClient},
};
use raddle_broker::{
    Broker, Call, Error, LeaseRenewer, LeaseStatus, LeasedTask, Release, Reply, Result,
};

/// A call's answer, ready to be written.
pub(super) struct EncodedReply {
    pub(super) frame: Vec<u8>,
    pub(super) taken: Option<UndeliveredTasks>,
}

/// Tasks on their way to a worker. Unless they are [delivered](Self::delivered), they go back.
pub(super) struct UndeliveredTasks {
    back: Vec<Release>,
    returns: ReturnSender,
}

/// Where tasks that could not be delivered are sent to.
pub(super) type ReturnSender = mpsc::UnboundedSender<Vec<Release>>;

/// The heart that the client of one connection beats, kept between its beats. There is one: hearts have connections of their own.
pub(super) type RenewerCache = Arc<Mutex<Option<CachedRenewer>>>;

pub(super) struct CachedRenewer {
    worker: Tid,
    ttl: Duration,
    renewer: Box<dyn LeaseRenewer>,
}

/// What a client has asked for.
#[expect(
    clippy::large_enum_variant,
    reason = "one exists for the time of a call: a box would cost an allocation for each"
)]
pub(super) enum CallInput {
    Call(Call),
    Beat(RenewalRequest),
}

impl CallInput {
    /// How long it may wait for something to happen.
    pub(super) fn max_wait(&self) -> Duration {
        match self {
            Self::Call(call) => call.max_wait(),
            Self::Beat(_) => Duration::ZERO,
        }
    }
}

/// Does what was asked for, as far as it is for this client: `guest`, if it is not trusted.
pub(super) async fn perform(
    broker: Arc<dyn Broker>,
    asked: CallInput,
    id: u64,
    chest: RenewerCache,
    guest: Option<&ContainerClient>,
    returns: ReturnSender,
) -> EncodedReply {
    let outcome = match (asked, guest) {
        (CallInput::Call(call), Some(guest)) => guest.perform(&*broker, call).await,
        (CallInput::Call(call), None) => call.perform(&*broker).await,
        (CallInput::Beat(renewal), guest) => {
            let pulse = match guest {
                Some(guest) => guest.admit_beat(&*broker, &renewal).await,
                None => Ok(()),
            };
            let pulse = match pulse {
                Ok(()) => beat_once(broker, chest, renewal).await,
                Err(error) => Err(error),
            };
            return EncodedReply {
                frame: answer(id, pulse.map(|pulse| ToClient::Renewed { id, pulse })),
                taken: None,
            };
        }
    };
    // Nothing is awaited from here on: what was claimed is delivered, or goes back.
    let taken = match &outcome {
        Ok(Reply::Claim(claims)) => UndeliveredTasks::new(claims, returns),
        _ => None,
    };
    EncodedReply {
        frame: answer(id, outcome.map(|reply| ToClient::Done { id, reply })),
        taken,
    }
}

/// Hearts block, so that they beat on a thread for such things.
async fn beat_once(
    broker: Arc<dyn Broker>,
    chest: RenewerCache,
    renewal: RenewalRequest,
) -> Result<LeaseStatus> {
    let RenewalRequest {
        worker,
        ttl,
        heartbeat,
    } = renewal;
    let kept = lock(&chest)
        .take()
        .filter(|beating| beating.worker == worker && beating.ttl == ttl);
    let beats = tokio::task::spawn_blocking(move || {
        let mut beating = kept.unwrap_or_else(|| CachedRenewer {
            worker,
            ttl,
            renewer: broker.lease_renewer(worker, ttl),
        });
        let pulse = beating.renewer.renew(heartbeat);
        *lock(&chest) = Some(beating);
        pulse
    });
    beats.await.unwrap_or(Err(Error::Closed))
}

fn lock(chest: &RenewerCache) -> std::sync::MutexGuard<'_, Option<CachedRenewer>> {
    chest.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The frame for what a method returned.
pub(super) fn answer(id: u64, outcome: Result<ToClient>) -> Vec<u8> {
    let frame = encode(&outcome.unwrap_or_else(|error| ToClient::Failed { id, error }));
    if frame.len() <= MAX_ANSWER {
        return frame;
    }
    let reason = format!(
        "the answer is longer than {} MiB: ask for less at a time",
        MAX_ANSWER >> 20
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

    /// They are with the kernel, and so with the client. One that dies before it has read them is a worker without a lease.
    pub(super) fn delivered(mut self) {
        self.back.clear();
    }
}

impl Drop for UndeliveredTasks {
    fn drop(&mut self) {
        if !self.back.is_empty() {
            // The other end lives longer than any call. If it does not, the process ends.
            let _ = self.returns.send(std::mem::take(&mut self.back));
        }
    }
}
