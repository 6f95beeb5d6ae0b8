//! Attempts: started, paused, completed, released.

use std::collections::{HashMap, HashSet};

use raddle_model::{TaskEventKind, TaskState, Tid};

use super::{
    Redis,
    apply::{Applied, apply, snapshots},
    change::{Draft, Snapshot, Tail, run_bucket},
    connection::{Certainty, ServerConnection},
    output::WHOLE_BYTES,
    record::TaskLocation,
    script,
    value::arg,
};
use raddle_broker::{
    AttemptId, AttemptStarted, Completion, CompletionOutcome, Error, OutputStream, Release, Result,
};

/// The most attempts ended by one script, which blocks the server meanwhile.
const AT_ONCE: usize = 500;

impl Redis {
    /// Records that targets have started.
    pub(super) async fn mark_attempts_started(&self, batch: Vec<AttemptStarted>) -> Result<()> {
        for batch in batch.chunks(AT_ONCE) {
            let mut args = Vec::with_capacity(batch.len() * 4);
            for AttemptStarted { attempt_id, pid } in batch {
                args.extend([
                    arg(attempt_id.tid),
                    arg(attempt_id.attempt),
                    arg(attempt_id.owner),
                    pid.map_or(arg("-"), arg),
                ]);
            }
            let () = self
                .link()
                .change(&script::MARK_STARTED, args, Certainty::Done)
                .await?;
        }
        Ok(())
    }

    /// Records that a running attempt is paused, or continues.
    pub(super) async fn mark_attempt_paused(
        &self,
        attempt_id: AttemptId,
        paused: bool,
    ) -> Result<()> {
        let updated = self
            .update_task(attempt_id.tid, Certainty::Done, |task, draft| {
                let is_change = task.is_current_attempt(attempt_id) && task.record.paused != paused;
                if is_change {
                    draft.pause(paused);
                }
                Ok(is_change.then_some(()))
            })
            .await;
        match updated {
            Err(Error::NotFound(_)) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Completes attempts. Successes without chained tasks need no decision and take one script for
    /// all; everything else is read and decided.
    pub(super) async fn complete_batch(
        &self,
        batch: Vec<Completion>,
    ) -> Result<Vec<CompletionOutcome>> {
        let mut outcomes = vec![CompletionOutcome::Stale; batch.len()];
        let max_output = self.link().max_output();
        let batch = batch.into_iter().enumerate();
        let (successes, mut others): (Vec<_>, Vec<_>) =
            batch.partition(|(_, completion)| completion.report.exit.is_success());
        for part in successes.chunks(AT_ONCE) {
            let mut args = vec![arg(max_output)];
            part.iter()
                .for_each(|(_, completion)| args.extend(success_args(completion, max_output)));
            let answers: Vec<String> = self
                .link()
                .change(&script::COMPLETE, args, Certainty::Durable)
                .await?;
            for ((index, completion), answer) in part.iter().zip(answers) {
                match answer.as_str() {
                    "done" => outcomes[*index] = CompletionOutcome::Finished(TaskState::Completed),
                    "chained" => others.push((*index, completion.clone())),
                    _ => {}
                }
            }
        }
        let decide = |task: &Snapshot, draft: &mut Draft<'_>, completion: &Completion| {
            draft.output.extend(tails(completion, max_output));
            if task.record.location == TaskLocation::Spawning
                && completion.report.started_at.is_some()
            {
                draft.event(TaskEventKind::Running, task.record.owner, None);
            }
            draft.end_attempt(completion.report.clone())
        };
        let (indexes, completions): (Vec<usize>, Vec<Completion>) = others.into_iter().unzip();
        let ended = end_all(
            self.link(),
            &completions,
            |completion| completion.attempt_id,
            decide,
            Certainty::Durable,
        )
        .await?;
        for (index, outcome) in indexes.into_iter().zip(ended) {
            outcomes[index] = outcome;
        }
        Ok(outcomes)
    }
}

/// A successful completion as `complete.lua` expects it.
fn success_args(completion: &Completion, max_output: u64) -> Vec<Vec<u8>> {
    let report = serde_json::to_vec(&completion.report).expect("a report has only string keys");
    let AttemptId {
        tid,
        attempt,
        owner,
    } = completion.attempt_id;
    let ran = run_bucket(&completion.report);
    let ran = ran.map_or(Vec::new(), |bucket| arg(format!("x{bucket}")));
    let mut args = vec![arg(tid), arg(attempt), arg(owner), report, ran];
    let mut tails: HashMap<OutputStream, Tail> = tails(completion, max_output).collect();
    for stream in OutputStream::BOTH {
        match tails.remove(&stream) {
            None => args.extend([Vec::new(), Vec::new()]),
            Some(Tail { whole, bytes }) => {
                args.extend([arg(if whole { "whole" } else { "rest" }), bytes])
            }
        }
    }
    args
}

/// Returns tasks to their queues as if they had not been claimed.
pub(super) async fn release(
    link: &ServerConnection,
    batch: Vec<Release>,
) -> Result<Vec<CompletionOutcome>> {
    let decide = |_: &Snapshot, draft: &mut Draft<'_>, release: &Release| {
        draft.give_back(TaskEventKind::Released, release.reason.clone())
    };
    end_all(
        link,
        &batch,
        |release| release.attempt_id,
        decide,
        Certainty::Done,
    )
    .await
}

