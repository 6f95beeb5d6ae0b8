//! Completions whose reply was lost.
//!
//! A call that failed on the way may still have been performed. Sent again, the same completion
//! would be reported as stale, and the broker would count a refused write although it had accepted
//! it. So the caller checks the task before it sends again.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use raddle_model::{TaskState, TaskView};

use crate::{AttemptId, Completion, CompletionOutcome, Error, Queries, Result};

/// Attempts whose completion was sent without a reply.
#[derive(Default)]
pub struct UnconfirmedCompletions(Mutex<HashSet<AttemptId>>);

impl UnconfirmedCompletions {
    /// Completes attempts with `send`, except those that an earlier call without a reply has
    /// completed.
    pub async fn complete(
        &self,
        broker: &impl Queries,
        batch: Vec<Completion>,
        send: impl AsyncFnOnce(Vec<Completion>) -> Result<Vec<CompletionOutcome>>,
    ) -> Result<Vec<CompletionOutcome>> {
        let recorded = self.find_recorded(broker, &batch).await?;
        let attempt_ids: Vec<AttemptId> = batch
            .iter()
            .map(|completion| completion.attempt_id)
            .collect();
        let unsent: Vec<Completion> = batch
            .into_iter()
            .filter(|completion| !recorded.contains_key(&completion.attempt_id))
            .collect();
        let sent: Vec<AttemptId> = unsent
            .iter()
            .map(|completion| completion.attempt_id)
            .collect();
        let mut outcomes = match send(unsent).await {
            Ok(outcomes) => outcomes.into_iter(),
            Err(error) => {
                if is_unconfirmed(&error) {
                    self.lock().extend(sent);
                }
                return Err(error);
            }
        };
        let mut unconfirmed = self.lock();
        let outcome = |attempt_id: AttemptId| {
            unconfirmed.remove(&attempt_id);
            recorded
                .get(&attempt_id)
                .copied()
                .or_else(|| outcomes.next())
                .unwrap_or(CompletionOutcome::Stale)
        };
        Ok(attempt_ids.into_iter().map(outcome).collect())
    }

    /// The outcomes of unconfirmed completions that were recorded.
    async fn find_recorded(
        &self,
        broker: &impl Queries,
        batch: &[Completion],
    ) -> Result<HashMap<AttemptId, CompletionOutcome>> {
        let suspects: Vec<&Completion> = {
            let unconfirmed = self.lock();
            batch
                .iter()
                .filter(|completion| unconfirmed.contains(&completion.attempt_id))
                .collect()
        };
        let mut recorded = HashMap::new();
        for completion in suspects {
            let task = broker.task(completion.attempt_id.tid).await?;
            recorded.extend(
                task.and_then(|task| recorded_outcome(&task, completion))
                    .map(|outcome| (completion.attempt_id, outcome)),
            );
        }
        Ok(recorded)
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<AttemptId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a call that failed in this way may have been performed.
pub fn is_unconfirmed(error: &Error) -> bool {
    matches!(
        error,
        Error::AgentGone { .. } | Error::Unreachable { .. } | Error::Unconfirmed { .. }
    )
}

/// The outcome of an attempt if the task shows that this completion was recorded. Reports contain
/// timestamps, so two different completions never have equal reports.
fn recorded_outcome(task: &TaskView, completion: &Completion) -> Option<CompletionOutcome> {
    if task.attempt != completion.attempt_id.attempt
        || task
            .worker
            .is_some_and(|worker| worker != completion.attempt_id.owner)
    {
        return None;
    }
    match task.state {
        TaskState::Created => Some(CompletionOutcome::Retry(
            task.run_at.unwrap_or_else(Timestamp::now),
        )),
        TaskState::Spawning | TaskState::Running => None,
        state => task
            .report
            .as_ref()
            .filter(|report| **report == completion.report)
            .map(|_| CompletionOutcome::Finished(state)),
    }
}
