//! Ends of attempts of which it is not known whether they were recorded.
//!
//! A call that was given up may have been carried out all the same. Who sends the same end again would be told that it comes too late, and
//! the broker would count a write as refused that it had taken. So whoever is in doubt looks before it sends again.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use raddle_core::{State, TaskView};

use crate::{Error, Fence, Finish, Queries, Result, Verdict};

/// The attempts that are in doubt.
#[derive(Default)]
pub(crate) struct Doubts(Mutex<HashSet<Fence>>);

impl Doubts {
    /// Ends attempts with `send`, but for those that have been ended by a call whose answer was lost.
    pub(crate) async fn finish(
        &self,
        broker: &impl Queries,
        batch: Vec<Finish>,
        send: impl AsyncFnOnce(Vec<Finish>) -> Result<Vec<Verdict>>,
    ) -> Result<Vec<Verdict>> {
        let recorded = self.recorded(broker, &batch).await?;
        let fences: Vec<Fence> = batch.iter().map(|finish| finish.fence).collect();
        let open: Vec<Finish> = batch.into_iter().filter(|finish| !recorded.contains_key(&finish.fence)).collect();
        let sent: Vec<Fence> = open.iter().map(|finish| finish.fence).collect();
        let mut verdicts = match send(open).await {
            Ok(verdicts) => verdicts.into_iter(),
            Err(error) => {
                if leaves_doubt(&error) {
                    self.fences().extend(sent);
                }
                return Err(error);
            }
        };
        let mut in_doubt = self.fences();
        let verdict = |fence: Fence| {
            in_doubt.remove(&fence);
            recorded.get(&fence).copied().or_else(|| verdicts.next()).unwrap_or(Verdict::Stale)
        };
        Ok(fences.into_iter().map(verdict).collect())
    }

    /// What became of those that are in doubt and were recorded.
    async fn recorded(&self, broker: &impl Queries, batch: &[Finish]) -> Result<HashMap<Fence, Verdict>> {
        let suspects: Vec<&Finish> = {
            let in_doubt = self.fences();
            batch.iter().filter(|finish| in_doubt.contains(&finish.fence)).collect()
        };
        let mut recorded = HashMap::new();
        for finish in suspects {
            let task = broker.task(finish.fence.tid).await?;
            recorded.extend(task.and_then(|task| verdict(&task, finish)).map(|verdict| (finish.fence, verdict)));
        }
        Ok(recorded)
    }

    fn fences(&self) -> MutexGuard<'_, HashSet<Fence>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether what was asked for may have been done.
pub(crate) fn leaves_doubt(error: &Error) -> bool {
    matches!(error, Error::AgentGone { .. } | Error::Unreachable { .. } | Error::Unconfirmed { .. })
}

/// What became of an attempt, if the task shows that this end of it was recorded. Reports hold times: those of two ends are not the same.
fn verdict(task: &TaskView, finish: &Finish) -> Option<Verdict> {
    if task.attempt != finish.fence.attempt || task.worker.is_some_and(|worker| worker != finish.fence.owner) {
        return None;
    }
    match task.state {
        State::Created => Some(Verdict::Again(task.run_at.unwrap_or_else(Timestamp::now))),
        State::Spawning | State::Running => None,
        state => task.report.as_ref().filter(|report| **report == finish.report).map(|_| Verdict::Done(state)),
    }
}
