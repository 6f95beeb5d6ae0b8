//! Callers that only want a result during an attack: one with an old connection, and one with new
//! connections.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use raddle::{WorkerProxy, pool::WorkerMetadata, tls::WorkerCredentials};
use tokio::task::JoinHandle;

use crate::{TargetServer, routines};

/// The limit for a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
/// After how many calls a new connection is made.
const CALLS_PER_CONNECTION: usize = 20;

/// Calls all the time.
pub(crate) struct HonestCaller {
    is_over: Arc<AtomicBool>,
    calling: JoinHandle<Vec<Duration>>,
    before: Duration,
}

impl HonestCaller {
    /// Starts to call, and measures the latency without an attack.
    pub(crate) async fn begin(target: &TargetServer) -> Self {
        let (worker, credentials) = (target.worker(), target.honest());
        let mut baseline = Vec::new();
        let proxy = proxy(&worker, credentials.as_ref(), 100).await;
        for _ in 0..50 {
            baseline.push(call(&proxy).await);
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
            before: median(&mut baseline),
        }
    }

    /// Checks that all calls succeeded, and that the median latency is acceptable.
    pub(crate) async fn assert_served(self) {
        self.is_over.store(true, Ordering::Relaxed);
        let mut times = self.calling.await.expect("every call succeeded");
        let (count, median) = (times.len(), median(&mut times));
        println!(
            "{count} calls, median {median:?} (alone {:?}), longest {:?}",
            self.before,
            times.last()
        );
        // The attack shares the machine, so the bound is generous.
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
    // At least one new connection after the attack.
    while !is_over.load(Ordering::Relaxed)
        || times.len() < CALLS_PER_CONNECTION
        || times.len() % CALLS_PER_CONNECTION != 1
    {
        let new = times.len() % CALLS_PER_CONNECTION == 0;
        let time = if new {
            call(&new_proxy(&worker, credentials.as_ref()).await).await
        } else {
            call(&warm).await
        };
        times.push(time);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    times
}

/// A proxy with another limit has its own connection.
async fn new_proxy(
    worker: &WorkerMetadata,
    credentials: Option<&WorkerCredentials>,
) -> WorkerProxy {
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
        routines::add(1, 2).on(proxy).timeout(CALL_TIMEOUT).await,
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
