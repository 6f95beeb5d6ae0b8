//! Writes what became of attempts to the broker, in batches, while the slots go on with the next.
//!
//! A slot does not wait until its last task is on disk: the lease covers it meanwhile. What comes in while one batch is being
//! committed makes up the next. When there is more to come, a batch also waits a moment for company, because a commit costs the
//! same for one as for many.

use std::{
    collections::HashSet,
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
    let finish_fences: Vec<Fence> = finish.iter().map(|finish| finish.fence).collect();
    let release_fences: Vec<Fence> = release.iter().map(|release| release.fence).collect();
    // All three go into one transaction of the engine, in this order.
    let (begun, finished, released) = tokio::join!(
        async { if started.is_empty() { Ok(()) } else { broker.started(started).await } },
        async { if finish.is_empty() { Ok(Vec::new()) } else { persist(broker, finish).await } },
        async { if release.is_empty() { Ok(Vec::new()) } else { broker.release(release).await } },
    );
    if let Err(error) = begun {
        tracing::warn!(%error, "the start of attempts could not be noted");
    }
    for (fences, verdicts) in [(finish_fences, finished), (release_fences, released)] {
        match verdicts {
            Ok(verdicts) => {
                for (fence, verdict) in fences.into_iter().zip(verdicts) {
                    if verdict == Verdict::Stale {
                        tracing::warn!(tid = %fence.tid, attempt = fence.attempt, "the result came too late and was refused");
                    }
                    let _ = settled.send(Settled { fence, verdict });
                }
            }
            // The lease covers these tasks no longer than this worker lives: then they run again.
            Err(error) => tracing::error!(%error, tasks = fences.len(), "results could not be written"),
        }
    }
}

/// Results are worth another try as long as the lease can be kept: a full disk may be emptied.
async fn persist(broker: &dyn Broker, finish: Vec<Finish>) -> Result<Vec<Verdict>, Error> {
    loop {
        match broker.finish(finish.clone()).await {
            Err(error) if error.is_retryable() => {
                tracing::error!(%error, "results cannot be written yet");
                sleep(RETRY_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}
