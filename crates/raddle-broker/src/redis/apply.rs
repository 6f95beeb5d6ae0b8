//! Reading tasks, and making the changes that were decided from that. A task that has changed in between is read and decided on again.

use std::collections::HashMap;

use raddle_core::Tid;

use super::{
    Redis,
    change::{Change, Draft, Output, Snapshot, Tail},
    keys::output_field,
    link::{Link, Sure},
    output::MAX_KEPT,
    reclaim::TAKEOVER_MARGIN,
    record::{Done, Record, Stored},
    script,
    value::{arg, list, maybe, micros, text},
};
use crate::{Error, Result};

/// How often a change is decided anew before something must be wrong.
const TRIES: usize = 1000;
/// How many tasks one script changes at most: nobody else is served meanwhile.
const AT_ONCE: usize = 500;

/// What came of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Applied {
    /// It is made.
    Made,
    /// The task is not as it was read any more.
    Changed,
    /// The task is not there any more.
    Missing,
    /// The worker that was held to be gone is alive.
    Alive,
}

/// The keys and bytes that a batch of changes names by number.
struct Batch<'l> {
    link: &'l Link,
    keys: Vec<String>,
    parts: HashMap<String, usize>,
    bytes: Vec<Vec<u8>>,
}

impl Redis {
    /// Reads tasks with the words that wait for them; those that are not there are left out.
    pub(super) async fn snapshots(&self, tids: &[Tid]) -> Result<HashMap<Tid, Snapshot>> {
        snapshots(self.link(), tids).await
    }

    /// Reads one task.
    pub(super) async fn snapshot(&self, tid: Tid) -> Result<Option<Snapshot>> {
        Ok(self.snapshots(&[tid]).await?.remove(&tid))
    }

    /// Changes one task as `decide` says, which may refuse, as often as it takes.
    pub(super) async fn alter<T>(
        &self,
        tid: Tid,
        sure: Sure,
        mut decide: impl FnMut(&Snapshot, &mut Draft<'_>) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        for _ in 0..TRIES {
            let before = self.snapshot(tid).await?.ok_or(Error::NotFound(tid))?;
            let mut draft = Draft::new(&before);
            let Some(outcome) = decide(&before, &mut draft)? else { return Ok(None) };
            match apply(self.link(), &[draft], sure).await?[..] {
                [Applied::Made] => return Ok(Some(outcome)),
                [Applied::Missing] => return Err(Error::NotFound(tid)),
                _ => {}
            }
        }
        Err(Error::Server { place: self.link().target.place(), reason: format!("task {tid} does not hold still") })
    }
}

/// Reads tasks with the words that wait for them; those that are not there are left out.
pub(super) async fn snapshots(link: &Link, tids: &[Tid]) -> Result<HashMap<Tid, Snapshot>> {
    let mut found = HashMap::with_capacity(tids.len());
    for tids in tids.chunks(AT_ONCE) {
        let mut pipe = redis::pipe();
        pipe.atomic().cmd("TIME");
        for name in ["spec", "task", "done"] {
            let command = pipe.cmd("HMGET").arg(link.keys.of(name));
            tids.iter().for_each(|tid| _ = command.arg(tid.to_string()));
        }
        for tid in tids {
            pipe.cmd("ZRANGEBYLEX").arg(link.keys.of("words")).arg(format!("[{tid}:")).arg(format!("({tid};"));
        }
        let mut answers = link.pipe(pipe).await?.into_iter();
        let mut next = || answers.next().unwrap_or_default();
        let now = micros(next());
        let [specs, records, ends] = [list(next()), list(next()), list(next())];
        for (((tid, spec), record), done) in tids.iter().zip(specs).zip(records).zip(ends) {
            let words = list(next()).into_iter().filter_map(word).collect();
            let Some(stored) = maybe(spec) else { continue };
            let raw = maybe(record).unwrap_or_default();
            let record = match raw.as_str() {
                "" => Stored::parse(*tid, &stored)?.untouched(),
                raw => Record::parse(*tid, raw)?,
            };
            let done = maybe(done).map(|done| Done::parse(*tid, &done)).transpose()?;
            found.insert(*tid, Snapshot { tid: *tid, stored, raw, record, done, words, now });
        }
    }
    Ok(found)
}

/// What a stored word says: it stands behind the ids of its task and its own.
fn word(value: redis::Value) -> Option<String> {
    text(value).splitn(3, ':').nth(2).map(Into::into)
}

/// Makes changes, each if its task is still as it was read.
pub(super) async fn apply(link: &Link, drafts: &[Draft<'_>], sure: Sure) -> Result<Vec<Applied>> {
    let mut applied = Vec::with_capacity(drafts.len());
    for drafts in drafts.chunks(AT_ONCE) {
        let mut batch = Batch { link, keys: Vec::new(), parts: HashMap::new(), bytes: Vec::new() };
        let changes: Vec<Change> = drafts.iter().map(|draft| batch.add(draft)).collect();
        let json = serde_json::to_vec(&changes).expect("changes have only string keys");
        let mut args = vec![arg(MAX_KEPT), arg(TAKEOVER_MARGIN.as_millis()), json];
        args.append(&mut batch.bytes);
        let answer = link.change(&script::APPLY, batch.keys, args, sure).await?;
        applied.extend(list(answer).into_iter().map(|answer| match text(answer).as_str() {
            "ok" => Applied::Made,
            "missing" => Applied::Missing,
            "alive" => Applied::Alive,
            _ => Applied::Changed,
        }));
    }
    Ok(applied)
}

impl Batch<'_> {
    fn add(&mut self, draft: &Draft<'_>) -> Change {
        let mut change = draft.change();
        let fence = draft.fence();
        if change.part.is_empty() {
            if draft.is_over() {
                change.leaves = Some(self.key(self.link.keys.wake(&fence.tid.to_string())));
            }
        } else {
            change.stream = match self.parts.get(&change.part) {
                Some(known) => *known,
                None => {
                    let stream = self.key(self.link.keys.ready(&change.part));
                    self.parts.insert(change.part.clone(), stream);
                    stream
                }
            };
        }
        for (stream, tail) in &draft.output {
            let (key, field, bytes) = match tail {
                Tail::Whole(bytes) => (None, Some(output_field(fence, *stream)), bytes),
                Tail::Rest(bytes) => (Some(self.key(self.link.keys.output(fence, *stream))), None, bytes),
            };
            self.bytes.push(bytes.clone());
            change.output.push(Output { key, field, bytes: self.bytes.len() });
        }
        change
    }

    fn key(&mut self, key: String) -> usize {
        self.keys.push(key);
        self.keys.len()
    }
}
