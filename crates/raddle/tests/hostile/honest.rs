//! Callers that want nothing but an answer, while others do what they do: one that has come before them, and one that comes anew each time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use raddle::{WorkerProxy, pool::WorkerMetadata, tls::WorkerCredentials};
use tokio::task::JoinHandle;

use crate::{Site, routines};

/// How long a call may take before nobody would call that served.
const LONGEST: Duration = Duration::from_secs(20);
/// How often somebody comes anew.
const OFTEN: usize = 20;

/// Calls all the while.
pub(crate) struct Honest {
    is_over: Arc<AtomicBool>,
    calling: JoinHandle<Vec<Duration>>,
    before: Duration,
}

impl Honest {
    /// Begins to call, and finds out how long that takes while nobody minds.
    pub(crate) async fn begin(site: &Site) -> Self {
        let (worker, credentials) = (site.worker(), site.honest());
        let mut alone = Vec::new();
        let proxy = proxy(&worker, credentials.as_ref(), 100).await;
        for _ in 0..50 {
            alone.push(call(&proxy).await);
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let calling = tokio::spawn(keep_calling(
            proxy,
            worker,
            credentials,
            Arc::clone(&is_over),
        ));
        Self {
            is_over,
            calling,
            before: median(&mut alone),
        }
    }

    /// All calls have been answered, and half of them in good time.
    pub(crate) async fn was_served(self) {
        self.is_over.store(true, Ordering::Relaxed);
        let mut times = self.calling.await.expect("every call was answered");
        let (count, median) = (times.len(), median(&mut times));
        println!(
            "{count} calls, median {median:?} (alone {:?}), longest {:?}",
            self.before,
            times.last()
        );
        // As it would be without anybody else, give or take what they have to share the machine with.
        assert!(
            median < (200 * self.before).max(Duration::from_millis(500)),
            "{median:?} of {:?}",
            self.before
        );
    }
}

async fn keep_calling(
    warm: WorkerProxy,
    worker: WorkerMetadata,
    credentials: Option<WorkerCredentials>,
    is_over: Arc<AtomicBool>,
) -> Vec<Duration> {
    let mut times = Vec::new();
    // At least one that comes anew, and after all that was done.
    while !is_over.load(Ordering::Relaxed) || times.len() < OFTEN || times.len() % OFTEN != 1 {
        let new = times.len() % OFTEN == 0;
        let time = if new {
            call(&newcomer(&worker, credentials.as_ref()).await).await
        } else {
            call(&warm).await
        };
        times.push(time);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    times
}

/// Calls of another limit have a connection of their own.
async fn newcomer(worker: &WorkerMetadata, credentials: Option<&WorkerCredentials>) -> WorkerProxy {
    static NEXT: AtomicUsize = AtomicUsize::new(1000);
    proxy(worker, credentials, NEXT.fetch_add(1, Ordering::Relaxed)).await
}

async fn proxy(
    worker: &WorkerMetadata,
    credentials: Option<&WorkerCredentials>,
    limit: usize,
) -> WorkerProxy {
    let proxy = WorkerProxy::of_workers([worker.clone()]).limit(limit);
    let proxy = match credentials {
        Some(credentials) => proxy.credentials(credentials.clone()),
        None => proxy,
    };
    proxy.start().await.unwrap()
}

async fn call(proxy: &WorkerProxy) -> Duration {
    let began = Instant::now();
    assert_eq!(
        routines::add(1, 2).on(proxy).timeout(LONGEST).await,
        Ok(3),
        "after {:?}",
        began.elapsed()
    );
    began.elapsed()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
