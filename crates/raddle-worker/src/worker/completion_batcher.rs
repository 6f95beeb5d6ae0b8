//! `CompletionBatcher`: writes starts and ends of attempts to the broker in batches, while the
//! slots run the next tasks.
//!
//! A slot does not wait for the fsync of its last task: the lease covers that task meanwhile.
//! Writes that arrive during one commit form the next batch. If more writes are expected, a batch
//! also waits up to [`LINGER`], because a commit costs the same for one entry as for many.
//!
//! Failed writes are retried, because the lease covers the tasks and a full disk may get space.
//! After the shutdown deadline each write is tried once more and then given up: its task runs
//! again.

use std::{
    collections::HashSet,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use raddle_broker::{
    AttemptId, AttemptStarted, Broker, Completion, CompletionOutcome, Error, Release,
};
use raddle_model::{ExitStatus, ExponentialBackoff};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep, timeout_at},
};

use super::{
    attempt_tracing, event::WorkerLoopEvent, shutdown_deadline::DeadlineWatch, slot::ended,
};

/// A write to the broker.
#[derive(Debug)]
pub(super) enum PendingWrite {
    Started(AttemptStarted),
    Finish(Box<Completion>),
    /// The end of an attempt that was not started.
    Unbegun {
        attempt_id: AttemptId,
        exit: ExitStatus,
    },
    Release(Release),
}

/// The sending end. All writes are done when [`close`](Self::close) returns.
pub(super) struct CompletionBatcher {
    entries: mpsc::UnboundedSender<PendingWrite>,
    task: JoinHandle<()>,
    busy: Arc<AtomicBool>,
}

/// How long a batch waits for more entries while more are expected.
const LINGER: Duration = Duration::from_millis(6);
/// How long the start of an attempt may stay unwritten. Most short attempts end within that time,
/// and the write of the end covers the start.
const START_LINGER: Duration = Duration::from_millis(10);
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Pauses between retries.
const BACKOFF: ExponentialBackoff = ExponentialBackoff::new(RETRY_PAUSE, Duration::from_secs(4));
pub(super) const GIVEN_UP: &str =
    "the end of this task could not be written: it will run again";

impl CompletionBatcher {
    /// The channels need no bound: each attempt sends one or two entries, and slots are few.
    /// `events` gets one event for each entry, or one for each retry.
    pub(super) fn start(
        broker: Arc<dyn Broker>,
        events: mpsc::UnboundedSender<WorkerLoopEvent>,
        pace: DeadlineWatch,
    ) -> Self {
        let (entries, queue) = mpsc::unbounded_channel();
        let busy = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(
            BatchWriter {
                broker,
                events,
                pace,
            }
            .keep(queue, Arc::clone(&busy)),
        );
        Self {
            entries,
            task,
            busy,
        }
    }

    pub(super) fn write(&self, entry: PendingWrite) {
        // The receiver lives until `close`, which takes `self`.
        let _ = self.entries.send(entry);
    }

    /// Sets whether more entries are expected soon.
    pub(super) fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }

    /// Writes the remaining entries.
    pub(super) async fn close(self) {
        self.set_busy(false);
        drop(self.entries);
        let _ = self.task.await;
    }
}

#[derive(Default)]
struct WriteBatch {
    started: Vec<AttemptStarted>,
    finish: Vec<Completion>,
    release: Vec<Release>,
}

impl WriteBatch {
    fn add(&mut self, entry: PendingWrite) {
        match entry {
            PendingWrite::Started(started) => self.started.push(started),
            PendingWrite::Finish(finish) => self.finish.push(*finish),
            PendingWrite::Unbegun { attempt_id, exit } => self.finish.push(ended(attempt_id, exit)),
            PendingWrite::Release(release) => self.release.push(release),
        }
    }

    /// Whether the batch contains the end of an attempt.
    fn is_pressing(&self) -> bool {
        !self.finish.is_empty() || !self.release.is_empty()
    }

    /// Removes starts whose end is in the same batch.
    fn condense(&mut self) {
        let ended: HashSet<AttemptId> =
            self.finish.iter().map(|finish| finish.attempt_id).collect();
        self.started
            .retain(|started| !ended.contains(&started.attempt_id));
    }
}

/// The tokio task that writes.
struct BatchWriter {
    broker: Arc<dyn Broker>,
    events: mpsc::UnboundedSender<WorkerLoopEvent>,
    pace: DeadlineWatch,
}

