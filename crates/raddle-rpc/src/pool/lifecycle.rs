//! The lifecycle of one worker of a pool: make, start, serve, stop.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt;
use raddle_discovery::{DiscoveryEvent, WorkerMetadata, WorkerUid};
use raddle_model::stop::StopStage;
use raddle_supervisor::StopReason;
use tokio::{sync::watch, time::sleep};
use tracing::warn;

use super::supervisor::PoolSupervisor;
use crate::{
    serve::panic_message,
    worker::{StopMode, Worker},
};

/// How often metadata is polled for changes: a custom worker may restart its process without
/// implementing `changed`.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// An event of a worker.
pub(super) enum PoolWorkerEvent {
    /// It serves.
    Ready,
    /// A balancer has removed it as unusable.
    Broken,
    /// It is gone; this is its last event.
    Gone {
        /// Why.
        how: String,
        /// It was the first in its slot and never became ready.
        is_cause: bool,
    },
}

/// Runs one worker.
pub(super) struct WorkerLifecycle {
    supervisor: Arc<PoolSupervisor>,
    slot: usize,
    /// No worker was in the slot before, and this one has not become ready.
    is_first: bool,
    /// The stage of its stop.
    stop_stage: watch::Receiver<StopStage>,
}

impl WorkerLifecycle {
    pub(super) fn new(
        supervisor: Arc<PoolSupervisor>,
        slot: usize,
        is_first: bool,
        stop_stage: watch::Receiver<StopStage>,
    ) -> Self {
        Self {
            supervisor,
            slot,
            is_first,
            stop_stage,
        }
    }

    /// Runs the worker. Much of this is user code, whose panics must not end the supervisor, and
    /// which must not outlive the kill stage.
    pub(super) async fn run(mut self, send: impl Fn(PoolWorkerEvent) + Send + Sync) {
        let mut killed = self.stop_stage.clone();
        let how = tokio::select! {
            outcome = AssertUnwindSafe(self.run_worker(&send)).catch_unwind() => {
                outcome.unwrap_or_else(|thrown| format!("it panicked: {}", panic_message(&*thrown)))
            }
            Ok(_) = killed.wait_for(|stage| *stage == StopStage::Killing) => {
                warn!("a worker did not stop in time and is dropped");
                "it did not stop in time".to_owned()
            }
        };
        send(PoolWorkerEvent::Gone {
            how,
            is_cause: self.is_first,
        });
    }

    async fn run_worker(&mut self, send: &(impl Fn(PoolWorkerEvent) + Sync)) -> String {
        let supervisor = Arc::clone(&self.supervisor);
        let made = catch_unwind(AssertUnwindSafe(|| {
            (supervisor.plan.make)(self.slot, &supervisor.plan.tags)
        }));
        let worker = match made {
            Ok(worker) => worker,
            Err(thrown) => {
                return format!("the worker factory panicked: {}", panic_message(&*thrown));
            }
        };
        let start = supervisor
            .plan
            .key
            .clone()
            .run_start(worker.start(supervisor.plan.start_timeout));
        let start = AssertUnwindSafe(start).catch_unwind();
        let started = tokio::select! {
            started = start => started,
            () = self.wait_for_stop() => return "stopped".to_owned(),
        };
        match (started, worker.metadata()) {
            (Ok(Ok(())), Some(metadata)) => {
                let _registration = RegistrationGuard {
                    supervisor: &supervisor,
                    uid: metadata.uid,
                };
                supervisor
                    .register_worker(&worker, &metadata, self.is_first)
                    .await;
                self.is_first = false;
                send(PoolWorkerEvent::Ready);
                self.serve(&*worker, metadata, send).await
            }
            (Ok(Ok(())), None) => "it has no address".to_owned(),
            (Ok(Err(error)), _) => error.to_string(),
            (Err(thrown), _) => format!("its start panicked: {}", panic_message(&*thrown)),
        }
    }

    /// Waits until the worker has ended, was removed as unusable, or should stop. Then stops it.
    async fn serve(
        &mut self,
        worker: &dyn Worker,
        mut metadata: WorkerMetadata,
        send: &(impl Fn(PoolWorkerEvent) + Sync),
    ) -> String {
        let supervisor = Arc::clone(&self.supervisor);
        let (is_running, how) = loop {
            tokio::select! {
                how = worker.ended() => break (false, how),
                () = supervisor.context.wait_until_removed(metadata.uid) => {
                    send(PoolWorkerEvent::Broken);
                    break (true, StopReason::Broken.to_string());
                }
                () = self.wait_for_stop() => break (true, "stopped".to_owned()),
                changed = changed(worker, &metadata) => {
                    metadata = changed;
                    supervisor.put_in_context(&metadata);
                    let _ = supervisor.publish(&DiscoveryEvent::Updated(metadata.clone())).await;
                }
            }
        };
        supervisor.unregister_worker(metadata).await;
        if is_running {
            self.wait_for_stop().await;
            self.stop_worker(worker).await;
        }
        supervisor.keep_final_counts(worker).await;
        how
    }

    /// Stops the worker. The mode may become faster meanwhile.
    async fn stop_worker(&mut self, worker: &dyn Worker) {
        let stopped = loop {
            let stage = *self.stop_stage.borrow_and_update();
            let mode = if stage == StopStage::Draining {
                self.supervisor.stop_mode()
            } else {
                StopMode::Cancel
            };
            tokio::select! {
                stopped = worker.stop(mode) => break stopped,
                () = self.wait_for_later_stage(stage) => {}
            }
        };
        if let Err(error) = stopped {
            warn!(worker = %worker.uid(), %error, "cannot stop a worker");
        }
    }

    /// Waits until the worker should stop.
    async fn wait_for_stop(&mut self) {
        self.wait_for_later_stage(StopStage::Running).await;
    }

    /// Waits for a later stage than this.
    async fn wait_for_later_stage(&mut self, than: StopStage) {
        if self
            .stop_stage
            .wait_for(|stage| *stage > than)
            .await
            .is_err()
        {
            // The sender is dropped only together with this task.
            std::future::pending().await
        }
    }
}

/// Waits until the metadata differs from `known`: by `Worker::changed`, or by polling.
async fn changed(worker: &dyn Worker, known: &WorkerMetadata) -> WorkerMetadata {
    let polled = async {
        loop {
            sleep(POLL_INTERVAL).await;
            if let Some(changed) = worker.metadata().filter(|metadata| metadata != known) {
                return changed;
            }
        }
    };
    tokio::select! {
        changed = worker.changed() => changed,
        changed = polled => changed,
    }
}

/// Unregisters the worker on drop, in case its task is cancelled or panics.
struct RegistrationGuard<'a> {
    supervisor: &'a PoolSupervisor,
    uid: WorkerUid,
}

impl Drop for RegistrationGuard<'_> {
    fn drop(&mut self) {
        self.supervisor.drop_worker(self.uid);
    }
}
