//! Writes what became of attempts to the broker, in batches, while the slots go on with the next.
//!
//! A slot does not wait until its last task is on disk: the lease covers it meanwhile. What comes in while one batch is being
//! committed makes up the next. When there is more to come, a batch also waits a moment for company, because a commit costs the
//! same for one as for many.

use std::{
    collections::HashSet,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use raddle_broker::{Broker, Error, Fence, Finish, Release, Started, Verdict};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep, timeout_at},
};

/// One thing to be written.
pub(super) enum Entry {
    Started(Started),
    Finish(Finish),
    Release(Release),
}

/// What the broker made of an entry that ended an attempt.
pub(super) struct Settled {
    pub(super) fence: Fence,
    pub(super) verdict: Verdict,
}

/// The writing end. The ledger is complete once [`close`](Self::close) returns.
pub(super) struct Ledger {
    entries: mpsc::UnboundedSender<Entry>,
    task: JoinHandle<()>,
    busy: Arc<AtomicBool>,
}

/// How long a batch waits for company while more is to come.
const LINGER: Duration = Duration::from_millis(6);
/// How long the start of an attempt may go unwritten. Most short attempts are over by then, and one write tells both.
const START_LINGER: Duration = Duration::from_millis(10);
const RETRY_PAUSE: Duration = Duration::from_millis(250);

impl Ledger {
    /// Entries come from the worker's slots, one or two for each attempt, so the channel is bounded by the number of slots in effect.
    pub(super) fn start(broker: Arc<dyn Broker>, settled: mpsc::UnboundedSender<Settled>) -> Self {
        let (entries, queue) = mpsc::unbounded_channel();
        let busy = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(keep(broker, queue, settled, Arc::clone(&busy)));
        Self { entries, task, busy }
    }

    pub(super) fn write(&self, entry: Entry) {
        // The other end lives until `close`, which takes `self`.
        let _ = self.entries.send(entry);
    }

    /// Says whether more entries are to be expected at once.
    pub(super) fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }

    /// Writes what is left.
    pub(super) async fn close(self) {
        self.set_busy(false);
        drop(self.entries);
        let _ = self.task.await;
    }
}

#[derive(Default)]
struct Batch {
    started: Vec<Started>,
    finish: Vec<Finish>,
    release: Vec<Release>,
}

impl Batch {
    fn add(&mut self, entry: Entry) {
        match entry {
            Entry::Started(started) => self.started.push(started),
            Entry::Finish(finish) => self.finish.push(finish),
            Entry::Release(release) => self.release.push(release),
        }
    }

    /// Whether something in it ends an attempt.
    fn is_pressing(&self) -> bool {
        !self.finish.is_empty() || !self.release.is_empty()
    }

    /// Leaves out starts that are told by an end in the same batch.
    fn condense(&mut self) {
        let ended: HashSet<Fence> = self.finish.iter().map(|finish| finish.fence).collect();
        self.started.retain(|started| !ended.contains(&started.fence));
    }
}

async fn keep(
    broker: Arc<dyn Broker>,
    mut queue: mpsc::UnboundedReceiver<Entry>,
    settled: mpsc::UnboundedSender<Settled>,
    busy: Arc<AtomicBool>,
) {
    while let Some(first) = queue.recv().await {
        let mut batch = Batch::default();
        batch.add(first);
        gather(&mut batch, &mut queue, &busy).await;
        batch.condense();
        write(&*broker, batch, &settled).await;
    }
}

async fn gather(batch: &mut Batch, queue: &mut mpsc::UnboundedReceiver<Entry>, busy: &AtomicBool) {
    let began = Instant::now();
    loop {
        while let Ok(entry) = queue.try_recv() {
            batch.add(entry);
        }
        let linger = match (batch.is_pressing(), busy.load(Ordering::Relaxed)) {
            (true, false) => return,
            (true, true) => LINGER,
            (false, _) => START_LINGER,
        };
        match timeout_at(began + linger, queue.recv()).await {
            Ok(Some(entry)) => batch.add(entry),
            Ok(None) | Err(_) => return,
        }
    }
}

async fn write(broker: &dyn Broker, batch: Batch, settled: &mpsc::UnboundedSender<Settled>) {
    let Batch { started, finish, release } = batch;
    let fences: Vec<Fence> =
        finish.iter().map(|finish| finish.fence).chain(release.iter().map(|release| release.fence)).collect();
    // Asked for together, so that the engine can do them together.
    let (begun, finished, released) = tokio::join!(
        async { if started.is_empty() { Ok(()) } else { broker.started(started).await } },
        persist(finish, |finish| broker.finish(finish)),
        persist(release, |release| broker.release(release)),
    );
    if let Err(error) = begun {
        tracing::warn!(%error, "the start of attempts could not be noted");
    }
    for (fence, verdict) in fences.into_iter().zip(finished.into_iter().chain(released)) {
        if verdict == Verdict::Stale {
            tracing::warn!(tid = %fence.tid, attempt = fence.attempt, "what became of it was not taken");
        }
        let _ = settled.send(Settled { fence, verdict });
    }
}

/// Writes entries, and gives a verdict for each whatever happens. What cannot be written is found one by one, so that it takes no other
/// with it; its task runs again when this worker is gone.
async fn persist<T, W>(entries: Vec<T>, write: impl Fn(Vec<T>) -> W) -> Vec<Verdict>
where
    T: Clone,
    W: Future<Output = Result<Vec<Verdict>, Error>>,
{
    if entries.is_empty() {
        return Vec::new();
    }
    if let Ok(verdicts) = insist(entries.clone(), &write).await {
        return verdicts;
    }
    let mut verdicts = Vec::with_capacity(entries.len());
    for entry in entries {
        verdicts.extend(insist(vec![entry], &write).await.unwrap_or_else(|error| {
            tracing::error!(%error, "what became of a task cannot be written");
            vec![Verdict::Stale]
        }));
    }
    verdicts
}

/// Tries again what may succeed later, for as long as it takes: the lease covers these tasks meanwhile, and a full disk may be emptied.
async fn insist<T, W>(entries: Vec<T>, write: &impl Fn(Vec<T>) -> W) -> Result<Vec<Verdict>, Error>
where
    T: Clone,
    W: Future<Output = Result<Vec<Verdict>, Error>>,
{
    loop {
        match write(entries.clone()).await {
            Err(error) if error.is_retryable() => {
                tracing::error!(%error, "results cannot be written yet");
                sleep(RETRY_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}
