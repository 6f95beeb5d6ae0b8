//! The end of an attempt: finished, or given back.

use std::collections::{HashMap, HashSet};

use raddle_core::{EventKind, State, Tid};

use super::{
    Redis,
    apply::{Applied, apply, snapshots},
    change::{Draft, Snapshot, Tail},
    link::{Link, Sure},
    output::WHOLE_BYTES,
    record::Place,
    script,
    value::arg,
};
use crate::{Error, Fence, Finish, Release, Result, Started, Stream, Verdict};

/// How many attempts one script ends at most: nobody else is served meanwhile.
const AT_ONCE: usize = 500;

impl Redis {
    /// Notes that targets have begun.
    pub(super) async fn note_started(&self, batch: Vec<Started>) -> Result<()> {
        for batch in batch.chunks(AT_ONCE) {
            let mut args = Vec::with_capacity(batch.len() * 4);
            for Started { fence, pid } in batch {
                args.extend([arg(fence.tid), arg(fence.attempt), arg(fence.owner), pid.map_or(arg("-"), arg)]);
            }
            let () = self.link().change(&script::STARTED, args, Sure::Done).await?;
        }
        Ok(())
    }

    /// Notes that a running attempt stands still, or goes on.
    pub(super) async fn note_paused(&self, fence: Fence, paused: bool) -> Result<()> {
        let noted = self
            .alter(fence.tid, Sure::Done, |task, draft| {
                let news = task.is_latest(fence) && task.record.paused != paused;
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
    pub(super) async fn finish_batch(&self, batch: Vec<Finish>) -> Result<Vec<Verdict>> {
        let mut verdicts = vec![Verdict::Stale; batch.len()];
        let max_output = self.link().max_output();
        let batch = batch.into_iter().enumerate();
        let (successes, mut others): (Vec<_>, Vec<_>) = batch.partition(|(_, finish)| finish.report.exit.is_success());
        for part in successes.chunks(AT_ONCE) {
            let mut args = vec![arg(max_output)];
            part.iter().for_each(|(_, finish)| args.extend(success_args(finish, max_output)));
            let answers: Vec<String> = self.link().change(&script::FINISH, args, Sure::Durable).await?;
            for ((index, finish), answer) in part.iter().zip(answers) {
                match answer.as_str() {
                    "done" => verdicts[*index] = Verdict::Done(State::Completed),
                    "chained" => others.push((*index, finish.clone())),
                    _ => {}
                }
            }
        }
        let decide = |task: &Snapshot, draft: &mut Draft<'_>, finish: &Finish| {
            draft.output.extend(tails(finish, max_output));
            if task.record.place == Place::Spawning && finish.report.started_at.is_some() {
                draft.event(EventKind::Running, task.record.owner, None);
            }
            draft.settle(finish.report.clone())
        };
        let (indexes, finishes): (Vec<usize>, Vec<Finish>) = others.into_iter().unzip();
        let ended = end_all(self.link(), &finishes, |finish| finish.fence, decide, Sure::Durable).await?;
        for (index, verdict) in indexes.into_iter().zip(ended) {
            verdicts[index] = verdict;
        }
        Ok(verdicts)
    }
}

/// An attempt that went well, as the script takes it.
fn success_args(finish: &Finish, max_output: u64) -> Vec<Vec<u8>> {
    let report = serde_json::to_vec(&finish.report).expect("a report has only string keys");
    let Fence { tid, attempt, owner } = finish.fence;
    let mut args = vec![arg(tid), arg(attempt), arg(owner), report];
    let mut tails: HashMap<Stream, Tail> = tails(finish, max_output).collect();
    for stream in Stream::BOTH {
        match tails.remove(&stream) {
            None => args.extend([Vec::new(), Vec::new()]),
            Some(Tail { whole, bytes }) => args.extend([arg(if whole { "whole" } else { "rest" }), bytes]),
        }
    }
    args
}

/// Gives tasks back to their queue as if they had not been claimed.
pub(super) async fn release(link: &Link, batch: Vec<Release>) -> Result<Vec<Verdict>> {
    let decide = |_: &Snapshot, draft: &mut Draft<'_>, release: &Release| {
        draft.give_back(EventKind::Released, release.reason.clone())
    };
    end_all(link, &batch, |release| release.fence, decide, Sure::Done).await
}

/// Ends attempts as `decide` says. One that is not the latest is refused, counted and logged.
async fn end_all<T>(
    link: &Link,
    batch: &[T],
    fence_of: impl Fn(&T) -> Fence,
    decide: impl Fn(&Snapshot, &mut Draft<'_>, &T) -> Verdict,
    sure: Sure,
) -> Result<Vec<Verdict>> {
    let mut verdicts = vec![Verdict::Stale; batch.len()];
    let mut open: Vec<usize> = (0..batch.len()).collect();
    let mut stale = Vec::new();
    while !open.is_empty() {
        let tids: Vec<Tid> = open.iter().map(|index| fence_of(&batch[*index]).tid).collect();
        let tasks = snapshots(link, &tids).await?;
        let (mut drafts, mut drafted, mut later) = (Vec::new(), Vec::new(), Vec::new());
        let mut seen = HashSet::new();
        for index in open {
            let fence = fence_of(&batch[index]);
            match tasks.get(&fence.tid).filter(|task| task.is_latest(fence)) {
                // The second of two writes to one task is looked at after the first.
                Some(_) if !seen.insert(fence.tid) => later.push(index),
                Some(task) => {
                    let mut draft = Draft::new(task);
                    let verdict = decide(task, &mut draft, &batch[index]);
                    drafts.push(draft);
                    drafted.push((index, verdict));
                }
                None => stale.push(fence),
            }
        }
        if !drafts.is_empty() {
            for ((index, verdict), applied) in drafted.into_iter().zip(apply(link, &drafts, sure).await?) {
                match applied {
                    Applied::Made => verdicts[index] = verdict,
                    _ => later.push(index),
                }
            }
        }
        open = later;
    }
    if !stale.is_empty() {
        let args = stale.iter().flat_map(|fence| [arg(fence.tid), arg(fence.attempt)]).collect();
        let () = link.change(&script::REFUSE, args, Sure::Done).await?;
    }
    Ok(verdicts)
}

/// The ends of what an attempt wrote. All of it, when none was written before and it is small, goes where the record is.
fn tails(finish: &Finish, max_output: u64) -> impl Iterator<Item = (Stream, Tail)> {
    let ends = [
        (Stream::Stdout, &finish.stdout, finish.report.stdout_bytes),
        (Stream::Stderr, &finish.stderr, finish.report.stderr_bytes),
    ];
    ends.into_iter().filter(|(_, bytes, _)| !bytes.is_empty()).map(move |(stream, bytes, total)| {
        let length = bytes.len() as u64;
        let whole = total <= length && length <= WHOLE_BYTES.min(max_output);
        (stream, Tail { whole, bytes: bytes.clone() })
    })
}
