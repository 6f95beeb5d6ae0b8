//! Tests of pool supervision with scripted workers. Those with processes are in
//! `crates/raddle/tests`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use raddle_discovery::{WorkerMetadata, WorkerUid};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::supervisor::{PoolPlan, PoolSupervisor, WorkerDemand};
use crate::{
    balancer::BalancerContext,
    membership::PoolKey,
    proxy::{DemandOutcome, WorkerSource},
    worker::{StopMode, Worker, WorkerError},
};

/// A worker that is ready at once, ends on request, and may ignore a stop.
struct ScriptedWorker {
    metadata: WorkerMetadata,
    tags: BTreeSet<String>,
    extra: BTreeMap<String, String>,
    ended: watch::Sender<bool>,
    script: Arc<WorkerScript>,
}

/// Makes the workers of a test, and records their stops.
#[derive(Default)]
struct WorkerScript {
    made: Mutex<Vec<Arc<ScriptedWorker>>>,
    /// The mode of each stop, in order.
    stops: Mutex<Vec<StopMode>>,
    ignores_stop: bool,
}

#[async_trait]
impl Worker for ScriptedWorker {
    fn uid(&self) -> WorkerUid {
        self.metadata.uid
    }

    fn metadata(&self) -> Option<WorkerMetadata> {
        Some(self.metadata.clone())
    }

    fn tags(&self) -> &BTreeSet<String> {
        &self.tags
    }

    fn extra(&self) -> &BTreeMap<String, String> {
        &self.extra
    }

    async fn start(&self, _: Option<Duration>) -> Result<(), WorkerError> {
        Ok(())
    }

