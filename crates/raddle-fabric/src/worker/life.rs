//! A worker's life: registered, at work, gone.

use std::{future::Future, sync::Arc, time::Duration};

use raddle_broker::{Broker, Claim, Error, Finish, Own, OwnRequest, Pulse, Result, Submit, Submitted};
use raddle_core::{State, Tid, worker::Beat};
use raddle_exec::FencePage;

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{leftovers, schedule};

use super::{
    Options, Shutdown, Standstill,
    core::ERROR_PAUSE,
    event::End,
    pace::LAST_TRY,
    service::{Closed, Service},
    shutdown::KILLED_AFTER,
};

/// A registered worker, not running yet.
pub struct Worker {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) options: Options,
    pub(super) tid: Tid,
    /// Where its runners read how long its lease holds.
    pub(super) fence: Arc<FencePage>,
    /// When its lease began, on the monotonic clock.
    pub(super) leased_at: u64,
    /// What it has claimed already.
    pub(super) claim: Option<Claim>,
    /// The children that this process had before.
    pub(super) strangers: Arc<[u32]>,
    /// Whether it leaves the registry with its task.
    pub(super) own: bool,
    /// How many attempts it has begun, under whatever id.
    pub(super) begun: watch::Sender<u64>,
    pub(super) born: Instant,
    pub(super) standstill: Standstill,
}

/// How a worker's life went.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// How many attempts it began.
    pub tasks: u64,
    /// Why it left.
    pub reason: EndReason,
    /// How its one task came to its end, if that happened here.
    pub outcome: Option<Box<LastAttempt>>,
}

/// The last attempt of a task, as the worker saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct LastAttempt {
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
    /// All that it was for is over: its one task, or as many as it was to take.
    Done,
    /// It was as old as it was to become.
    Aged,
    /// It lost its lease, and with that the last attempt that it was to make: others have the task.
    LeaseLost,
}

/// One in this many workers for one task removes expired records.
const PURGE_ONE_IN: u64 = 64;
/// The part of an id below the clock's: a counter that hardly ever moves.
const TID_STEP: u64 = 4096;

