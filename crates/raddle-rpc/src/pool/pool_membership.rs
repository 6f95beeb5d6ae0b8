//! The loop of a keeper: hears what becomes of workers, asks the core what to do about it, and does it.
//!
//! Who is started, replaced, held back and stopped is decided by [`raddle_supervisor`], as it is for groups and spawners: the workers of a pool
//! are one group of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::Arc,
    time::Duration,
};

use raddle_model::stop::{StopPolicy, StopStage};
use raddle_supervisor::{
    BackoffScope, ChildExit, ChildId, GroupId, GroupPolicy, RecyclePolicy, RestartPolicy,
    Supervisor, SupervisorEffect, SupervisorEvent, SupervisorNotice,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use super::{
    lifecycle::{PoolWorkerEvent, WorkerLifecycle},
    supervisor::PoolSupervisor,
};
use crate::worker::StopMode;

/// How long a worker may take to end when nothing is waited for any more. Workers of ours take less by themselves.
const GRACE: Duration = Duration::from_secs(30);
const GROUP: GroupId = GroupId(0);

pub(super) struct PoolMembership {
    keeper: Arc<PoolSupervisor>,
    core: Supervisor,
    began: Instant,
    stop: watch::Receiver<Option<StopMode>>,
    /// The way to each that is there: how far it is to stop.
    there: BTreeMap<ChildId, watch::Sender<StopStage>>,
    /// One for each that is there.
    lives: JoinSet<()>,
    /// At most three for each worker, so the channel needs no bound.
    news: mpsc::UnboundedReceiver<(ChildId, PoolWorkerEvent)>,
    tell: mpsc::UnboundedSender<(ChildId, PoolWorkerEvent)>,
    /// The places in which one was started.
    tried: BTreeSet<usize>,
}

impl PoolMembership {
    pub(super) fn new(keeper: Arc<PoolSupervisor>, size: usize) -> Self {
        let policy = GroupPolicy {
            replicas: size,
            on: true,
            restart: RestartPolicy::Always,
            stop: StopPolicy::cancel(GRACE),
            // A worker knows itself how long it may take to serve, and its callers whether it is any use.
            start_timeout: None,
            hang_timeout: None,
            recycle: RecyclePolicy::default(),
            after: Vec::new(),
            parallel: size,
            backoff_scope: BackoffScope::Group,
        };
        let (tell, news) = mpsc::unbounded_channel();
        Self {
            core: Supervisor::new([policy]),
            began: Instant::now(),
            stop: keeper.asked(),
            keeper,
            there: BTreeMap::new(),
            lives: JoinSet::new(),
            news,
            tell,
            tried: BTreeSet::new(),
        }
    }

    /// Keeps workers until they are to stop, and all have.
    pub(super) async fn run(mut self) {
        let asked = *self.stop.borrow_and_update();
        asked.into_iter().for_each(|patience| self.stop(patience));
        self.act(SupervisorEvent::Time, "");
        while !self.core.is_over() {
            let wake = self.core.wake_at(self.now()).map(|at| self.began + at);
            tokio::select! {
                Some((id, news)) = self.news.recv() => self.hear(id, news),
                Ok(()) = self.stop.changed() => {
                    let asked = *self.stop.borrow_and_update();
                    asked.into_iter().for_each(|patience| self.stop(patience));
                }
                () = until(wake) => self.act(SupervisorEvent::Time, ""),
            }
            let census = self.core.census(GROUP);
            let is_held_back =
                census.starting == 0 && self.core.held_until(GROUP, self.now()).is_some();
            self.keeper.is_braking(census.backing_off > 0, is_held_back);
        }
    }

    fn hear(&mut self, id: ChildId, news: PoolWorkerEvent) {
        match news {
            PoolWorkerEvent::Ready => self.act(SupervisorEvent::Ready(id), ""),
            PoolWorkerEvent::Broken => self.act(SupervisorEvent::Broken(id), ""),
            PoolWorkerEvent::Gone { how, cause } => {
                self.there.remove(&id);
                while self.lives.try_join_next().is_some() {}
                if self.core.asked() == 0 {
                    self.keeper.lost(&how, cause);
                }
                self.act(SupervisorEvent::Exited(id, ChildExit::Failure), &how);
            }
        }
    }

    fn stop(&mut self, patience: StopMode) {
        let drain = match patience {
            StopMode::None => Some(Duration::ZERO),
            StopMode::For(time) => Some(time),
            StopMode::Endless => None,
        };
        let is_asked = self.core.asked() > 0;
        // To be told to hurry is to be told so once: whoever does not is waited for, as long as there is grace.
        if is_asked && (patience != StopMode::None || self.core.stage(GROUP) != StopStage::Draining)
        {
            return;
        }
        if !is_asked {
            self.core.note(
                SupervisorEvent::SetStopPolicy(
                    GROUP,
                    StopPolicy {
                        drain,
                        grace: GRACE,
                    },
                ),
                self.now(),
            );
        }
        self.act(SupervisorEvent::Stop, "");
    }

    /// Tells the core what has happened, and does what it says. `how` is how the worker ended that has just done so.
    fn act(&mut self, event: SupervisorEvent, how: &str) {
        let now = self.now();
        for effect in self.core.on(event, now) {
            match effect {
                SupervisorEffect::Start(id, seat) => {
                    let (tell, told) = watch::channel(StopStage::Running);
                    self.there.insert(id, tell);
                    let is_first = self.tried.insert(seat.number);
                    let life =
                        WorkerLifecycle::new(Arc::clone(&self.keeper), seat.number, is_first, told);
                    let news = self.tell.clone();
                    // It ends with its worker, of which it tells, or with this.
                    self.lives
                        .spawn(life.run(move |what| drop(news.send((id, what)))));
                }
                SupervisorEffect::SetStopStage(id, stage) => {
                    self.there
                        .get(&id)
                        .into_iter()
                        .for_each(|told| _ = told.send_replace(stage));
                }
                SupervisorEffect::Notify(notice) => say(notice, how),
            }
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

fn say(notice: SupervisorNotice, how: &str) {
    match notice {
        SupervisorNotice::Replaced(_) => info!(how, "a worker has ended, and is replaced"),
        SupervisorNotice::Stopping(_, why) => info!("a worker is stopped: {why}"),
        SupervisorNotice::BackingOff { pause, .. } => {
            warn!(
                how,
                ?pause,
                "a worker has ended too soon; others are started after a pause"
            );
        }
        SupervisorNotice::Recovered(_) => info!("workers stay again"),
        _ => {}
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}
