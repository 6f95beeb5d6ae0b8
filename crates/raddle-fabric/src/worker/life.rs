//! A worker's life: registered, at work, gone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use raddle_broker::{Broker, Claim, Error, Finish, Own, OwnRequest, Pulse, Result, Submit, Submitted};
use raddle_core::{State, Tid, worker::Beat};
use raddle_exec::{FencePage, Prefork};

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
    /// Whether it leaves the registry with its task.
    pub(super) own: bool,
}

/// How a worker's life went.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// How many attempts it began.
    pub tasks: u64,
    /// Why it left.
    pub reason: EndReason,
    /// How its one task came to its end, if that happened here.
    pub outcome: Option<Box<Outcome>>,
}

/// The last attempt of a task, as the worker saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What the task became.
    pub state: State,
    /// How the attempt went, with the end of what it wrote.
    pub finish: Finish,
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

/// The children that this process has and that have nothing to do with tasks.
fn strangers(options: &Options) -> Arc<[u32]> {
    options.prefork.as_ref().map_or_else(|| raddle_exec::children().into(), Prefork::strangers)
}

/// When a lease began that was asked for at `asked_at`, as far as that is known: not before. Where the broker took its time, the lease is
/// renewed, or runners would take it to be over when it has hardly begun, and would end all that they are given.
async fn lease_began(broker: &dyn Broker, worker: Tid, lease: Duration, asked_at: u64) -> u64 {
    let now = FencePage::clock_now();
    if u128::from(now - asked_at) < lease.as_nanos() / 4 {
        return asked_at;
    }
    let mut heart = broker.heart(worker, lease);
    match tokio::task::spawn_blocking(move || heart.beat(Beat::default())).await {
        Ok(Ok(Pulse::Alive(_))) => now,
        // The pulse finds out what that means.
        _ => asked_at,
    }
}

impl Worker {
    /// Enters a worker into the broker's registry.
    pub async fn register(broker: Arc<dyn Broker>, options: Options) -> Result<Self> {
        let asked_at = FencePage::clock_now();
        let tid = broker.register(options.info(), options.lease).await?;
        let leased_at = lease_began(&*broker, tid, options.lease, asked_at).await;
        // A runner that was forked before could not hold what shows that it is there.
        if options.prefork.is_none() {
            broker.tie(tid);
        }
        let strangers = strangers(&options);
        Ok(Self { broker, options, tid, leased_at, claim: None, strangers, own: false })
    }

    /// Submits a task together with a worker that will run it, in one step. There is no worker when another task has the same key, or
    /// when a worker is there already that would take it and `yields` says to leave it to that.
    pub async fn submit(
        broker: Arc<dyn Broker>,
        task: Submit,
        options: Options,
        yields: bool,
    ) -> Result<(Submitted, Option<Self>)> {
        let asked_at = FencePage::clock_now();
        let request = OwnRequest { task, worker: options.info(), lease: options.lease, yields };
        let Own { submitted, worker, claim } = broker.submit_own(request).await?;
        let Some(tid) = worker else {
            broker.sync().await?;
            return Ok((submitted, None));
        };
        let leased_at = lease_began(&*broker, tid, options.lease, asked_at).await;
        let options = Options { only: Some(submitted.tid()), ..options };
        let strangers = strangers(&options);
        Ok((submitted, Some(Self { broker, options, tid, leased_at, claim, strangers, own: true })))
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
        // To find a group to work in takes as long as to start a process, and a single task without limits has no use for one.
        let needs_group = self.claim.as_ref().is_none_or(|claim| !claim.spec.limits.is_empty());
        if let Some(Err(error)) = needs_group.then(raddle_exec::cgroup::prepare) {
            tracing::debug!(%error, "limits are kept without control groups");
        }
        let spawned = Arc::new(AtomicU64::new(0));
        loop {
            let service = Service::start(&mut self, Arc::clone(&spawned), &shutdown)?;
            let tid = self.tid;
            match service.run().await {
                Ok(End::Left(reason, outcome)) => {
                    if !self.own || outcome.is_none() {
                        self.broker.deregister(tid, None).await?;
                    }
                    // Where nobody but such workers comes, one in many does what a resident does every minute.
                    if self.options.only.is_some() && (tid.as_u64() / TID_STEP).is_multiple_of(TIDY_ONE_IN) {
                        let _ = self.broker.purge().await;
                    }
                    return Ok(Ended { tasks: spawned.load(Ordering::Relaxed), reason, outcome });
                }
                Ok(End::LeaseLost) => {
                    tracing::warn!(worker = %tid, "the lease was lost: others have the tasks now");
                    self = self.register_anew().await?;
                    tracing::warn!(was = %tid, now = %self.tid, "registered anew");
                }
                // Nobody is there to be told.
                Err(error @ Error::Unreachable { .. }) => return Err(error),
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
                Err(error) if error.is_retryable() && !matches!(error, Error::Unreachable { .. }) => {
                    tracing::error!(%error, "cannot register anew yet");
                    tokio::time::sleep(ERROR_PAUSE).await;
                }
                outcome => return outcome.map(|worker| Self { strangers, ..worker }),
            }
        }
    }
}