    async fn stop(&self, mode: StopMode) -> Result<(), WorkerError> {
        self.script.stops.lock().unwrap().push(mode);
        if self.script.ignores_stop || mode != StopMode::Cancel {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn ended(&self) -> String {
        drop(self.ended.subscribe().wait_for(|ended| *ended).await);
        "ended by the test".into()
    }
}

impl WorkerScript {
    fn make(self: &Arc<Self>) -> Arc<dyn Worker> {
        let uid = WorkerUid::new();
        let metadata = WorkerMetadata {
            uid,
            address: format!("unix-abstract:{uid}"),
            pid: 0,
            version: String::new(),
            tags: BTreeSet::new(),
            extra: BTreeMap::new(),
            secure: false,
            encodings: [].into(),
        };
        let (tags, extra, ended) = (BTreeSet::new(), BTreeMap::new(), watch::Sender::new(false));
        let worker = Arc::new(ScriptedWorker {
            metadata,
            tags,
            extra,
            ended,
            script: Arc::clone(self),
        });
        self.made.lock().unwrap().push(Arc::clone(&worker));
        worker
    }

    fn last(&self) -> Arc<ScriptedWorker> {
        Arc::clone(self.made.lock().unwrap().last().expect("one was made"))
    }

    /// Ends the last worker, and returns the time until another one is ready.
    async fn end_last(&self, supervisor: &PoolSupervisor) -> Duration {
        let last = self.last();
        let ended_at = Instant::now();
        last.ended.send_replace(true);
        while !supervisor
            .serving()
            .iter()
            .any(|worker| worker.uid != last.metadata.uid)
        {
            sleep(Duration::from_millis(1)).await;
        }
        ended_at.elapsed()
    }
}

/// A pool of one worker.
async fn start_pool(
    ignores_stop: bool,
) -> (Arc<PoolSupervisor>, BalancerContext, Arc<WorkerScript>) {
    let script = Arc::new(WorkerScript {
        ignores_stop,
        ..WorkerScript::default()
    });
    let maker = Arc::clone(&script);
    let plan = PoolPlan {
        size: 1,
        quorum: 1,
        tags: BTreeSet::new(),
        make: Arc::new(move |_, _| maker.make()),
        publishers: Vec::new(),
        start_timeout: None,
        limit: 1,
        key: PoolKey::generate(),
        credentials: None,
        is_local_caller: true,
    };
    let context = BalancerContext::default();
    let supervisor = PoolSupervisor::new(plan, context.clone());
    supervisor.start();
    supervisor.wait_until_started().await.unwrap();
    (supervisor, context, script)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn replaces_a_killed_worker_at_once_and_delays_a_crash_loop() {
    let (supervisor, _, script) = start_pool(false).await;
    for _ in 0..3 {
        assert!(script.end_last(&supervisor).await < secs(1) / 10);
        assert!(!supervisor.status().2, "three losses are no crash loop");
    }
    assert!(script.end_last(&supervisor).await >= secs(1) / 2);
    assert!(script.end_last(&supervisor).await >= secs(1));
    assert_eq!((supervisor.status().1, supervisor.status().2), (5, true));
    sleep(secs(11)).await;
    assert!(!supervisor.status().2, "the worker is stable");
    assert!(script.end_last(&supervisor).await < secs(1) / 10);
    supervisor.stop(StopMode::Cancel).await;
    assert_eq!(supervisor.serving(), []);
}

#[tokio::test(start_paused = true)]
async fn replaces_an_unusable_worker() {
    let (supervisor, context, script) = start_pool(false).await;
    let first = script.last().metadata.uid;
    context.remove_worker(first);
    while supervisor
        .serving()
        .iter()
        .all(|worker| worker.uid == first)
    {
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(*script.stops.lock().unwrap(), [StopMode::Cancel]);
    assert_eq!((supervisor.status().1, context.workers().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn drain_ends_at_its_timeout_or_when_escalated() {
    let (supervisor, _, script) = start_pool(false).await;
    let began = Instant::now();
    supervisor.stop(StopMode::DrainFor(secs(5))).await;
    assert!((secs(5)..secs(6)).contains(&began.elapsed()));
    assert_eq!(
        *script.stops.lock().unwrap(),
        [StopMode::DrainFor(secs(5)), StopMode::Cancel]
    );

    let (supervisor, _, script) = start_pool(false).await;
    let mut stopping = Box::pin(supervisor.stop(StopMode::Drain));
    assert!(timeout(secs(3600), &mut stopping).await.is_err());
    // Further escalations have no effect.
    supervisor.escalate_stop();
    supervisor.escalate_stop();
    stopping.await;
    assert_eq!(
        *script.stops.lock().unwrap(),
        [StopMode::Drain, StopMode::Cancel]
    );
}

#[tokio::test(start_paused = true)]
async fn drops_a_worker_that_does_not_stop() {
    let (supervisor, context, _) = start_pool(true).await;
    let began = Instant::now();
    supervisor.stop(StopMode::Cancel).await;
    assert!(
        (secs(10)..secs(60)).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
    assert!(supervisor.serving().is_empty() && context.workers().is_empty());
}

/// A worker that starts slowly.
struct SlowWorker(BTreeSet<String>, BTreeMap<String, String>);

#[async_trait]
impl Worker for SlowWorker {
    fn uid(&self) -> WorkerUid {
        WorkerUid::of_address("unix-abstract:slow")
    }

    fn metadata(&self) -> Option<WorkerMetadata> {
        Some(WorkerMetadata::at("unix-abstract:slow"))
    }

    fn tags(&self) -> &BTreeSet<String> {
        &self.0
    }

    fn extra(&self) -> &BTreeMap<String, String> {
        &self.1
    }

    async fn start(&self, _: Option<Duration>) -> Result<(), WorkerError> {
        sleep(Duration::from_secs(10)).await;
        Ok(())
    }

    async fn stop(&self, _: StopMode) -> Result<(), WorkerError> {
        Ok(())
    }
}

#[test]
fn wait_for_the_first_worker_is_explained_once() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let waiting = async {
        let plan = PoolPlan {
            size: 1,
            quorum: 1,
            tags: BTreeSet::new(),
            make: Arc::new(|_, _| Arc::new(SlowWorker(BTreeSet::new(), BTreeMap::new()))),
            publishers: Vec::new(),
            start_timeout: None,
            limit: 1,
            key: PoolKey::generate(),
            credentials: None,
            is_local_caller: true,
        };
        let supervisor = PoolSupervisor::new(plan, BalancerContext::default());
        let (demand, brief) = (
            WorkerDemand(Arc::clone(&supervisor)),
            Duration::from_secs(1),
        );
        // Two calls, and the start of the pool.
        let calls = tokio::join!(
            demand.request_worker(0, brief),
            demand.request_worker(0, brief),
            supervisor.wait_until_started()
        );
        assert!(calls.2.is_ok() && [calls.0, calls.1] == [DemandOutcome::Arrived; 2]);
        supervisor.stop(StopMode::Cancel).await;
    };
    let log = raddle_process::testing::capture_logs(|| runtime.block_on(waiting));
    assert_eq!(log.matches("WARN").count(), 1, "{log}");
    assert!(
        log.contains("waiting for workers: 0 of 1 are ready; they are starting"),
        "{log}"
    );
}
