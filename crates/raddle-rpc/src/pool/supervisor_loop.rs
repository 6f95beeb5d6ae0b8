//! The loop of a pool's supervisor: passes events of workers to the core, and carries out its
//! effects.
//!
//! [`raddle_supervisor`] decides which worker is started, replaced, delayed and stopped, as it does
//! for groups and spawners: a pool is one group.

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

/// How long a worker may take to end once its calls are cancelled. `LocalWorker` takes less.
const GRACE: Duration = Duration::from_secs(30);
const GROUP: GroupId = GroupId(0);

pub(super) struct SupervisorLoop {
    supervisor: Arc<PoolSupervisor>,
    core: Supervisor,
    started: Instant,
    stop: watch::Receiver<Option<StopMode>>,
    /// The stop stage of each worker.
    stop_stages: BTreeMap<ChildId, watch::Sender<StopStage>>,
    /// The tasks that run the workers.
    tasks: JoinSet<()>,
    /// Unbounded, because each worker sends at most three events.
    events: mpsc::UnboundedReceiver<(ChildId, PoolWorkerEvent)>,
    sender: mpsc::UnboundedSender<(ChildId, PoolWorkerEvent)>,
    /// Slots in which a worker was started.
    used_slots: BTreeSet<usize>,
}

impl SupervisorLoop {
    pub(super) fn new(supervisor: Arc<PoolSupervisor>, size: usize) -> Self {
        let policy = GroupPolicy {
            replicas: size,
            on: true,
            restart: RestartPolicy::Always,
            stop: StopPolicy::cancel(GRACE),
            // `start_timeout` is up to the worker, and callers detect hangs.
            start_timeout: None,
            hang_timeout: None,
            recycle: RecyclePolicy::default(),
            after: Vec::new(),
            parallel: size,
            backoff_scope: BackoffScope::Group,
        };
        let (sender, events) = mpsc::unbounded_channel();
        Self {
            core: Supervisor::new([policy]),
            started: Instant::now(),
            stop: supervisor.subscribe_stop(),
            supervisor,
            stop_stages: BTreeMap::new(),
            tasks: JoinSet::new(),
            events,
            sender,
            used_slots: BTreeSet::new(),
        }
    }

    /// Keeps workers running until a stop is requested and all workers have ended.
    pub(super) async fn run(mut self) {
        let requested = *self.stop.borrow_and_update();
        requested.into_iter().for_each(|mode| self.stop(mode));
        self.apply(SupervisorEvent::Time, "");
        while !self.core.is_over() {
            let wake = self.core.wake_at(self.now()).map(|at| self.started + at);
            tokio::select! {
                Some((id, event)) = self.events.recv() => self.handle_event(id, event),
                Ok(()) = self.stop.changed() => {
                    let requested = *self.stop.borrow_and_update();
                    requested.into_iter().for_each(|mode| self.stop(mode));
                }
                () = sleep_until_wake(wake) => self.apply(SupervisorEvent::Time, ""),
            }
            let census = self.core.census(GROUP);
            let all_delayed =
                census.starting == 0 && self.core.held_until(GROUP, self.now()).is_some();
            self.supervisor
                .record_backoff(census.backing_off > 0, all_delayed);
        }
    }

    fn handle_event(&mut self, id: ChildId, event: PoolWorkerEvent) {
        match event {
            PoolWorkerEvent::Ready => self.apply(SupervisorEvent::Ready(id), ""),
            PoolWorkerEvent::Broken => self.apply(SupervisorEvent::Broken(id), ""),
            PoolWorkerEvent::Gone { how, is_cause } => {
                self.stop_stages.remove(&id);
                while self.tasks.try_join_next().is_some() {}
                if self.core.asked() == 0 {
                    self.supervisor.record_loss(&how, is_cause);
                }
                self.apply(SupervisorEvent::Exited(id, ChildExit::Failure), &how);
            }
        }
    }

    fn stop(&mut self, mode: StopMode) {
        let drain = match mode {
            StopMode::Cancel => Some(Duration::ZERO),
            StopMode::DrainFor(time) => Some(time),
            StopMode::Drain => None,
        };
        let is_stopping = self.core.asked() > 0;
        // Escalate once: a worker that does not stop then has the grace time.
        if is_stopping
            && (mode != StopMode::Cancel || self.core.stage(GROUP) != StopStage::Draining)
        {
            return;
        }
        if !is_stopping {
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
        self.apply(SupervisorEvent::Stop, "");
    }

    /// Passes an event to the core, and carries out the effects. If the event is the end of a
    /// worker, `how` says how the worker ended.
    fn apply(&mut self, event: SupervisorEvent, how: &str) {
        let now = self.now();
        for effect in self.core.on(event, now) {
            match effect {
                SupervisorEffect::Start(id, slot) => {
                    let (sender, stop_stage) = watch::channel(StopStage::Running);
                    self.stop_stages.insert(id, sender);
                    let is_first = self.used_slots.insert(slot.number);
                    let lifecycle = WorkerLifecycle::new(
                        Arc::clone(&self.supervisor),
                        slot.number,
                        is_first,
                        stop_stage,
                    );
                    let events = self.sender.clone();
                    // The task ends with its worker, which sends `Gone`, or with this loop.
                    self.tasks
                        .spawn(lifecycle.run(move |event| drop(events.send((id, event)))));
                }
                SupervisorEffect::SetStopStage(id, stage) => {
                    self.stop_stages
                        .get(&id)
                        .into_iter()
                        .for_each(|sender| _ = sender.send_replace(stage));
                }
                SupervisorEffect::Notify(notice) => log_notice(notice, how),
            }
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

fn log_notice(notice: SupervisorNotice, how: &str) {
    match notice {
        SupervisorNotice::Replaced(_) => info!(how, "replacing a worker that has ended"),
        SupervisorNotice::Stopping(_, why) => info!(reason = %why, "stopping a worker"),
        SupervisorNotice::BackingOff { pause, .. } => {
            warn!(
                how,
                ?pause,
                "workers end too soon: the next ones start after a backoff"
            );
        }
        SupervisorNotice::Recovered(_) => info!("workers are stable again"),
        _ => {}
    }
}

async fn sleep_until_wake(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}