/// Ends attempts as `decide` decides. Stale ones are refused, counted and logged.
async fn end_all<T>(
    link: &ServerConnection,
    batch: &[T],
    attempt_id_of: impl Fn(&T) -> AttemptId,
    decide: impl Fn(&Snapshot, &mut Draft<'_>, &T) -> CompletionOutcome,
    sure: Certainty,
) -> Result<Vec<CompletionOutcome>> {
    let mut outcomes = vec![CompletionOutcome::Stale; batch.len()];
    let mut open: Vec<usize> = (0..batch.len()).collect();
    let mut stale = Vec::new();
    while !open.is_empty() {
        let tids: Vec<Tid> = open
            .iter()
            .map(|index| attempt_id_of(&batch[*index]).tid)
            .collect();
        let tasks = snapshots(link, &tids).await?;
        let (mut drafts, mut drafted, mut later) = (Vec::new(), Vec::new(), Vec::new());
        let mut seen = HashSet::new();
        for index in open {
            let attempt_id = attempt_id_of(&batch[index]);
            match tasks
                .get(&attempt_id.tid)
                .filter(|task| task.is_current_attempt(attempt_id))
            {
                // The second write for one task is decided after the first.
                Some(_) if !seen.insert(attempt_id.tid) => later.push(index),
                Some(task) => {
                    let mut draft = Draft::new(task);
                    let outcome = decide(task, &mut draft, &batch[index]);
                    drafts.push(draft);
                    drafted.push((index, outcome));
                }
                None => stale.push(attempt_id),
            }
        }
        if !drafts.is_empty() {
            for ((index, outcome), applied) in
                drafted.into_iter().zip(apply(link, &drafts, sure).await?)
            {
                match applied {
                    Applied::Made => outcomes[index] = outcome,
                    _ => later.push(index),
                }
            }
        }
        open = later;
    }
    if !stale.is_empty() {
        let args = stale
            .iter()
            .flat_map(|attempt_id| [arg(attempt_id.tid), arg(attempt_id.attempt)])
            .collect();
        let () = link
            .change(&script::REFUSE_STALE, args, Certainty::Done)
            .await?;
    }
    Ok(outcomes)
}

/// The ends of an attempt's output. Small output that is complete goes into the hash.
fn tails(completion: &Completion, max_output: u64) -> impl Iterator<Item = (OutputStream, Tail)> {
    let ends = [
        (
            OutputStream::Stdout,
            &completion.stdout,
            completion.report.stdout_bytes,
        ),
        (
            OutputStream::Stderr,
            &completion.stderr,
            completion.report.stderr_bytes,
        ),
    ];
    ends.into_iter()
        .filter(|(_, bytes, _)| !bytes.is_empty())
        .map(move |(stream, bytes, total)| {
            let length = bytes.len() as u64;
            let whole = total <= length && length <= WHOLE_BYTES.min(max_output);
            (
                stream,
                Tail {
                    whole,
                    bytes: bytes.clone(),
                },
            )
        })
}
