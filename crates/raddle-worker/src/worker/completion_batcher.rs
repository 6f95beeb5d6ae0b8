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
    attempt_tracing, event::WorkerLoopEvent, shutdown_deadline::DeadlineWatch,
    slot::bare_completion,
};

/// A write to the broker.
#[derive(Debug)]
pub(super) enum PendingWrite {
    Started(AttemptStarted),
    Finish(Box<Completion>),
    /// The end of an attempt that was not started.
    FinishUnstarted {
        attempt_id: AttemptId,
        exit: ExitStatus,
    },
    Release(Release),
}

/// The sending end. All writes are done when [`close`](Self::close) returns.
pub(super) struct CompletionBatcher {
    entries: mpsc::UnboundedSender<PendingWrite>,
    task: JoinHandle<()>,
    more_expected: Arc<AtomicBool>,
}

/// How long a batch waits for more entries while more are expected.
const LINGER: Duration = Duration::from_millis(6);
/// How long the start of an attempt may stay unwritten. Most short attempts end within that time,
/// and the write of the end covers the start.
const START_LINGER: Duration = Duration::from_millis(10);
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Pauses between retries.
const BACKOFF: ExponentialBackoff = ExponentialBackoff::new(RETRY_PAUSE, Duration::from_secs(4));
pub(super) const GIVEN_UP: &str = "the end of this task could not be written: it will run again";

impl CompletionBatcher {
    /// The channels need no bound: each attempt sends one or two entries, and slots are few.
    /// `events` gets one event for each entry, or one for each retry.
    pub(super) fn start(
        broker: Arc<dyn Broker>,
        events: mpsc::UnboundedSender<WorkerLoopEvent>,
        deadline: DeadlineWatch,
    ) -> Self {
        let (entries, queue) = mpsc::unbounded_channel();
        let more_expected = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(
            BatchWriter {
                broker,
                events,
                deadline,
            }
            .run(queue, Arc::clone(&more_expected)),
        );
        Self {
            entries,
            task,
            more_expected,
        }
    }

    pub(super) fn write(&self, entry: PendingWrite) {
        // The receiver lives until `close`, which takes `self`.
        let _ = self.entries.send(entry);
    }

    /// Sets whether more entries are expected soon.
    pub(super) fn set_more_expected(&self, more_expected: bool) {
        self.more_expected.store(more_expected, Ordering::Relaxed);
    }

    /// Writes the remaining entries.
    pub(super) async fn close(self) {
        self.set_more_expected(false);
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
            PendingWrite::FinishUnstarted { attempt_id, exit } => {
                self.finish.push(bare_completion(attempt_id, exit))
            }
            PendingWrite::Release(release) => self.release.push(release),
        }
    }

    /// Whether the batch contains the end of an attempt.
    fn ends_attempt(&self) -> bool {
        !self.finish.is_empty() || !self.release.is_empty()
    }

    /// Removes starts whose end is in the same batch.
    fn drop_redundant_starts(&mut self) {
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
    deadline: DeadlineWatch,
}

/// Why entries were not written.
enum WriteFailure {
    /// The broker refuses them.
    Refused(Error),
    /// The shutdown deadline has passed.
    GivenUp(Option<Error>),
}

