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

use raddle_broker::{Broker, Error, Fence, Finish, Release, Started, Verdict};
use raddle_core::{Exit, ExponentialBackoff};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep, timeout_at},
};

use super::{event::Event, hand, pace::Pace, slot::ended};

/// One thing to be written.
#[derive(Debug)]
pub(super) enum Entry {
    Started(Started),
    Finish(Box<Finish>),
    /// The end of an attempt that has not begun.
    Unbegun {
        fence: Fence,
        exit: Exit,
    },
    Release(Release),
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
/// Between tries to write what may be written later.
const BACKOFF: ExponentialBackoff = ExponentialBackoff::new(RETRY_PAUSE, Duration::from_secs(4));
pub(super) const GIVEN_UP: &str = "what became of this task could not be written: it will run again";

impl Ledger {
    /// Entries come from the worker's slots, one or two for each attempt, so the channel is bounded by the number of slots in effect. What it
    /// tells is one event for each, or one for each pause between two tries.
    pub(super) fn start(broker: Arc<dyn Broker>, events: mpsc::UnboundedSender<Event>, pace: Pace) -> Self {
        let (entries, queue) = mpsc::unbounded_channel();
        let busy = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(Keeper { broker, events, pace }.keep(queue, Arc::clone(&busy)));
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
            Entry::Finish(finish) => self.finish.push(*finish),
            Entry::Unbegun { fence, exit } => self.finish.push(ended(fence, exit)),
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

/// The task that writes.
struct Keeper {
    broker: Arc<dyn Broker>,
    events: mpsc::UnboundedSender<Event>,
    pace: Pace,
}

/// Why entries were not written.
enum Unwritten {
    /// The broker does not take them.
    Refused(Error),
    /// There was no time left.
    GivenUp(Option<Error>),
}

impl Keeper {
    async fn keep(self, mut queue: mpsc::UnboundedReceiver<Entry>, busy: Arc<AtomicBool>) {
        while let Some(first) = queue.recv().await {
            let mut batch = Batch::default();
            batch.add(first);
            gather(&mut batch, &mut queue, &busy).await;
            batch.condense();
            self.write(batch).await;
        }
    }

    async fn write(&self, batch: Batch) {
        let Batch { started, finish, release } = batch;
        // Asked for together, so that the engine can do them together.
        let ((), unfinished, unreleased) = tokio::join!(
            self.note(started),
            self.persist(finish, |finish| finish.fence, |finish| self.broker.finish(finish)),
            self.persist(release, |release| release.fence, |release| self.broker.release(release)),
        );
        // An end that the broker does not take must not keep the task here for as long as this worker lives.
        if !unfinished.is_empty() {
            // It comes back at once, and must not go round as fast as it can.
            sleep(RETRY_PAUSE).await;
        }
        let back: Vec<Release> = unfinished.into_iter().map(give_back).collect();
        let unreturned = self.persist(back, |release| release.fence, |release| self.broker.release(release)).await;
        for (fence, error) in unreleased.into_iter().chain(unreturned) {
            tracing::error!(tid = %fence.tid, attempt = fence.attempt, reason = %error, "{GIVEN_UP}");
            let _ = self.events.send(Event::Refused { fence, error });
        }
    }

    async fn note(&self, started: Vec<Started>) {
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
        fence: impl Fn(&T) -> Fence,
        write: impl Fn(Vec<T>) -> W,
    ) -> Vec<(Fence, Error)>
    where
        T: Clone,
        W: Future<Output = Result<Vec<Verdict>, Error>>,
    {
        let mut refused = Vec::new();
        if entries.is_empty() {
            return refused;
        }
        let fences: Vec<Fence> = entries.iter().map(fence).collect();
        match self.insist(&entries, &write).await {
            Ok(verdicts) => fences.into_iter().zip(verdicts).for_each(|(fence, verdict)| self.settle(fence, verdict)),
            Err(Unwritten::GivenUp(error)) => fences.into_iter().for_each(|fence| self.give_up(fence, error.as_ref())),
            // Nobody can say whether the broker has them, and sent again they would be refused: its process writes nothing more.
            Err(Unwritten::Refused(error @ Error::Unsynced { .. })) => {
                for fence in fences {
                    hand::log!(error, fence, %error, "what became of it may not last");
                    let _ = self.events.send(Event::Settled { fence, verdict: None });
                }
            }
            Err(Unwritten::Refused(_)) => {
                for (fence, entry) in fences.into_iter().zip(&entries) {
                    match self.insist(std::slice::from_ref(entry), &write).await {
                        Ok(verdicts) => verdicts.into_iter().for_each(|verdict| self.settle(fence, verdict)),
                        Err(Unwritten::GivenUp(error)) => self.give_up(fence, error.as_ref()),
                        // The server has it, and that others do not is no refusal.
                        Err(Unwritten::Refused(error @ Error::Unconfirmed { .. })) => self.give_up(fence, Some(&error)),
                        Err(Unwritten::Refused(error)) => refused.push((fence, error)),
                    }
                }
            }
        }
        refused
    }

    /// Tries again what may succeed later, for as long as there is time.
    async fn insist<T, W>(&self, entries: &[T], write: &impl Fn(Vec<T>) -> W) -> Result<Vec<Verdict>, Unwritten>
    where
        T: Clone,
        W: Future<Output = Result<Vec<Verdict>, Error>>,
    {
        let mut pace = self.pace.clone();
        let mut failures = 0;
        loop {
            let is_last = pace.is_hasty();
            let error = match pace.bound(write(entries.to_vec())).await {
                Some(Ok(verdicts)) => return Ok(verdicts),
                Some(Err(error)) if error.is_retryable() => error,
                Some(Err(error)) => return Err(Unwritten::Refused(error)),
                None => return Err(Unwritten::GivenUp(None)),
            };
            if is_last {
                return Err(Unwritten::GivenUp(Some(error)));
            }
            // Once, and not with every try.
            if failures == 0 {
                tracing::error!(%error, "results cannot be written yet");
            }
            failures += 1;
            let _ = self.events.send(Event::Unwritten(error));
            tokio::select! {
                () = sleep(BACKOFF.pause(failures)) => {}
                () = pace.haste() => {}
            }
        }
    }

    fn settle(&self, fence: Fence, verdict: Verdict) {
        if verdict == Verdict::Stale {
            hand::log!(warn, fence, "what became of it was not taken");
        }
        let _ = self.events.send(Event::Settled { fence, verdict: Some(verdict) });
    }

    fn give_up(&self, fence: Fence, error: Option<&Error>) {
        let reason = error.map_or_else(|| "the broker does not answer".into(), Error::to_string);
        hand::log!(error, fence, %reason, "{GIVEN_UP}");
        let _ = self.events.send(Event::Settled { fence, verdict: None });
    }
}

/// What is left to do with an attempt whose end was not taken.
fn give_back((fence, error): (Fence, Error)) -> Release {
    tracing::error!(tid = %fence.tid, attempt = fence.attempt, %error, "how a task ended cannot be recorded: it runs again");
    Release { fence, reason: format!("how it ended could not be recorded: {error}") }
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use raddle_broker::sqlite::Sqlite;
    use raddle_core::Tid;

    use super::{super::pace::Haste, *};

    #[tokio::test]
    async fn what_the_broker_has_is_not_sent_again_because_it_may_not_last() {
        let (events, mut told) = mpsc::unbounded_channel();
        let haste = Haste::new();
        let keeper = Keeper { broker: Arc::new(Sqlite::in_memory().await.unwrap()), events, pace: haste.pace() };
        let tid = Tid::from_u64(1_500_000_000_000_000_000).expect("in the range of ids");
        let fences = vec![Fence { tid, attempt: 1, owner: tid }, Fence { tid, attempt: 2, owner: tid }];
        let (path, reason) = (std::path::PathBuf::from("x"), "input/output error".to_owned());
        // As a database answers whose sync has failed: of what was written, and to all that comes after.
        let answers = Mutex::new(vec![
            Error::Io { path: path.clone(), reason: reason.clone() },
            Error::Unsynced { path, reason },
        ]);
        let write = |_: Vec<Fence>| {
            let answer = answers.lock().unwrap().pop().expect("it is not asked so often");
            async move { Err(answer) }
        };
        let refused = keeper.persist(fences.clone(), |fence| *fence, write).await;
        assert!(refused.is_empty(), "they do not run again: {refused:?}");
        for fence in fences {
            let settled = told.try_recv().unwrap();
            assert!(matches!(settled, Event::Settled { fence: of, verdict: None } if of == fence), "{settled:?}");
        }
        assert_eq!(answers.lock().unwrap().len(), 1, "asked once");
    }
}
