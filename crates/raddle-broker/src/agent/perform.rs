//! One call: from what was asked to the frame that answers it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use raddle_core::{Tid, tid::TidArg, worker::Beat};
use serde::Serialize;
use tokio::sync::mpsc;

use super::{
    claims::Claims,
    protocol::{Bytes, Call, DONE, FAILED, HEADER, MAX_ANSWER, frame},
};
use crate::{Broker, Claim, Error, Heart, Pulse, Release, Result};

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

/// Does what was asked for.
pub(super) async fn perform(broker: Arc<dyn Broker>, call: Call, id: u64, chest: Chest, returns: Returns) -> Answer {
    if let Call::Claim(request) = call {
        let claims = broker.claim(request).await;
        let taken = claims.as_ref().ok().and_then(|claims| Taken::new(claims, returns));
        return Answer { frame: answer(id, &claims), taken };
    }
    Answer { frame: plain(&broker, call, id, chest).await, taken: None }
}

/// The frame that answers a call which takes nothing that could be lost.
pub(super) async fn plain(broker: &Arc<dyn Broker>, call: Call, id: u64, chest: Chest) -> Vec<u8> {
    match call {
        Call::Submit(batch) => answer(id, &broker.submit(batch).await),
        Call::SubmitOwn(request) => answer(id, &broker.submit_own(*request).await),
        Call::Sync => answer(id, &broker.sync().await),
        Call::Claim(request) => answer(id, &broker.claim(request).await),
        Call::Started(batch) => answer(id, &broker.started(batch).await),
        Call::Paused { fence, paused } => answer(id, &broker.paused(fence, paused).await),
        Call::Progress { fence, progress } => answer(id, &broker.progress(fence, progress).await),
        Call::Chain(chain) => answer(id, &broker.chain(chain).await),
        Call::Finish(batch) => answer(id, &broker.finish(batch).await),
        Call::Release(batch) => answer(id, &broker.release(batch).await),
        Call::Reclaim => answer(id, &broker.reclaim().await),
        Call::Control { tid, message } => answer(id, &broker.control(tid, message).await),
        Call::Controls { owner, wait } => answer(id, &broker.controls(owner, wait).await),
        Call::Resubmit { tid, dead } => answer(id, &broker.resubmit(tid, dead).await),
        Call::Task(tid) => answer(id, &broker.task(tid).await),
        Call::Tasks(filter) => answer(id, &broker.tasks(filter).await),
        Call::Unbegun(owner) => {
            let mut tasks = broker.tasks(Claims::suspects()).await;
            tasks.iter_mut().for_each(|tasks| tasks.retain(|task| task.worker == Some(owner)));
            answer(id, &tasks)
        }
        Call::Complete(digits) => answer(
            id,
            &match digits.parse() {
                Ok(TidArg::Short(short)) => broker.complete(short).await,
                // Nobody has an id that ends like this.
                _ => Ok(Vec::new()),
            },
        ),
        Call::AheadOf(tid) => answer(id, &broker.ahead_of(tid).await),
        Call::Waiting(request) => answer(id, &broker.waiting(request).await),
        Call::Demand => answer(id, &broker.demand().await),
        Call::Summary => answer(id, &broker.summary().await),
        Call::Purge => answer(id, &broker.purge().await),
        Call::Health => answer(id, &broker.health().await),
        Call::Register { info, ttl } => answer(id, &broker.register(info, ttl).await),
        Call::RegisterOwn { info, ttl } => answer(id, &broker.register_own(info, ttl).await),
        Call::Deregister { worker, failure } => answer(id, &broker.deregister(worker, failure).await),
        Call::Workers => answer(id, &broker.workers().await),
        Call::Beat { worker, ttl, beat } => answer(id, &beat_once(broker, chest, worker, ttl, beat).await),
        Call::Put { queue, bodies } => answer(id, &broker.put(&queue, bodies).await),
        Call::Take { queue, max, wait } => answer(id, &broker.take(&queue, max, wait).await),
        Call::Look(peek) => answer(id, &broker.look(peek).await),
        Call::Shift { from, to, max } => answer(id, &broker.shift(&from, &to, max).await),
        Call::Convert(conversion) => answer(id, &broker.convert(*conversion).await),
        Call::Depths => answer(id, &broker.depths().await),
        Call::Clear(queue) => answer(id, &broker.clear(&queue).await),
        Call::Events { after, tid, max, wait } => answer(id, &broker.events(after, tid, max, wait).await),
        Call::LastEvent => answer(id, &broker.last_event().await),
        Call::AppendOutput { fence, stream, bytes: Bytes(bytes) } => {
            answer(id, &broker.append_output(fence, stream, bytes).await)
        }
        Call::ReadOutput { fence, stream, offset, max } => {
            answer(id, &broker.read_output(fence, stream, offset, max).await.map(Bytes))
        }
        Call::Follow { tid, cursor, wait } => answer(id, &broker.follow(tid, cursor, wait).await),
        Call::Schedules => answer(id, &broker.schedules().await),
        Call::Schedule(name) => answer(id, &broker.schedule(&name).await),
        Call::ChangeSchedule(change) => answer(id, &broker.change_schedule(*change).await),
        Call::Agenda { wait } => answer(id, &broker.agenda(wait).await),
        Call::Expire => answer(id, &broker.expire().await),
    }
}

/// Hearts block, so that they beat on a thread for such things.
async fn beat_once(broker: &Arc<dyn Broker>, chest: Chest, worker: Tid, ttl: Duration, beat: Beat) -> Result<Pulse> {
    let kept = lock(&chest).take().filter(|beating| beating.worker == worker && beating.ttl == ttl);
    let broker = Arc::clone(broker);
    let beats = tokio::task::spawn_blocking(move || {
        let is_new = kept.is_none();
        let mut beating = kept.unwrap_or_else(|| Beating { worker, ttl, heart: broker.heart(worker, ttl) });
        let pulse = beating.heart.beat(beat);
        if is_new && pulse.is_ok() {
            // The lease may have been long until now, as that of a worker that stood still.
            broker.shorten(worker, ttl);
        }
        *lock(&chest) = Some(beating);
        pulse
    });
    beats.await.unwrap_or(Err(Error::Closed))
}

fn lock(chest: &Chest) -> std::sync::MutexGuard<'_, Option<Beating>> {
    chest.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The frame for what a method returned.
pub(super) fn answer<T: Serialize>(id: u64, outcome: &Result<T>) -> Vec<u8> {
    let frame = match outcome {
        Ok(value) => frame(DONE, id, value),
        Err(error) => frame(FAILED, id, error),
    };
    if frame.len() - HEADER <= MAX_ANSWER {
        return frame;
    }
    let reason = format!("the answer is longer than {} MiB: ask for less at a time", MAX_ANSWER >> 20);
    super::protocol::frame(FAILED, id, &Error::AgentRefused { path: "this socket".into(), reason })
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
