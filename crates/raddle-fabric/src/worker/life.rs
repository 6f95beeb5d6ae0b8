//! A worker's life: registered, at work, gone.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use raddle_broker::{Broker, Claim, Own, Result, Submit, Submitted};
use raddle_core::Tid;
use raddle_exec::FencePage;

use super::{
    Options, Shutdown,
    service::{ERROR_PAUSE, End, Service},
};

/// A registered worker, not running yet.
pub struct Worker {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) options: Options,
    pub(super) tid: Tid,
    /// When its lease began, on the monotonic clock.
    pub(super) leased_at: u64,
    /// What it has claimed already.
    pub(super) claim: Option<Claim>,
    /// The children that this process had before.
    pub(super) strangers: Arc<[u32]>,
}

/// How a worker's life went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How many attempts it began.
    pub tasks: u64,
    /// Why it left.
    pub reason: EndReason,
}

/// Why a worker left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// It had nothing to do for long enough.
    Idle,
    /// It was asked to.
    Stopped,
    /// The one task it was for is over.
    Done,
}

/// Of the workers for one task, how many leave without removing expired records, for each that does not.
const TIDY_ONE_IN: u64 = 64;
/// The part of an id below the clock's: a counter that hardly ever moves.
const TID_STEP: u64 = 4096;

impl Worker {
    /// Enters a worker into the broker's registry.
    pub async fn register(broker: Arc<dyn Broker>, options: Options) -> Result<Self> {
        let leased_at = FencePage::clock_now();
        let tid = broker.register(options.info(), options.lease).await?;
        Ok(Self { broker, options, tid, leased_at, claim: None, strangers: raddle_exec::children().into() })
    }

    /// Submits a task together with a worker that will run it, in one step. There is no worker when another task has the same key.
    pub async fn submit(broker: Arc<dyn Broker>, task: Submit, options: Options) -> Result<(Submitted, Option<Self>)> {
        let leased_at = FencePage::clock_now();
        let Own { submitted, worker, claim } = broker.submit_own(task, options.info(), options.lease).await?;
        let options = Options { only: Some(submitted.tid()), ..options };
        let strangers = raddle_exec::children().into();
        let worker = worker.map(|tid| Self { broker, options, tid, leased_at, claim, strangers });
        Ok((submitted, worker))
    }

    /// The worker's own id.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Works until it is asked to stop, has been idle for long enough, or its one task is over.
    ///
    /// A worker that loses its lease, because it was stopped or cut off for longer than that, kills what it runs and goes on under a new
    /// id.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<Ended> {
        if let Err(error) = raddle_exec::become_subreaper() {
            tracing::warn!(%error, "the grandchildren of a killed runner will not be found");
        }
        if let Err(error) = raddle_exec::cgroup::prepare() {
            tracing::debug!(%error, "limits are kept without control groups");
        }
        let spawned = Arc::new(AtomicU64::new(0));
        loop {
            let service = Service::start(&mut self, Arc::clone(&spawned), &shutdown)?;
            let tid = self.tid;
            match service.run().await {
                Ok(End::Left(reason)) => {
                    self.broker.deregister(tid, None).await?;
                    // Where nobody but such workers comes, one in many does what a resident does every minute.
                    if self.options.only.is_some() && (tid.as_u64() / TID_STEP).is_multiple_of(TIDY_ONE_IN) {
                        let _ = self.broker.purge().await;
                    }
                    return Ok(Ended { tasks: spawned.load(Ordering::Relaxed), reason });
                }
                Ok(End::LeaseLost) => {
                    tracing::warn!(worker = %tid, "the lease was lost: others have the tasks now");
                    self = self.register_anew().await?;
                    tracing::warn!(was = %tid, now = %self.tid, "registered anew");
                }
                Err(error) => {
                    let _ = self.broker.deregister(tid, Some(error.to_string())).await;
                    return Err(error);
                }
            }
        }
    }

    /// Registers under a new id, as soon as that can be done: what kept the lease from being renewed may still be there.
    async fn register_anew(self) -> Result<Self> {
        let Self { broker, options, strangers, .. } = self;
        loop {
            match Self::register(Arc::clone(&broker), options.clone()).await {
                Err(error) if error.is_retryable() => {
                    tracing::error!(%error, "cannot register anew yet");
                    tokio::time::sleep(ERROR_PAUSE).await;
                }
                outcome => return outcome.map(|worker| Self { strangers, ..worker }),
            }
        }
    }
}
