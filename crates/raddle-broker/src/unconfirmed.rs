//! Ends of attempts of which it is not known whether they were recorded.
//!
//! A call that was given up may have been carried out all the same. Who sends the same end again would be told that it comes too late, and
//! the broker would count a write as refused that it had taken. So whoever is in doubt looks before it sends again.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use raddle_model::{TaskState, TaskView};

use crate::{AttemptId, Completion, CompletionOutcome, Error, Queries, Result};

/// The attempts that are in doubt.
#[derive(Default)]
pub struct UnconfirmedCompletions(Mutex<HashSet<AttemptId>>);

impl UnconfirmedCompletions {
    /// Ends attempts with `send`, but for those that have been ended by a call whose answer was lost.
    pub async fn finish(
        &self,
        broker: &impl Queries,
        batch: Vec<Completion>,
        send: impl AsyncFnOnce(Vec<Completion>) -> Result<Vec<CompletionOutcome>>,
    ) -> Result<Vec<CompletionOutcome>> {
        let recorded = self.recorded(broker, &batch).await?;
        let fences: Vec<AttemptId> = batch.iter().map(|finish| finish.attempt_id).collect();
        let open: Vec<Completion> = batch
            .into_iter()
            .filter(|finish| !recorded.contains_key(&finish.attempt_id))
            .collect();
        let sent: Vec<AttemptId> = open.iter().map(|finish| finish.attempt_id).collect();
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
        let outcome = |attempt_id: AttemptId| {
            in_doubt.remove(&attempt_id);
            recorded
                .get(&attempt_id)
                .copied()
                .or_else(|| verdicts.next())
                .unwrap_or(CompletionOutcome::Stale)
        };
        Ok(fences.into_iter().map(outcome).collect())
    }

    /// What became of those that are in doubt and were recorded.
    async fn recorded(
        &self,
        broker: &impl Queries,
        batch: &[Completion],
    ) -> Result<HashMap<AttemptId, CompletionOutcome>> {
        let suspects: Vec<&Completion> = {
            let in_doubt = self.fences();
            batch
                .iter()
                .filter(|finish| in_doubt.contains(&finish.attempt_id))
                .collect()
        };
        let mut recorded = HashMap::new();
        for finish in suspects {
            let task = broker.task(finish.attempt_id.tid).await?;
            recorded.extend(
                task.and_then(|task| outcome(&task, finish))
                    .map(|outcome| (finish.attempt_id, outcome)),
            );
        }
        Ok(recorded)
    }

    fn fences(&self) -> MutexGuard<'_, HashSet<AttemptId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether what was asked for may have been done.
pub fn leaves_doubt(error: &Error) -> bool {
    matches!(
        error,
        Error::AgentGone { .. } | Error::Unreachable { .. } | Error::Unconfirmed { .. }
    )
}

/// What became of an attempt, if the task shows that this end of it was recorded. Reports hold times: those of two ends are not the same.
fn outcome(task: &TaskView, finish: &Completion) -> Option<CompletionOutcome> {
    if task.attempt != finish.attempt_id.attempt
        || task
            .worker
            .is_some_and(|worker| worker != finish.attempt_id.owner)
    {
        return None;
    }
    match task.state {
        TaskState::Created => Some(CompletionOutcome::Again(
            task.run_at.unwrap_or_else(Timestamp::now),
        )),
        TaskState::Spawning | TaskState::Running => None,
        state => task
            .report
            .as_ref()
            .filter(|report| **report == finish.report)
            .map(|_| CompletionOutcome::Done(state)),
    }
}
