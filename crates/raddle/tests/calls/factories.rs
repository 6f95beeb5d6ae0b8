//! Worker factories and workers that panic.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use raddle::{
    WorkerPool, async_trait,
    discovery::LocalDiscovery,
    pool::{
        PoolError, WorkerMetadata, WorkerUid,
        worker::{LocalWorker, StopMode, Worker, WorkerError, WorkerFactory},
    },
};

use crate::{CALLEE, is_alive, routines, signal, wait_until, within};

/// Makes workers, and panics at these requests.
#[derive(Clone, Default)]
struct PanickingFactory {
    panics_at: Vec<usize>,
    requests: Arc<AtomicUsize>,
    made: Arc<Mutex<Vec<Arc<LocalWorker>>>>,
}

impl PanickingFactory {
    fn panicking_at(panics_at: impl IntoIterator<Item = usize>) -> Self {
        Self {
            panics_at: panics_at.into_iter().collect(),
            ..Self::default()
        }
    }

    fn pids(&self) -> Vec<u32> {
        self.made
            .lock()
            .unwrap()
            .iter()
            .filter_map(|worker| Some(worker.process()?.pid()))
            .collect()
    }
}

impl WorkerFactory for PanickingFactory {
    fn make(&self, tags: &BTreeSet<String>) -> Arc<dyn Worker> {
        let nth = self.requests.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics_at.contains(&nth), "dropped number {nth}");
        let worker = Arc::new(LocalWorker::new(tags).program(CALLEE));
        self.made.lock().unwrap().push(Arc::clone(&worker));
        worker
    }
}

fn causes(outcome: Result<WorkerPool, PoolError>) -> Vec<String> {
    match outcome {
        Err(PoolError::Start { causes, .. }) => causes,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_reports_a_panicking_factory_and_leaves_no_process() {
    within(120, async {
        let (factory, name) = (
            PanickingFactory::panicking_at([1]),
            format!("clumsy-{}", std::process::id()),
        );
        let outcome = WorkerPool::builder()
            .name(&name)
            .size(3)
            .worker(factory.clone())
            .start()
            .await;
        let message = outcome
            .as_ref()
            .map(drop)
            .map_err(ToString::to_string)
            .unwrap_err();
        assert!(
            message.starts_with("1 of 3 workers could not be started"),
            "{message}"
        );
        assert_eq!(
            causes(outcome),
            ["the worker factory panicked: dropped number 1"]
        );
        // The workers that were started have ended before the error is returned.
        let pids = factory.pids();
        assert!(
            pids.len() >= 2 && !pids.iter().any(|pid| is_alive(*pid)),
            "{pids:?}"
        );
        assert_eq!(LocalDiscovery::new(&name).unwrap().snapshot(), []);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_a_panicking_factory_for_each_worker() {
    within(120, async {
        let factory = PanickingFactory::panicking_at(0..1000);
        let mut causes = causes(
            WorkerPool::builder()
                .size(2)
                .worker(factory.clone())
                .start()
                .await,
        );
        causes.sort_unstable();
        let cause = |nth| format!("the worker factory panicked: dropped number {nth}");
        assert_eq!(causes, [cause(0), cause(1)]);
        let requests = || factory.requests.load(Ordering::Relaxed);
        let before = requests();
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert_eq!(
            requests(),
            before,
            "no more workers are made for a pool that failed to start"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_survives_a_factory_that_panics_later() {
    within(120, async {
        let factory = PanickingFactory::panicking_at([1]);
        let pool = WorkerPool::builder()
            .size(1)
            .worker(factory.clone())
            .start()
            .await
            .unwrap();
        let before = pool.workers()[0].pid;
        signal(before, libc::SIGKILL);
        wait_until("the worker has ended", async || !is_alive(before)).await;
        // Calls fail while the pool backs off: on a busy machine the worker died soon after its
        // start.
        let mut after = before;
        wait_until("a worker answers", async || {
            after = routines::pid().on(&pool).await.unwrap_or(before);
            after != before
        })
        .await;
        assert!(
            factory.requests.load(Ordering::Relaxed) == 3,
            "the second request panicked"
        );
        pool.stop().await;
        assert!(!factory.pids().iter().any(|pid| is_alive(*pid)));
    })
    .await;
}

/// Panics after the start of its process.
struct PanickingWorker(LocalWorker, Arc<Mutex<Option<u32>>>);

#[async_trait]
impl Worker for PanickingWorker {
    fn uid(&self) -> WorkerUid {
        self.0.uid()
    }

    fn metadata(&self) -> Option<WorkerMetadata> {
        self.0.metadata()
    }

    fn tags(&self) -> &BTreeSet<String> {
        self.0.tags()
    }

    fn extra(&self) -> &std::collections::BTreeMap<String, String> {
        self.0.extra()
    }

    async fn start(&self, timeout: Option<Duration>) -> Result<(), WorkerError> {
        self.0.start(timeout).await?;
        *self.1.lock().unwrap() = self.0.process().map(|process| process.pid());
        panic!("over its own feet");
    }

    async fn stop(&self, patience: StopMode) -> Result<(), WorkerError> {
        self.0.stop(patience).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_a_panicking_start_and_ends_the_process() {
    within(120, async {
        let pid: Arc<Mutex<Option<u32>>> = Arc::default();
        let pid_of_worker = Arc::clone(&pid);
        let panicking = move |tags: &_| {
            PanickingWorker(
                LocalWorker::new(tags).program(CALLEE),
                Arc::clone(&pid_of_worker),
            )
        };
        let causes = causes(
            WorkerPool::builder()
                .size(1)
                .worker(panicking)
                .start()
                .await,
        );
        assert_eq!(causes, ["its start panicked: over its own feet"]);
        let pid = pid.lock().unwrap().expect("the process was started");
        wait_until("the process has ended", async || !is_alive(pid)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_reports_the_version_of_its_program() {
    within(120, async {
        let versioned =
            |tags: &_| LocalWorker::new(tags).program(env!("CARGO_BIN_EXE_raddle-test-versioned"));
        let other = crate::pool(1).worker(versioned).start().await.unwrap();
        assert_eq!(other.workers()[0].version, "7.8.9");
        let own = crate::pool(1).start().await.unwrap();
        assert_eq!(
            own.workers()[0].version,
            env!("CARGO_PKG_VERSION"),
            "by `#[raddle::main]`"
        );
    })
    .await;
}