/// Why entries were not written.
enum WriteFailure {
    /// The broker refuses them.
    Refused(Error),
    /// The shutdown deadline has passed.
    GivenUp(Option<Error>),
}

impl BatchWriter {
    async fn keep(self, mut queue: mpsc::UnboundedReceiver<PendingWrite>, busy: Arc<AtomicBool>) {
        while let Some(first) = queue.recv().await {
            let mut batch = WriteBatch::default();
            batch.add(first);
            gather(&mut batch, &mut queue, &busy).await;
            batch.condense();
            self.write(batch).await;
        }
    }

    async fn write(&self, batch: WriteBatch) {
        let WriteBatch {
            started,
            finish,
            release,
        } = batch;
        // Concurrent calls, so that the engine can put them into one transaction.
        let ((), unfinished, unreleased) = tokio::join!(
            self.note(started),
            self.persist(
                finish,
                |finish| finish.attempt_id,
                |finish| self.broker.finish(finish)
            ),
            self.persist(
                release,
                |release| release.attempt_id,
                |release| self.broker.release(release)
            ),
        );
        // If the broker refuses the end of an attempt, the task must not stay assigned to this
        // worker while it lives.
        if !unfinished.is_empty() {
            // The task comes back at once: the pause keeps this from becoming a busy loop.
            sleep(RETRY_PAUSE).await;
        }
        let back: Vec<Release> = unfinished.into_iter().map(give_back).collect();
        let unreturned = self
            .persist(
                back,
                |release| release.attempt_id,
                |release| self.broker.release(release),
            )
            .await;
        for (attempt_id, error) in unreleased.into_iter().chain(unreturned) {
            tracing::error!(tid = %attempt_id.tid, attempt = attempt_id.attempt, reason = %error, "{GIVEN_UP}");
            let _ = self
                .events
                .send(WorkerLoopEvent::Refused { attempt_id, error });
        }
    }

    async fn note(&self, started: Vec<AttemptStarted>) {
        if !started.is_empty()
            && let Some(Err(error)) = self.pace.clone().bound(self.broker.started(started)).await
        {
            tracing::warn!(%error, "starts of attempts could not be written");
        }
    }

    /// Writes entries and reports the outcome of each. Returns those that the broker refuses: after
    /// a refused batch each entry is tried alone, so that a bad one does not take the others with
    /// it.
    async fn persist<T, W>(
        &self,
        entries: Vec<T>,
        attempt_id: impl Fn(&T) -> AttemptId,
        write: impl Fn(Vec<T>) -> W,
    ) -> Vec<(AttemptId, Error)>
    where
        T: Clone,
        W: Future<Output = Result<Vec<CompletionOutcome>, Error>>,
    {
        let mut refused = Vec::new();
        if entries.is_empty() {
            return refused;
        }
        let fences: Vec<AttemptId> = entries.iter().map(attempt_id).collect();
        match self.insist(&entries, &write).await {
            Ok(verdicts) => fences
                .into_iter()
                .zip(verdicts)
                .for_each(|(attempt_id, outcome)| self.settle(attempt_id, outcome)),
            Err(WriteFailure::GivenUp(error)) => fences
                .into_iter()
                .for_each(|attempt_id| self.give_up(attempt_id, error.as_ref())),
            // The fsync failed, so it is unknown whether the broker has them. A second try would be
            // refused, because the database thread is poisoned.
            Err(WriteFailure::Refused(error @ Error::Unsynced { .. })) => {
                for attempt_id in fences {
                    attempt_tracing::log!(error, attempt_id, %error, "the end of an attempt may not be durable");
                    let _ = self.events.send(WorkerLoopEvent::Settled {
                        attempt_id,
                        outcome: None,
                    });
                }
            }
            Err(WriteFailure::Refused(_)) => {
                for (attempt_id, entry) in fences.into_iter().zip(&entries) {
                    match self.insist(std::slice::from_ref(entry), &write).await {
                        Ok(verdicts) => verdicts
                            .into_iter()
                            .for_each(|outcome| self.settle(attempt_id, outcome)),
                        Err(WriteFailure::GivenUp(error)) => {
                            self.give_up(attempt_id, error.as_ref())
                        }
                        // The primary has it. Missing replica confirmations are no refusal.
                        Err(WriteFailure::Refused(error @ Error::Unconfirmed { .. })) => {
                            self.give_up(attempt_id, Some(&error))
                        }
                        Err(WriteFailure::Refused(error)) => refused.push((attempt_id, error)),
                    }
                }
            }
        }
        refused
    }

