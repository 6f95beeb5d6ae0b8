//! The end of an attempt: finished, or given back.

use std::collections::{HashMap, HashSet};

use raddle_model::{TaskEventKind, TaskState, Tid};

use super::{
    Redis,
    apply::{Applied, apply, snapshots},
    change::{Draft, Snapshot, Tail},
    connection::{Certainty, ServerConnection},
    output::WHOLE_BYTES,
    record::TaskLocation,
    script,
    value::arg,
};
use raddle_broker::{
    AttemptId, AttemptStarted, Completion, CompletionOutcome, Error, OutputStream, Release, Result,
};

/// How many attempts one script ends at most: nobody else is served meanwhile.
const AT_ONCE: usize = 500;

impl Redis {
    /// Notes that targets have begun.
    pub(super) async fn note_started(&self, batch: Vec<AttemptStarted>) -> Result<()> {
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
                .change(&script::STARTED, args, Certainty::Done)
                .await?;
        }
        Ok(())
    }

    /// Notes that a running attempt stands still, or goes on.
    pub(super) async fn note_paused(&self, attempt_id: AttemptId, paused: bool) -> Result<()> {
        let noted = self
            .alter(attempt_id.tid, Certainty::Done, |task, draft| {
                let news = task.is_latest(attempt_id) && task.record.paused != paused;
                if news {
                    draft.pause(paused);
                }
                Ok(news.then_some(()))
            })
            .await;
        match noted {
            Err(Error::NotFound(_)) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Ends attempts. A success that has chained nothing leaves nothing to decide, and is one call for all; every other end is read and decided on.
    pub(super) async fn finish_batch(
        &self,
        batch: Vec<Completion>,
    ) -> Result<Vec<CompletionOutcome>> {
        let mut verdicts = vec![CompletionOutcome::Stale; batch.len()];
        let max_output = self.link().max_output();
        let batch = batch.into_iter().enumerate();
        let (successes, mut others): (Vec<_>, Vec<_>) =
            batch.partition(|(_, finish)| finish.report.exit.is_success());
        for part in successes.chunks(AT_ONCE) {
            let mut args = vec![arg(max_output)];
            part.iter()
                .for_each(|(_, finish)| args.extend(success_args(finish, max_output)));
            let answers: Vec<String> = self
                .link()
                .change(&script::COMPLETE, args, Certainty::Durable)
                .await?;
            for ((index, finish), answer) in part.iter().zip(answers) {
                match answer.as_str() {
                    "done" => verdicts[*index] = CompletionOutcome::Finished(TaskState::Completed),
                    "chained" => others.push((*index, finish.clone())),
                    _ => {}
                }
            }
        }
        let decide = |task: &Snapshot, draft: &mut Draft<'_>, finish: &Completion| {
            draft.output.extend(tails(finish, max_output));
            if task.record.place == TaskLocation::Spawning && finish.report.started_at.is_some() {
                draft.event(TaskEventKind::Running, task.record.owner, None);
            }
            draft.settle(finish.report.clone())
        };
        let (indexes, finishes): (Vec<usize>, Vec<Completion>) = others.into_iter().unzip();
        let ended = end_all(
            self.link(),
            &finishes,
            |finish| finish.attempt_id,
            decide,
            Certainty::Durable,
        )
        .await?;
        for (index, outcome) in indexes.into_iter().zip(ended) {
            verdicts[index] = outcome;
        }
        Ok(verdicts)
    }
}

/// An attempt that went well, as the script takes it.
fn success_args(finish: &Completion, max_output: u64) -> Vec<Vec<u8>> {
    let report = serde_json::to_vec(&finish.report).expect("a report has only string keys");
    let AttemptId {
        tid,
        attempt,
        owner,
    } = finish.attempt_id;
    let mut args = vec![arg(tid), arg(attempt), arg(owner), report];
    let mut tails: HashMap<OutputStream, Tail> = tails(finish, max_output).collect();
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

/// Gives tasks back to their queue as if they had not been claimed.
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

/// Ends attempts as `decide` says. One that is not the latest is refused, counted and logged.
async fn end_all<T>(
    link: &ServerConnection,
    batch: &[T],
    fence_of: impl Fn(&T) -> AttemptId,
    decide: impl Fn(&Snapshot, &mut Draft<'_>, &T) -> CompletionOutcome,
    sure: Certainty,
) -> Result<Vec<CompletionOutcome>> {
    let mut verdicts = vec![CompletionOutcome::Stale; batch.len()];
    let mut open: Vec<usize> = (0..batch.len()).collect();
    let mut stale = Vec::new();
    while !open.is_empty() {
        let tids: Vec<Tid> = open
            .iter()
            .map(|index| fence_of(&batch[*index]).tid)
            .collect();
        let tasks = snapshots(link, &tids).await?;
        let (mut drafts, mut drafted, mut later) = (Vec::new(), Vec::new(), Vec::new());
        let mut seen = HashSet::new();
        for index in open {
            let attempt_id = fence_of(&batch[index]);
            match tasks
                .get(&attempt_id.tid)
                .filter(|task| task.is_latest(attempt_id))
            {
                // The second of two writes to one task is looked at after the first.
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
                    Applied::Made => verdicts[index] = outcome,
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
        let () = link.change(&script::REFUSE, args, Certainty::Done).await?;
    }
    Ok(verdicts)
}

/// The ends of what an attempt wrote. All of it, when none was written before and it is small, goes where the record is.
fn tails(finish: &Completion, max_output: u64) -> impl Iterator<Item = (OutputStream, Tail)> {
    let ends = [
        (
            OutputStream::Stdout,
            &finish.stdout,
            finish.report.stdout_bytes,
        ),
        (
            OutputStream::Stderr,
            &finish.stderr,
            finish.report.stderr_bytes,
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
