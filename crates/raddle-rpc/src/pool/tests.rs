//! What a pool does about workers that come and go, with workers that do as they are told. With real ones it is tested in `crates/raddle/tests`.

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

/// A worker that serves at once, ends when it is told, and may ignore that it is to stop.
struct Puppet {
    metadata: WorkerMetadata,
    tags: BTreeSet<String>,
    extra: BTreeMap<String, String>,
    ended: watch::Sender<bool>,
    theatre: Arc<Theatre>,
}

/// All that were made.
#[derive(Default)]
struct Theatre {
    made: Mutex<Vec<Arc<Puppet>>>,
    /// How each was told to stop, in order.
    stops: Mutex<Vec<StopMode>>,
    is_deaf: bool,
}

#[async_trait]
impl Worker for Puppet {
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

    async fn stop(&self, patience: StopMode) -> Result<(), WorkerError> {
        self.theatre.stops.lock().unwrap().push(patience);
        if self.theatre.is_deaf || patience != StopMode::None {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn ended(&self) -> String {
        drop(self.ended.subscribe().wait_for(|ended| *ended).await);
        "its strings were cut".into()
    }
}

impl Theatre {
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
        let puppet = Arc::new(Puppet {
            metadata,
            tags,
            extra,
            ended,
            theatre: Arc::clone(self),
        });
        self.made.lock().unwrap().push(Arc::clone(&puppet));
        puppet
    }

    fn last(&self) -> Arc<Puppet> {
        Arc::clone(self.made.lock().unwrap().last().expect("one was made"))
    }

    /// Ends the last, and says how long it took until another served.
    async fn cut(&self, keeper: &PoolSupervisor) -> Duration {
        let last = self.last();
        let cut = Instant::now();
        last.ended.send_replace(true);
        while !keeper
            .serving()
            .iter()
            .any(|worker| worker.uid != last.metadata.uid)
        {
            sleep(Duration::from_millis(1)).await;
        }
        cut.elapsed()
    }
}

/// A keeper of one worker, and whoever made it.
async fn kept(is_deaf: bool) -> (Arc<PoolSupervisor>, BalancerContext, Arc<Theatre>) {
    let theatre = Arc::new(Theatre {
        is_deaf,
        ..Theatre::default()
    });
    let maker = Arc::clone(&theatre);
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
        is_called_here: true,
    };
    let context = BalancerContext::default();
    let keeper = PoolSupervisor::new(plan, context.clone());
    keeper.begin();
    keeper.started().await.unwrap();
    (keeper, context, theatre)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn who_is_killed_is_replaced_at_once_and_a_crash_loop_is_held_back() {
    let (keeper, _, theatre) = kept(false).await;
    for _ in 0..3 {
        assert!(theatre.cut(&keeper).await < secs(1) / 10);
        assert!(!keeper.standing().2, "that can happen");
    }
    assert!(theatre.cut(&keeper).await >= secs(1) / 2);
    assert!(theatre.cut(&keeper).await >= secs(1));
    assert_eq!((keeper.standing().1, keeper.standing().2), (5, true));
    sleep(secs(11)).await;
    assert!(!keeper.standing().2, "it stays");
    assert!(theatre.cut(&keeper).await < secs(1) / 10);
    keeper.stop(StopMode::None).await;
    assert_eq!(keeper.serving(), []);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_no_use_is_cancelled_and_replaced() {
    let (keeper, context, theatre) = kept(false).await;
    let first = theatre.last().metadata.uid;
    context.remove_worker(first);
    while keeper.serving().iter().all(|worker| worker.uid == first) {
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(*theatre.stops.lock().unwrap(), [StopMode::None]);
    assert_eq!((keeper.standing().1, context.workers().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn patience_ends_when_it_was_to_or_is_told_to() {
    let (keeper, _, theatre) = kept(false).await;
    let began = Instant::now();
    keeper.stop(StopMode::For(secs(5))).await;
    assert!((secs(5)..secs(6)).contains(&began.elapsed()));
    assert_eq!(
        *theatre.stops.lock().unwrap(),
        [StopMode::For(secs(5)), StopMode::None]
    );

    let (keeper, _, theatre) = kept(false).await;
    let mut stopping = Box::pin(keeper.stop(StopMode::Endless));
    assert!(timeout(secs(3600), &mut stopping).await.is_err());
    // Whoever is told again and again is not told more.
    keeper.hurry();
    keeper.hurry();
    stopping.await;
    assert_eq!(
        *theatre.stops.lock().unwrap(),
        [StopMode::Endless, StopMode::None]
    );
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_stop_is_let_go_of() {
    let (keeper, context, _) = kept(true).await;
    let began = Instant::now();
    keeper.stop(StopMode::None).await;
    assert!(
        (secs(10)..secs(60)).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
    assert!(keeper.serving().is_empty() && context.workers().is_empty());
}

/// A worker that takes a while to start.
struct Slow(BTreeSet<String>, BTreeMap<String, String>);

#[async_trait]
impl Worker for Slow {
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
fn a_wait_for_the_first_worker_is_explained_once() {
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
            make: Arc::new(|_, _| Arc::new(Slow(BTreeSet::new(), BTreeMap::new()))),
            publishers: Vec::new(),
            start_timeout: None,
            limit: 1,
            key: PoolKey::generate(),
            credentials: None,
            is_called_here: true,
        };
        let keeper = PoolSupervisor::new(plan, BalancerContext::default());
        let (wants, brief) = (WorkerDemand(Arc::clone(&keeper)), Duration::from_secs(1));
        // Two calls, and who waits for the pool to start.
        let calls = tokio::join!(
            wants.wanted(0, brief),
            wants.wanted(0, brief),
            keeper.started()
        );
        assert!(calls.2.is_ok() && [calls.0, calls.1] == [DemandOutcome::Came; 2]);
        keeper.stop(StopMode::None).await;
    };
    let log = raddle_process::testing::capture_logs(|| runtime.block_on(waiting));
    assert_eq!(log.matches("WARN").count(), 1, "{log}");
    assert!(
        log.contains("a pool waits for workers: 0 of 1 serve; they are being started"),
        "{log}"
    );
}
