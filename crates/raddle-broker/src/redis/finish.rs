//! The end of an attempt: finished, or given back.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use raddle_core::{EventKind, State, Tid};

use super::{
    Core, Redis,
    apply::{Applied, apply, snapshots},
    chain::Chained,
    change::{Draft, Snapshot, Tail},
    group::{Group, Shared},
    keys::Keys,
    link::{Link, Sure},
    output::{MAX_KEPT, WHOLE_BYTES},
    record::Place,
    script,
    value::{arg, list, text},
};
use crate::{Error, Fence, Finish, Release, Result, Started, Stream, Verdict};

/// How many attempts one script ends at most: nobody else is served meanwhile.
const AT_ONCE: usize = 500;
/// So much output weighs as much as an attempt: what callers have to say goes together as long as it is short.
const BYTES_OF_ONE: usize = 2048;
/// How often what attempts have chained is read anew before it must have been lost.
const TRIES: u32 = 100;
/// How many tasks one script submits that follow attempts, unless a single attempt has chained more.
const FOLLOWED_AT_ONCE: u64 = 2000;

impl Redis {
    /// Notes that targets have begun.
    pub(super) async fn note_started(&self, batch: Vec<Started>) -> Result<()> {
        for batch in batch.chunks(AT_ONCE) {
            let mut args = Vec::with_capacity(batch.len() * 3);
            for Started { fence, pid } in batch {
                args.extend([arg(fence.tid), arg(fence.attempt), pid.map_or(arg("-"), arg)]);
            }
            self.link().change(&script::STARTED, Vec::new(), args, Sure::Done).await?;
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

    /// Ends attempts. Success leaves nothing to decide, and is one call for all that have chained nothing; what went otherwise is read and decided on.
    pub(super) async fn finish_batch(&self, batch: Vec<Finish>) -> Result<Vec<Verdict>> {
        let mut verdicts = vec![Verdict::Stale; batch.len()];
        // One task may be there twice, and what comes first counts.
        let mut run: Vec<(usize, Finish)> = Vec::new();
        let mut others: Vec<(usize, Finish)> = Vec::new();
        for (index, finish) in batch.into_iter().enumerate() {
            if finish.report.exit.is_success() { run.push((index, finish)) } else { others.push((index, finish)) }
        }
        let (mut run, mut parts) = (run.into_iter(), Vec::new());
        loop {
            let (indexes, part): (Vec<usize>, Vec<Finish>) = run.by_ref().take(AT_ONCE).unzip();
            if part.is_empty() {
                break;
            }
            let part: Arc<[Finish]> = part.into();
            let successes = Successes(Arc::clone(&part));
            let answers = Group::ask(&self.core, successes).await?;
            parts.push((indexes, part, answers));
        }
        let mut chained = Vec::new();
        for (indexes, part, answers) in &parts {
            for ((index, finish), answer) in indexes.iter().zip(&**part).zip(answers) {
                match answer {
                    Completed::Verdict(verdict) => verdicts[*index] = *verdict,
                    Completed::Chained => chained.push((*index, finish)),
                }
            }
        }
        self.complete_chained(chained, &mut verdicts).await?;
        let decide = |task: &Snapshot, draft: &mut Draft<'_>, finish: &Finish| {
            draft.output.extend(tails(finish));
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

    /// Ends attempts that went well and have chained something, with what follows them. What that is may grow until the script looks.
    async fn complete_chained(&self, mut open: Vec<(usize, &Finish)>, verdicts: &mut [Verdict]) -> Result<()> {
        let mut in_vain = 0;
        while let Some((_, first)) = open.first() {
            if in_vain == TRIES {
                let Fence { tid, attempt } = first.fence;
                return Err(Error::ChainLost { tid, attempt });
            }
            let tids: Vec<Tid> = open.iter().take(AT_ONCE).map(|(_, finish)| finish.fence.tid).collect();
            let (mut keys, mut args, mut parts) = (Vec::new(), vec![arg(MAX_KEPT)], BTreeSet::new());
            let (mut ended, mut tasks) = (Vec::new(), 0);
            for ((_, finish), text) in open.iter().zip(self.chained(&tids).await?) {
                let text = text.unwrap_or_default();
                // Where nothing is left, the attempt will be over, which the script says.
                let chained = Chained::parse(finish.fence.tid, &text).unwrap_or_default();
                if !ended.is_empty() && tasks + chained.tasks() > FOLLOWED_AT_ONCE {
                    break;
                }
                tasks += chained.tasks();
                parts.extend(chained.parts);
                args.extend(success_args(&self.core.keys, finish, &mut keys, text));
                ended.push(finish.fence);
            }
            keys.extend(parts.iter().map(|part| self.core.keys.ready(part)));
            let answers = list(self.link().change(&script::FINISH, keys, args, Sure::Durable).await?);
            let rest = open.split_off(ended.len());
            let mut again = Vec::new();
            for ((index, finish), answer) in open.into_iter().zip(answers) {
                match completed(answer) {
                    Completed::Verdict(verdict) => verdicts[index] = verdict,
                    Completed::Chained => again.push((index, finish)),
                }
            }
            in_vain = if again.len() == ended.len() { in_vain + 1 } else { 0 };
            open = again.into_iter().chain(rest).collect();
        }
        Ok(())
    }
}

/// What the script says of an attempt that went well.
pub(super) enum Completed {
    Verdict(Verdict),
    /// It has chained something, and is as it was.
    Chained,
}

fn completed(answer: redis::Value) -> Completed {
    match text(answer).as_str() {
        "done" => Completed::Verdict(Verdict::Done(State::Completed)),
        "chained" => Completed::Chained,
        _ => Completed::Verdict(Verdict::Stale),
    }
}

/// Attempts that went well, of one caller.
pub(super) struct Successes(Arc<[Finish]>);

impl Shared for Successes {
    type Answer = Vec<Completed>;

    const MOST: usize = AT_ONCE;

    fn weight(&self) -> usize {
        let bytes: usize = self.0.iter().map(|finish| finish.stdout.len() + finish.stderr.len()).sum();
        self.0.len() + bytes / BYTES_OF_ONE
    }

    fn group(core: &Core) -> &Group<Self> {
        &core.finishing
    }

    /// They are one script, so that all are ended or none. One that chained something is left as it is.
    async fn send(core: &Core, parts: &[&Self]) -> Result<Vec<Vec<Completed>>> {
        let batch = parts.iter().flat_map(|part| &*part.0);
        let (mut keys, mut args) = (Vec::new(), vec![arg(MAX_KEPT)]);
        for finish in batch {
            args.extend(success_args(&core.keys, finish, &mut keys, String::new()));
        }
        let answers = list(core.link.change(&script::FINISH, keys, args, Sure::Durable).await?);
        let mut answers = answers.into_iter().map(completed);
        Ok(parts.iter().map(|part| answers.by_ref().take(part.0.len()).collect()).collect())
    }
}

/// An attempt that went well, as the script takes it, with what it has chained. Keys of output that it names by number are added to `keys`.
fn success_args(names: &Keys, finish: &Finish, keys: &mut Vec<String>, chained: String) -> Vec<Vec<u8>> {
    let report = serde_json::to_vec(&finish.report).expect("a report has only string keys");
    let mut args = vec![arg(finish.fence.tid), arg(finish.fence.attempt), report];
    let mut tails: HashMap<Stream, Tail> = tails(finish).into_iter().collect();
    for stream in Stream::BOTH {
        let (kind, bytes) = match tails.remove(&stream) {
            None => (Vec::new(), Vec::new()),
            Some(Tail::Whole(bytes)) => (arg("h"), bytes),
            Some(Tail::Rest(bytes)) => {
                keys.push(names.output(finish.fence, stream));
                (arg(keys.len()), bytes)
            }
        };
        args.extend([kind, bytes]);
    }
    args.push(chained.into_bytes());
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
        let mut seen = std::collections::HashSet::new();
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
        link.change(&script::REFUSE, Vec::new(), args, Sure::Done).await?;
    }
    Ok(verdicts)
}

/// The ends of what an attempt wrote. All of it, when none was written before and it is small, goes where the record is.
fn tails(finish: &Finish) -> Vec<(Stream, Tail)> {
    let mut tails = Vec::new();
    for (stream, tail, total) in [
        (Stream::Stdout, &finish.stdout, finish.report.stdout_bytes),
        (Stream::Stderr, &finish.stderr, finish.report.stderr_bytes),
    ] {
        if tail.is_empty() {
            continue;
        }
        let is_whole = total <= tail.len() as u64 && tail.len() <= WHOLE_BYTES;
        tails.push((stream, if is_whole { Tail::Whole(tail.clone()) } else { Tail::Rest(tail.clone()) }));
    }
    tails
}