/// Made before the broker hears of the worker: a process without descriptors for it must not hold a task.
fn fence_page() -> Result<Arc<FencePage>> {
    let page = FencePage::new().map(Arc::new);
    page.map_err(|error| Error::Starved { what: "shared memory".into(), reason: error.to_string() })
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
        let fence = fence_page()?;
        let asked_at = FencePage::clock_now();
        let tid = broker.register(options.info(), options.lease).await?;
        let leased_at = lease_began(&*broker, tid, options.lease, asked_at).await;
        broker.tie(tid);
        let strangers = raddle_exec::children().into();
        Ok(Self {
            broker,
            options,
            tid,
            fence,
            leased_at,
            claim: None,
            strangers,
            own: false,
            begun: watch::Sender::new(0),
            born: Instant::now(),
            standstill: Standstill::default(),
        })
    }

    /// Submits a task together with a worker that will run it, in one step. There is no worker when another task has the same key, or
    /// when a worker is there already that would take it and `yields` says to leave it to that.
    ///
    /// Nothing is submitted, and `None` returned, when `give_up` comes first. Dropping this may leave a task behind that nobody waits for.
    pub async fn submit(
        broker: Arc<dyn Broker>,
        task: Submit,
        options: Options,
        yields: bool,
        give_up: impl Future<Output = ()>,
    ) -> Result<Option<(Submitted, Option<Self>)>> {
        let fence = fence_page()?;
        let asked_at = FencePage::clock_now();
        let request = OwnRequest { task, worker: options.info(), lease: options.lease, yields };
        let Own { submitted, worker, claim } = tokio::select! {
            biased;
            own = broker.submit_own(request) => own?,
            () = give_up => return Ok(None),
        };
        let Some(tid) = worker else { return Ok(Some((submitted, None))) };
        let leased_at = lease_began(&*broker, tid, options.lease, asked_at).await;
        broker.tie(tid);
        let options = Options { only: Some(submitted.tid()), ..options };
        let strangers = raddle_exec::children().into();
        let (begun, born, standstill) = (watch::Sender::new(0), Instant::now(), Standstill::default());
        let worker =
            Self { broker, options, tid, fence, leased_at, claim, strangers, own: true, begun, born, standstill };
        Ok(Some((submitted, Some(worker))))
    }

    /// The worker's own id.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Whether it should remove expired records first. Where only workers for one task come, one in many does what a resident worker does every minute.
    pub(crate) fn should_purge(&self) -> bool {
        self.options.only.is_some() && (self.tid.as_u64() / TID_STEP).is_multiple_of(PURGE_ONE_IN)
    }

    /// How many attempts it has begun, as it begins them.
    pub fn begun(&self) -> watch::Receiver<u64> {
        self.begun.subscribe()
    }

    /// What lets this process be stopped for a while.
    pub fn standstill(&self) -> Standstill {
        self.standstill.clone()
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
        let needs_group =
            !self.options.grouped && self.claim.as_ref().is_none_or(|claim| !claim.spec.limits.is_empty());
        if let Some(Err(error)) = needs_group.then(raddle_exec::cgroup::prepare) {
            tracing::debug!(%error, "limits are kept without control groups");
        }
        // It ends with this worker, whichever way that ends.
        let _scheduling = self.options.schedules.then(|| schedule::Running::start(Arc::clone(&self.broker)));
        // So does this. Who comes for one task has no time for the others'.
        let mut beside = JoinSet::new();
        if self.claim.is_none() && !self.options.is_for_one() {
            let broker = Arc::clone(&self.broker);
            beside.spawn(async move {
                if let Err(error) = leftovers::of_anybody(&*broker).await {
                    tracing::warn!(%error, "what is left of earlier attempts could not be looked for");
                }
            });
        }
        loop {
            let service = Service::start(&mut self, &shutdown);
            let tid = self.tid;
            let Closed { end, is_hasty, has_ended_task } = service.run().await;
            let tasks = *self.begun.borrow();
            let ended = |reason, outcome| Ended { tasks, reason, outcome };
            let is_spent = self.options.max_tasks.is_some_and(|max| max <= tasks);
            match end {
                Ok(End::Left(reason, outcome)) => {
                    if !(self.own && has_ended_task) {
                        self.leave(None, is_hasty, &shutdown).await?;
                    }
                    return Ok(ended(reason, outcome));
                }
                Ok(End::LeaseLost) if is_spent => return Ok(ended(EndReason::LeaseLost, None)),
                Ok(End::LeaseLost) => {
                    tracing::warn!(worker = %tid, "the lease was lost: its tasks go to others, or begin again");
                    let anew = tokio::select! {
                        anew = self.register_anew() => anew?,
                        // It has nothing that would have to be given back.
                        () = shutdown.asked(1) => return Ok(ended(EndReason::Stopped, None)),
                    };
                    self = anew;
                    // Where nobody took over, what it had claimed and not begun waits for this.
                    let _ = self.broker.deregister(tid, Some("its lease ran out".into())).await;
                    tracing::warn!(was = %tid, now = %self.tid, "registered anew");
                }
                // Nobody is there to be told.
                Err(error @ (Error::Unreachable { .. } | Error::AgentGone { .. })) => return Err(error),
                Err(error) => {
                    let _ = self.leave(Some(error.to_string()), is_hasty, &shutdown).await;
                    return Err(error);
                }
            }
        }
    }

    /// Leaves the registry. Who is killed, or was and still is here, does not wait for long: what it has is taken back from it when its lease has
    /// run out.
    async fn leave(&self, failure: Option<String>, is_hasty: bool, shutdown: &Shutdown) -> Result<()> {
        let out_of_time = async {
            if !is_hasty {
                shutdown.asked(KILLED_AFTER).await;
            }
            sleep(LAST_TRY).await;
        };
        let left = tokio::select! {
            left = self.broker.deregister(self.tid, failure) => Some(left),
            () = out_of_time => None,
        };
        match left {
            Some(Err(error)) if is_hasty => tracing::warn!(%error, "left without a word: the lease will run out"),
            Some(left) => return left,
            None => tracing::warn!("left without a word, for the broker does not answer: the lease will run out"),
        }
        Ok(())
    }

    /// Registers under a new id, as soon as that can be done: what kept the lease from being renewed may still be there.
    async fn register_anew(&self) -> Result<Self> {
        let Self { broker, options, strangers, begun, born, standstill, .. } = self;
        let give_up_at = Instant::now() + options.give_up_after;
        loop {
            match Self::register(Arc::clone(broker), options.clone()).await {
                Err(error) if may_pass(&error, give_up_at) => {
                    tracing::error!(%error, "cannot register anew yet");
                    sleep(ERROR_PAUSE).await;
                }
                outcome => {
                    return outcome.map(|worker| {
                        let (strangers, begun) = (Arc::clone(strangers), begun.clone());
                        Self { strangers, begun, born: *born, standstill: standstill.clone(), ..worker }
                    });
                }
            }
        }
    }
}

/// Whether to try again. The engine itself has tried for long enough when it calls a server unreachable.
fn may_pass(error: &Error, give_up_at: Instant) -> bool {
    match error {
        Error::Unreachable { .. } => false,
        Error::AgentGone { .. } => Instant::now() < give_up_at,
        error => error.is_retryable(),
    }
}
