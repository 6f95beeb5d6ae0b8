//! The life of one worker: made, started, serving, stopped.

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
    serve::words,
    worker::{StopMode, Worker},
};

/// How often a worker is looked at for something else to say of it: a worker of a user's own making may start its process anew without a word.
const LOOK: Duration = Duration::from_secs(1);

/// What is told of a worker.
pub(super) enum PoolWorkerEvent {
    /// It serves.
    Ready,
    /// A balancer has found it to be broken.
    Broken,
    /// It is gone; nothing more is told of it.
    Gone {
        /// In words.
        how: String,
        /// Whether that is why the first in its place could not serve.
        cause: bool,
    },
}

/// One worker.
pub(super) struct WorkerLifecycle {
    keeper: Arc<PoolSupervisor>,
    place: usize,
    /// Whether nobody was in its place before, and it has not served.
    is_first: bool,
    /// How far it is to stop.
    told: watch::Receiver<StopStage>,
}

impl WorkerLifecycle {
    pub(super) fn new(
        keeper: Arc<PoolSupervisor>,
        place: usize,
        is_first: bool,
        told: watch::Receiver<StopStage>,
    ) -> Self {
        Self {
            keeper,
            place,
            is_first,
            told,
        }
    }

    /// Lives it. Much of it may be a user's code, which must not take the place along when it panics, nor keep it when it should be gone.
    pub(super) async fn run(mut self, say: impl Fn(PoolWorkerEvent) + Send + Sync) {
        let mut killed = self.told.clone();
        let how = tokio::select! {
            lived = AssertUnwindSafe(self.live(&say)).catch_unwind() => {
                lived.unwrap_or_else(|thrown| format!("it panicked: {}", words(&*thrown)))
            }
            Ok(_) = killed.wait_for(|stage| *stage == StopStage::Killing) => {
                warn!("a worker did not stop in time, and is let go of");
                "it did not stop in time".to_owned()
            }
        };
        say(PoolWorkerEvent::Gone {
            how,
            cause: self.is_first,
        });
    }

    async fn live(&mut self, say: &(impl Fn(PoolWorkerEvent) + Sync)) -> String {
        let keeper = Arc::clone(&self.keeper);
        let made = catch_unwind(AssertUnwindSafe(|| {
            (keeper.plan.make)(self.place, &keeper.plan.tags)
        }));
        let worker = match made {
            Ok(worker) => worker,
            Err(thrown) => {
                return format!("whoever makes the workers panicked: {}", words(&*thrown));
            }
        };
        let start = keeper
            .plan
            .key
            .clone()
            .starting(worker.start(keeper.plan.start_timeout));
        let start = AssertUnwindSafe(start).catch_unwind();
        let started = tokio::select! {
            started = start => started,
            () = self.is_told() => return "it is stopped".to_owned(),
        };
        match (started, worker.metadata()) {
            (Ok(Ok(())), Some(metadata)) => {
                let _there = PublishedWorker {
                    keeper: &keeper,
                    uid: metadata.uid,
                };
                keeper.welcome(&worker, &metadata, self.is_first).await;
                self.is_first = false;
                say(PoolWorkerEvent::Ready);
                self.serve(&*worker, metadata, say).await
            }
            (Ok(Ok(())), None) => "it serves nowhere".to_owned(),
            (Ok(Err(error)), _) => error.to_string(),
            (Err(thrown), _) => format!("its start panicked: {}", words(&*thrown)),
        }
    }

    /// Waits until a worker has ended, has been found to be no use, or is to stop; and stops it then.
    async fn serve(
        &mut self,
        worker: &dyn Worker,
        mut metadata: WorkerMetadata,
        say: &(impl Fn(PoolWorkerEvent) + Sync),
    ) -> String {
        let keeper = Arc::clone(&self.keeper);
        let (is_there, how) = loop {
            tokio::select! {
                how = worker.ended() => break (false, how),
                () = keeper.context.wait_until_removed(metadata.uid) => {
                    say(PoolWorkerEvent::Broken);
                    break (true, StopReason::Broken.to_string());
                }
                () = self.is_told() => break (true, "it is stopped".to_owned()),
                changed = changed(worker, &metadata) => {
                    metadata = changed;
                    keeper.put(&metadata);
                    let _ = keeper.publish(&DiscoveryEvent::Updated(metadata.clone())).await;
                }
            }
        };
        keeper.miss(metadata).await;
        if is_there {
            self.is_told().await;
            self.dismiss(worker).await;
        }
        keeper.count(worker).await;
        how
    }

    /// Stops a worker: with what patience there is, which may become less meanwhile.
    async fn dismiss(&mut self, worker: &dyn Worker) {
        let stopped = loop {
            let stage = *self.told.borrow_and_update();
            let patience = if stage == StopStage::Draining {
                self.keeper.patience()
            } else {
                StopMode::None
            };
            tokio::select! {
                stopped = worker.stop(patience) => break stopped,
                () = self.is_told_more(stage) => {}
            }
        };
        if let Err(error) = stopped {
            warn!(worker = %worker.uid(), %error, "a worker could not be stopped");
        }
    }

    /// Waits until it is to stop.
    async fn is_told(&mut self) {
        self.is_told_more(StopStage::Running).await;
    }

    /// Waits until it is to stop faster than that.
    async fn is_told_more(&mut self, than: StopStage) {
        if self.told.wait_for(|stage| *stage > than).await.is_err() {
            // Whoever tells ends this as well.
            std::future::pending().await
        }
    }
}

/// Waits until something else is to be said of a worker than is known. One that does not tell of it is looked at.
async fn changed(worker: &dyn Worker, known: &WorkerMetadata) -> WorkerMetadata {
    let seen = async {
        loop {
            sleep(LOOK).await;
            if let Some(changed) = worker.metadata().filter(|metadata| metadata != known) {
                return changed;
            }
        }
    };
    tokio::select! {
        changed = worker.changed() => changed,
        changed = seen => changed,
    }
}

/// A worker that is known to others, until its life is over, however it ends.
struct PublishedWorker<'a> {
    keeper: &'a PoolSupervisor,
    uid: WorkerUid,
}

impl Drop for PublishedWorker<'_> {
    fn drop(&mut self) {
        self.keeper.forget(self.uid);
    }
}