impl BatchWriter {
    async fn run(
        self,
        mut queue: mpsc::UnboundedReceiver<PendingWrite>,
        more_expected: Arc<AtomicBool>,
    ) {
        while let Some(first) = queue.recv().await {
            let mut batch = WriteBatch::default();
            batch.add(first);
            fill_batch(&mut batch, &mut queue, &more_expected).await;
            batch.drop_redundant_starts();
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
            self.write_started(started),
            self.write_entries(
                finish,
                |finish| finish.attempt_id,
                |finish| self.broker.complete(finish)
            ),
            self.write_entries(
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
        let releases: Vec<Release> = unfinished.into_iter().map(release_after_refusal).collect();
        let unreleased_after_refusal = self
            .write_entries(
                releases,
                |release| release.attempt_id,
                |release| self.broker.release(release),
            )
            .await;
        for (attempt_id, error) in unreleased.into_iter().chain(unreleased_after_refusal) {
            tracing::error!(tid = %attempt_id.tid, attempt = attempt_id.attempt, reason = %error, "{GIVEN_UP}");
            let _ = self
                .events
                .send(WorkerLoopEvent::WriteRefused { attempt_id, error });
        }
    }

    async fn write_started(&self, started: Vec<AttemptStarted>) {
        if !started.is_empty()
            && let Some(Err(error)) = self
                .deadline
                .clone()
                .limit(self.broker.mark_started(started))
                .await
        {
            tracing::warn!(%error, "starts of attempts could not be written");
        }
    }

    /// Writes entries and reports the outcome of each. Returns those that the broker refuses: after
    /// a refused batch each entry is tried alone, so that a bad one does not take the others with
    /// it.
    async fn write_entries<T, W>(
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
        let attempt_ids: Vec<AttemptId> = entries.iter().map(attempt_id).collect();
        match self.retry_until_deadline(&entries, &write).await {
            Ok(outcomes) => attempt_ids
                .into_iter()
                .zip(outcomes)
                .for_each(|(attempt_id, outcome)| self.report_outcome(attempt_id, outcome)),
            Err(WriteFailure::GivenUp(error)) => attempt_ids
                .into_iter()
                .for_each(|attempt_id| self.report_given_up(attempt_id, error.as_ref())),
            // The fsync failed, so it is unknown whether the broker has them. A second try would be
            // refused, because the database thread is poisoned.
            Err(WriteFailure::Refused(error @ Error::Unsynced { .. })) => {
                for attempt_id in attempt_ids {
                    attempt_tracing::log!(error, attempt_id, %error, "the end of an attempt may not be durable");
                    let _ = self.events.send(WorkerLoopEvent::Recorded {
                        attempt_id,
                        outcome: None,
                    });
                }
            }
            Err(WriteFailure::Refused(_)) => {
                for (attempt_id, entry) in attempt_ids.into_iter().zip(&entries) {
                    match self
                        .retry_until_deadline(std::slice::from_ref(entry), &write)
                        .await
                    {
                        Ok(outcomes) => outcomes
                            .into_iter()
                            .for_each(|outcome| self.report_outcome(attempt_id, outcome)),
                        Err(WriteFailure::GivenUp(error)) => {
                            self.report_given_up(attempt_id, error.as_ref())
                        }
                        // The primary has it. Missing replica confirmations are no refusal.
                        Err(WriteFailure::Refused(error @ Error::Unconfirmed { .. })) => {
                            self.report_given_up(attempt_id, Some(&error))
                        }
                        Err(WriteFailure::Refused(error)) => refused.push((attempt_id, error)),
                    }
                }
            }
        }
        refused
    }

    /// Retries transient errors until the shutdown deadline.
    async fn retry_until_deadline<T, W>(
        &self,
        entries: &[T],
        write: &impl Fn(Vec<T>) -> W,
    ) -> Result<Vec<CompletionOutcome>, WriteFailure>
    where
        T: Clone,
        W: Future<Output = Result<Vec<CompletionOutcome>, Error>>,
    {
        let mut deadline = self.deadline.clone();
        let mut failures = 0;
        loop {
            let is_last = deadline.has_passed();
            let error = match deadline.limit(write(entries.to_vec())).await {
                Some(Ok(outcomes)) => return Ok(outcomes),
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
            let _ = self.events.send(WorkerLoopEvent::WriteFailed(error));
            tokio::select! {
                () = sleep(BACKOFF.pause(failures)) => {}
                () = deadline.passed() => {}
            }
        }
    }

    fn report_outcome(&self, attempt_id: AttemptId, outcome: CompletionOutcome) {
        if outcome == CompletionOutcome::Stale {
            attempt_tracing::log!(
                warn,
                attempt_id,
                "the broker refused the end of a stale attempt"
            );
        }
        let _ = self.events.send(WorkerLoopEvent::Recorded {
            attempt_id,
            outcome: Some(outcome),
        });
    }

    fn report_given_up(&self, attempt_id: AttemptId, error: Option<&Error>) {
        let reason = error.map_or_else(|| "the broker does not answer".into(), Error::to_string);
        attempt_tracing::log!(error, attempt_id, %reason, "{GIVEN_UP}");
        let _ = self.events.send(WorkerLoopEvent::Recorded {
            attempt_id,
            outcome: None,
        });
    }
}

/// Makes the release of an attempt whose end was refused.
fn release_after_refusal((attempt_id, error): (AttemptId, Error)) -> Release {
    tracing::error!(tid = %attempt_id.tid, attempt = attempt_id.attempt, %error, "the end of a task was refused: it runs again");
    Release {
        attempt_id,
        reason: format!("its end could not be recorded: {error}"),
    }
}

async fn fill_batch(
    batch: &mut WriteBatch,
    queue: &mut mpsc::UnboundedReceiver<PendingWrite>,
    more_expected: &AtomicBool,
) {
    let began = Instant::now();
    loop {
        while let Ok(entry) = queue.try_recv() {
            batch.add(entry);
        }
        let linger = match (batch.ends_attempt(), more_expected.load(Ordering::Relaxed)) {
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

    use raddle_broker_sqlite::Sqlite;
    use raddle_model::Tid;

    use super::{super::shutdown_deadline::ShutdownDeadline, *};

    #[tokio::test]
    async fn does_not_retry_a_write_whose_fsync_failed() {
        let (events, mut received) = mpsc::unbounded_channel();
        let deadline = ShutdownDeadline::new();
        let writer = BatchWriter {
            broker: Arc::new(Sqlite::in_memory().await.unwrap()),
            events,
            deadline: deadline.watch(),
        };
        let tid = Tid::from_u64(1_500_000_000_000_000_000).expect("in the range of ids");
        let attempt_ids = vec![
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
            let answer = answers.lock().unwrap().pop().expect("one call at most");
            async move { Err(answer) }
        };
        let refused = writer
            .write_entries(attempt_ids.clone(), |attempt_id| *attempt_id, write)
            .await;
        assert!(refused.is_empty(), "they must not run again: {refused:?}");
        for attempt_id in attempt_ids {
            let event = received.try_recv().unwrap();
            assert!(
                matches!(event, WorkerLoopEvent::Recorded { attempt_id: id, outcome: None } if id == attempt_id),
                "{event:?}"
            );
        }
        assert_eq!(answers.lock().unwrap().len(), 1, "called once");
    }
}
