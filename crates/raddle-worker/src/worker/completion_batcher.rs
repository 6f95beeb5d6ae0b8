//! Writes what became of attempts to the broker, in batches, while the slots go on with the next.
//!
//! A slot does not wait until its last task is on disk: the lease covers it meanwhile. What comes in while one batch is being
//! committed makes up the next. When there is more to come, a batch also waits a moment for company, because a commit costs the
//! same for one as for many.
//!
//! What cannot be written yet is tried again, for the lease covers it and a full disk may be emptied. When the worker has no time left it is
//! tried once more, and then given up: its task runs again.

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

/// One thing to be written.
#[derive(Debug)]
pub(super) enum PendingWrite {
    Started(AttemptStarted),
    Finish(Box<Completion>),
    /// The end of an attempt that has not begun.
    Unbegun {
        attempt_id: AttemptId,
        exit: ExitStatus,
    },
    Release(Release),
}

/// The writing end. The ledger is complete once [`close`](Self::close) returns.
pub(super) struct CompletionBatcher {
    entries: mpsc::UnboundedSender<PendingWrite>,
    task: JoinHandle<()>,
    busy: Arc<AtomicBool>,
}

/// How long a batch waits for company while more is to come.
const LINGER: Duration = Duration::from_millis(6);
/// How long the start of an attempt may go unwritten. Most short attempts are over by then, and one write tells both.
const START_LINGER: Duration = Duration::from_millis(10);
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Between tries to write what may be written later.
const BACKOFF: ExponentialBackoff = ExponentialBackoff::new(RETRY_PAUSE, Duration::from_secs(4));
pub(super) const GIVEN_UP: &str =
    "what became of this task could not be written: it will run again";

impl CompletionBatcher {
    /// Entries come from the worker's slots, one or two for each attempt, so the channel is bounded by the number of slots in effect. What it
    /// tells is one event for each, or one for each pause between two tries.
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

    /// Whether something in it ends an attempt.
    fn is_pressing(&self) -> bool {
        !self.finish.is_empty() || !self.release.is_empty()
    }

    /// Leaves out starts that are told by an end in the same batch.
    fn condense(&mut self) {
        let ended: HashSet<AttemptId> =
            self.finish.iter().map(|finish| finish.attempt_id).collect();
        self.started
            .retain(|started| !ended.contains(&started.attempt_id));
    }
}

/// The task that writes.
struct BatchWriter {
    broker: Arc<dyn Broker>,
    events: mpsc::UnboundedSender<WorkerLoopEvent>,
    pace: DeadlineWatch,
}

/// Why entries were not written.
enum WriteFailure {
    /// The broker does not take them.
    Refused(Error),
    /// There was no time left.
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
        // Asked for together, so that the engine can do them together.
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
        // An end that the broker does not take must not keep the task here for as long as this worker lives.
        if !unfinished.is_empty() {
            // It comes back at once, and must not go round as fast as it can.
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
            tracing::warn!(%error, "the start of attempts could not be noted");
        }
    }

    /// Writes entries, and settles each but those that the broker does not take, which it returns. They are found one by one, so that they
    /// take no other with them.
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
            // Nobody can say whether the broker has them, and sent again they would be refused: its process writes nothing more.
            Err(WriteFailure::Refused(error @ Error::Unsynced { .. })) => {
                for attempt_id in fences {
                    attempt_tracing::log!(error, attempt_id, %error, "what became of it may not last");
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
                        // The server has it, and that others do not is no refusal.
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

    /// Tries again what may succeed later, for as long as there is time.
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
            // Once, and not with every try.
            if failures == 0 {
                tracing::error!(%error, "results cannot be written yet");
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
            attempt_tracing::log!(warn, attempt_id, "what became of it was not taken");
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

/// What is left to do with an attempt whose end was not taken.
fn give_back((attempt_id, error): (AttemptId, Error)) -> Release {
    tracing::error!(tid = %attempt_id.tid, attempt = attempt_id.attempt, %error, "how a task ended cannot be recorded: it runs again");
    Release {
        attempt_id,
        reason: format!("how it ended could not be recorded: {error}"),
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

    use raddle_broker_sqlite::Sqlite;
    use raddle_model::Tid;

    use super::{super::shutdown_deadline::ShutdownDeadline, *};

    #[tokio::test]
    async fn what_the_broker_has_is_not_sent_again_because_it_may_not_last() {
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
        // As a database answers whose sync has failed: of what was written, and to all that comes after.
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
                .expect("it is not asked so often");
            async move { Err(answer) }
        };
        let refused = keeper
            .persist(fences.clone(), |attempt_id| *attempt_id, write)
            .await;
        assert!(refused.is_empty(), "they do not run again: {refused:?}");
        for attempt_id in fences {
            let settled = told.try_recv().unwrap();
            assert!(
                matches!(settled, WorkerLoopEvent::Settled { attempt_id: of, outcome: None } if of == attempt_id),
                "{settled:?}"
            );
        }
        assert_eq!(answers.lock().unwrap().len(), 1, "asked once");
    }
}