    /// Retries transient errors until the shutdown deadline.
    async fn insist<T, W>(
        &self,
        entries: &[T],
        write: &impl Fn(Vec<T>) -> W,
    ) -> Result<Vec<CompletionOutcome>, WriteFailure>
    where
        T: Clone,
        W: Future<Output = Result<Vec<CompletionOutcome>, Error>>,
    {
        let mut pace = self.pace.clone();
        let mut failures = 0;
        loop {
            let is_last = pace.is_hasty();
            let error = match pace.bound(write(entries.to_vec())).await {
                Some(Ok(verdicts)) => return Ok(verdicts),
                Some(Err(error)) if error.is_retryable() => error,
                Some(Err(error)) => return Err(WriteFailure::Refused(error)),
                None => return Err(WriteFailure::GivenUp(None)),
            };
            if is_last {
                return Err(WriteFailure::GivenUp(Some(error)));
            }
            // Log the first failure only.
            if failures == 0 {
                tracing::error!(%error, "results cannot be written yet: retrying");
            }
            failures += 1;
            let _ = self.events.send(WorkerLoopEvent::Unwritten(error));
            tokio::select! {
                () = sleep(BACKOFF.pause(failures)) => {}
                () = pace.haste() => {}
            }
        }
    }

    fn settle(&self, attempt_id: AttemptId, outcome: CompletionOutcome) {
        if outcome == CompletionOutcome::Stale {
            attempt_tracing::log!(warn, attempt_id, "the broker refused the end of a stale attempt");
        }
        let _ = self.events.send(WorkerLoopEvent::Settled {
            attempt_id,
            outcome: Some(outcome),
        });
    }

    fn give_up(&self, attempt_id: AttemptId, error: Option<&Error>) {
        let reason = error.map_or_else(|| "the broker does not answer".into(), Error::to_string);
        attempt_tracing::log!(error, attempt_id, %reason, "{GIVEN_UP}");
        let _ = self.events.send(WorkerLoopEvent::Settled {
            attempt_id,
            outcome: None,
        });
    }
}

/// Makes the release of an attempt whose end was refused.
fn give_back((attempt_id, error): (AttemptId, Error)) -> Release {
    tracing::error!(tid = %attempt_id.tid, attempt = attempt_id.attempt, %error, "the end of a task was refused: it runs again");
    Release {
        attempt_id,
        reason: format!("its end could not be recorded: {error}"),
    }
}

async fn gather(
    batch: &mut WriteBatch,
    queue: &mut mpsc::UnboundedReceiver<PendingWrite>,
    busy: &AtomicBool,
) {
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use raddle_broker::sqlite::Sqlite;
    use raddle_model::Tid;

    use super::{super::shutdown_deadline::ShutdownDeadline, *};

    #[tokio::test]
    async fn does_not_retry_a_write_whose_fsync_failed() {
        let (events, mut told) = mpsc::unbounded_channel();
        let haste = ShutdownDeadline::new();
        let keeper = BatchWriter {
            broker: Arc::new(Sqlite::in_memory().await.unwrap()),
            events,
            pace: haste.pace(),
        };
        let tid = Tid::from_u64(1_500_000_000_000_000_000).expect("in the range of ids");
        let fences = vec![
            AttemptId {
                tid,
                attempt: 1,
                owner: tid,
            },
            AttemptId {
                tid,
                attempt: 2,
                owner: tid,
            },
        ];
        let (path, reason) = (
            std::path::PathBuf::from("x"),
            "input/output error".to_owned(),
        );
        // A database whose fsync failed answers like this: first to the write itself, then to all
        // later ones.
        let answers = Mutex::new(vec![
            Error::Io {
                path: path.clone(),
                reason: reason.clone(),
            },
            Error::Unsynced { path, reason },
        ]);
        let write = |_: Vec<AttemptId>| {
            let answer = answers
                .lock()
                .unwrap()
                .pop()
                .expect("one call at most");
            async move { Err(answer) }
        };
        let refused = keeper
            .persist(fences.clone(), |attempt_id| *attempt_id, write)
            .await;
        assert!(refused.is_empty(), "they must not run again: {refused:?}");
        for attempt_id in fences {
            let settled = told.try_recv().unwrap();
            assert!(
                matches!(settled, WorkerLoopEvent::Settled { attempt_id: of, outcome: None } if of == attempt_id),
                "{settled:?}"
            );
        }
        assert_eq!(answers.lock().unwrap().len(), 1, "called once");
    }
}
