//! Optimistic updates: tasks are read, changes are decided, and `apply_changes.lua` applies each if
//! its task is unchanged. A task that has changed is read and decided again.

use std::collections::HashMap;

use raddle_model::Tid;

use super::{
    Redis,
    change::{Change, Draft, Snapshot},
    connection::{Certainty, ServerConnection},
    reclaim::TAKEOVER_MARGIN,
    record::{FinishedRecord, Record, StoredSpec},
    script,
    value::arg,
};
use raddle_broker::{Error, Result};

/// The most retries before something must be wrong.
const TRIES: usize = 1000;
/// The most tasks changed by one script, which blocks the server meanwhile.
const AT_ONCE: usize = 500;

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Applied {
    /// It was applied.
    Made,
    /// The task has changed since it was read.
    Changed,
    /// The task no longer exists.
    Missing,
    /// The worker that counted as lost is alive.
    Alive,
}

impl Redis {
    /// Reads tasks with their control messages, without those that do not exist.
    pub(super) async fn snapshots(&self, tids: &[Tid]) -> Result<HashMap<Tid, Snapshot>> {
        snapshots(self.link(), tids).await
    }

    /// Reads one task.
    pub(super) async fn snapshot(&self, tid: Tid) -> Result<Option<Snapshot>> {
        Ok(self.snapshots(&[tid]).await?.remove(&tid))
    }

    /// Applies what `decide` decides about one task, with retries. `None` means no change.
    pub(super) async fn update_task<T>(
        &self,
        tid: Tid,
        sure: Certainty,
        mut decide: impl FnMut(&Snapshot, &mut Draft<'_>) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        for _ in 0..TRIES {
            let before = self.snapshot(tid).await?.ok_or(Error::NotFound(tid))?;
            let mut draft = Draft::new(&before);
            let Some(outcome) = decide(&before, &mut draft)? else {
                return Ok(None);
            };
            match apply(self.link(), &[draft], sure).await?[..] {
                [Applied::Made] => return Ok(Some(outcome)),
                [Applied::Missing] => return Err(Error::NotFound(tid)),
                _ => {}
            }
        }
        Err(Error::Server {
            place: self.link().target.place(),
            reason: format!("task {tid} keeps changing"),
        })
    }
}

/// Reads tasks with their control messages, without those that do not exist.
pub(super) async fn snapshots(
    link: &ServerConnection,
    tids: &[Tid],
) -> Result<HashMap<Tid, Snapshot>> {
    read_snapshots(link, tids, true).await
}

/// Reads tasks; on request with their control messages, which cost a command each.
pub(super) async fn read_snapshots(
    link: &ServerConnection,
    tids: &[Tid],
    with_commands: bool,
) -> Result<HashMap<Tid, Snapshot>> {
    let mut found = HashMap::with_capacity(tids.len());
    for tids in tids.chunks(AT_ONCE) {
        let mut pipe = redis::pipe();
        pipe.atomic().cmd("TIME");
        for name in ["specs", "records", "finished"] {
            let command = pipe.cmd("HMGET").arg(link.keys.named(name));
            tids.iter().for_each(|tid| _ = command.arg(tid.to_string()));
        }
        for tid in tids.iter().filter(|_| with_commands) {
            pipe.cmd("ZRANGEBYLEX")
                .arg(link.keys.named("commands"))
                .arg(format!("[{tid}:"))
                .arg(format!("({tid};"));
        }
        let answers: Vec<Vec<Option<String>>> = link.query(&pipe).await?;
        let mut answers = answers.into_iter();
        let mut next = || answers.next().unwrap_or_default();
        let time = next()
            .into_iter()
            .flatten()
            .filter_map(|part| part.parse::<i64>().ok());
        let now = time.fold(0, |time, part| time * 1_000_000 + part);
        let (specs, records, ends) = (next(), next(), next());
        for (((tid, spec), record), done) in tids.iter().zip(specs).zip(records).zip(ends) {
            // The ids of task and message precede the text of a stored message.
            let command = |command: String| command.splitn(3, ':').nth(2).map(Into::into);
            let commands = if with_commands { next() } else { Vec::new() };
            let commands = commands.into_iter().flatten().filter_map(command);
            let Some(stored) = spec else { continue };
            let raw = record.unwrap_or_default();
            let record = match raw.as_str() {
                "" => StoredSpec::parse(*tid, &stored)?.initial_record(),
                raw => Record::parse(*tid, raw)?,
            };
            let raw_done = done.as_deref().and_then(|done| done.split('\n').next());
            let raw_done = raw_done.unwrap_or_default().to_owned();
            let done = done
                .map(|done| FinishedRecord::parse(*tid, &done))
                .transpose()?;
            found.insert(
                *tid,
                Snapshot {
                    tid: *tid,
                    stored,
                    raw,
                    record,
                    done,
                    raw_done,
                    commands: commands.collect(),
                    now,
                },
            );
        }
    }
    Ok(found)
}

/// Applies changes, each if its task is unchanged.
pub(super) async fn apply(
    link: &ServerConnection,
    drafts: &[Draft<'_>],
    sure: Certainty,
) -> Result<Vec<Applied>> {
    let mut applied = Vec::with_capacity(drafts.len());
    for drafts in drafts.chunks(AT_ONCE) {
        let mut bytes = Vec::new();
        let changes: Vec<Change> = drafts
            .iter()
            .map(|draft| draft.change(&mut bytes))
            .collect();
        let json = serde_json::to_vec(&changes).expect("changes have only string keys");
        let mut args = vec![
            arg(link.max_output()),
            arg(TAKEOVER_MARGIN.as_millis()),
            json,
        ];
        args.append(&mut bytes);
        let answers: Vec<String> = link.change(&script::APPLY_CHANGES, args, sure).await?;
        applied.extend(answers.iter().map(|answer| match answer.as_str() {
            "ok" => Applied::Made,
            "missing" => Applied::Missing,
            "alive" => Applied::Alive,
            _ => Applied::Changed,
        }));
    }
    Ok(applied)
}
