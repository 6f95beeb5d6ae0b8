//! One call: from what was asked to the frame that answers it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use raddle_core::{Tid, frame::encode};
use tokio::sync::mpsc;

use super::{
    guests::Guest,
    protocol::{MAX_ANSWER, Renewal, ToClient},
};
use crate::{Broker, Call, Claim, Error, Heart, Pulse, Release, Reply, Result};

/// A call's answer, ready to be written.
pub(super) struct Answer {
    pub(super) frame: Vec<u8>,
    pub(super) taken: Option<Taken>,
}

/// Tasks on their way to a worker. Unless they are [delivered](Self::delivered), they go back.
pub(super) struct Taken {
    back: Vec<Release>,
    returns: Returns,
}

/// Where tasks that could not be delivered are sent to.
pub(super) type Returns = mpsc::UnboundedSender<Vec<Release>>;

/// The heart that the client of one connection beats, kept between its beats. There is one: hearts have connections of their own.
pub(super) type Chest = Arc<Mutex<Option<Beating>>>;

pub(super) struct Beating {
    worker: Tid,
    ttl: Duration,
    heart: Box<dyn Heart>,
}

/// What a client has asked for.
#[expect(
    clippy::large_enum_variant,
    reason = "one exists for the time of a call: a box would cost an allocation for each"
)]
pub(super) enum Asked {
    Call(Call),
    Beat(Renewal),
}

impl Asked {
    /// How long it may wait for something to happen.
    pub(super) fn wait(&self) -> Duration {
        match self {
            Self::Call(call) => call.wait(),
            Self::Beat(_) => Duration::ZERO,
        }
    }
}

/// Does what was asked for, as far as it is for this client: `guest`, if it is not trusted.
pub(super) async fn perform(
    broker: Arc<dyn Broker>,
    asked: Asked,
    id: u64,
    chest: Chest,
    guest: Option<&Guest>,
    returns: Returns,
) -> Answer {
    let outcome = match (asked, guest) {
        (Asked::Call(call), Some(guest)) => guest.perform(&*broker, call).await,
        (Asked::Call(call), None) => call.perform(&*broker).await,
        (Asked::Beat(renewal), guest) => {
            let pulse = match guest {
                Some(guest) => guest.admit_beat(&*broker, &renewal).await,
                None => Ok(()),
            };
            let pulse = match pulse {
                Ok(()) => beat_once(broker, chest, renewal).await,
                Err(error) => Err(error),
            };
            return Answer { frame: answer(id, pulse.map(|pulse| ToClient::Renewed { id, pulse })), taken: None };
        }
    };
    // Nothing is awaited from here on: what was claimed is delivered, or goes back.
    let taken = match &outcome {
        Ok(Reply::Claim(claims)) => Taken::new(claims, returns),
        _ => None,
    };
    Answer { frame: answer(id, outcome.map(|reply| ToClient::Done { id, reply })), taken }
}

/// Hearts block, so that they beat on a thread for such things.
async fn beat_once(broker: Arc<dyn Broker>, chest: Chest, renewal: Renewal) -> Result<Pulse> {
    let Renewal { worker, ttl, beat } = renewal;
    let kept = lock(&chest).take().filter(|beating| beating.worker == worker && beating.ttl == ttl);
    let beats = tokio::task::spawn_blocking(move || {
        let mut beating = kept.unwrap_or_else(|| Beating { worker, ttl, heart: broker.heart(worker, ttl) });
        let pulse = beating.heart.beat(beat);
        *lock(&chest) = Some(beating);
        pulse
    });
    beats.await.unwrap_or(Err(Error::Closed))
}

fn lock(chest: &Chest) -> std::sync::MutexGuard<'_, Option<Beating>> {
    chest.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The frame for what a method returned.
pub(super) fn answer(id: u64, outcome: Result<ToClient>) -> Vec<u8> {
    let frame = encode(&outcome.unwrap_or_else(|error| ToClient::Failed { id, error }));
    if frame.len() <= MAX_ANSWER {
        return frame;
    }
    let reason = format!("the answer is longer than {} MiB: ask for less at a time", MAX_ANSWER >> 20);
    encode(&ToClient::Failed { id, error: Error::AgentRefused { path: "this socket".into(), reason } })
}

impl Taken {
    fn new(claims: &[Claim], returns: Returns) -> Option<Self> {
        let release = |claim: &Claim| Release { fence: claim.fence, reason: "its claimer is gone".into() };
        (!claims.is_empty()).then(|| Self { back: claims.iter().map(release).collect(), returns })
    }

    /// They are with the kernel, and so with the client. One that dies before it has read them is a worker without a lease.
    pub(super) fn delivered(mut self) {
        self.back.clear();
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.back.is_empty() {
            // The other end lives longer than any call. If it does not, the process ends.
            let _ = self.returns.send(std::mem::take(&mut self.back));
        }
    }
}
