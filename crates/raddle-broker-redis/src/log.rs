//! The event log. An entry of `log` stands for one event of each of its tasks; an entry of `born`
//! for the `created` events of its tasks.

use std::{collections::HashSet, time::Duration};

use async_trait::async_trait;
use raddle_model::{TaskEvent, TaskEventKind, Tid};

use super::{
    Redis,
    connection::ServerConnection,
    event_index::EventIndex,
    record::{FinishedRecord, Record},
    schema::{Topic, from_stream_id, stream_id},
    value::{Entries, at_nanos},
};
use raddle_broker::{
    Log, Result,
    engine::follow::{FollowStep, LogRange},
};

/// The most entries that one read scans for the events of one task.
const SCAN: u32 = 2000;

#[async_trait]
impl Log for Redis {
    async fn events(
        &self,
        after: Option<u64>,
        tid: Option<Tid>,
        max: u32,
        wait: Duration,
    ) -> Result<Vec<TaskEvent>> {
        let Some(mut after) = after else {
            return last(self.link()).await;
        };
        let mut wait = self.wait(Topic::Log, wait).await;
        loop {
            let range = match tid {
                None => of_all(self.link(), after, max).await?,
                Some(tid) => of_one(self.link(), tid, after).await?,
            };
            after = after.max(range.scanned);
            let step = range.next_step();
            if step == FollowStep::Return || step == FollowStep::Wait && !wait.next(None).await {
                return Ok(range.into_first(max));
            }
        }
    }
}

/// The last event.
async fn last(link: &ServerConnection) -> Result<Vec<TaskEvent>> {
    let mut pipe = redis::pipe();
    pipe.cmd("XREVRANGE")
        .arg(link.keys.named("created"))
        .arg("+")
        .arg("-")
        .arg("COUNT")
        .arg(1);
    pipe.cmd("XREVRANGE")
        .arg(link.keys.named("log"))
        .arg("+")
        .arg("-")
        .arg("COUNT")
        .arg(1);
    let (born, log): (Entries, Entries) = link.query(&pipe).await?;
    let last = created(&born)
        .chain(logged(&log))
        .max_by_key(|event| event.id);
    Ok(last.into_iter().collect())
}

/// Events of all tasks after `after`, without those of deleted tasks.
async fn of_all(link: &ServerConnection, after: u64, max: u32) -> Result<LogRange> {
    let mut pipe = redis::pipe();
    // Read both streams atomically: an event between two reads would be skipped for ever.
    pipe.atomic();
    read(&mut pipe, link.keys.named("created"), after, max);
    read(&mut pipe, link.keys.named("log"), after, max);
    let (born_before, born, log_before, log): (Entries, Entries, Entries, Entries) =
        link.query(&pipe).await?;
    let mut events: Vec<TaskEvent> = [&born_before, &born]
        .into_iter()
        .flat_map(created)
        .collect();
    events.extend([&log_before, &log].into_iter().flat_map(logged));
    events.retain(|event| event.id.as_u64() > after);
    events.sort_by_key(|event| event.id);
    events.truncate(max as usize);
    let scanned = events.last().map_or(after, |event| event.id.as_u64());
    let more = !events.is_empty();
    let known = known(link, events.iter().map(|event| event.tid)).await?;
    events.retain(|event| known.contains(&event.tid));
    Ok(LogRange {
        events,
        scanned,
        more,
    })
}

/// Events of one task after `after`. The record of the task lists the entries that have them.
pub(super) async fn of_one(link: &ServerConnection, tid: Tid, after: u64) -> Result<LogRange> {
    let from = after.max(tid.as_u64() - 1);
    let Some(index) = read_index(link, tid).await? else {
        return Ok(LogRange {
            events: Vec::new(),
            scanned: after,
            more: false,
        });
    };
    let mut pipe = redis::pipe();
    let log = link.keys.named("log");
    // Entries that a long list has lost are scanned for.
    let first = index.entries.first().copied().unwrap_or(u64::MAX);
    let is_scan = index.is_cut && from.saturating_add(1) < first;
    if is_scan {
        read(&mut pipe, log, from, SCAN);
    } else {
        // The entry before may stand for several events, some of them after the id.
        let next = index.entries.partition_point(|entry| *entry <= from);
        let entries = &index.entries[next.saturating_sub(1)..];
        for entry in entries.iter().map(|entry| stream_id(*entry)) {
            pipe.cmd("XRANGE").arg(log).arg(&entry).arg(&entry);
        }
    }
    let mut found: Vec<Entries> = if pipe.is_empty() {
        Vec::new()
    } else {
        link.query(&pipe).await?
    };
    let (mut more, mut scanned) = (false, from.max(tid.as_u64()));
    if is_scan && let [_, entries] = &mut found[..] {
        let listed = entries
            .iter()
            .position(|(id, _)| from_stream_id(id) >= Some(first));
        more = listed.is_some() || entries.len() == SCAN as usize;
        if let Some(listed) = listed {
            entries.truncate(listed);
            scanned = scanned.max(first - 1);
        }
    }
    let mut events = Vec::new();
    if from < tid.as_u64() {
        events.push(created_event(tid));
    }
    for event in found.iter().flat_map(logged) {
        if event.id.as_u64() > from {
            scanned = scanned.max(event.id.as_u64());
            events.extend(Some(event).filter(|event| event.tid == tid));
        }
    }
    Ok(LogRange {
        events,
        scanned,
        more,
    })
}

/// The entries that have events of a task; `None` if there is no such task.
async fn read_index(link: &ServerConnection, tid: Tid) -> Result<Option<EventIndex>> {
    let mut pipe = redis::pipe();
    pipe.atomic()
        .cmd("HEXISTS")
        .arg(link.keys.named("specs"))
        .arg(tid.to_string());
    for name in ["records", "finished"] {
        pipe.cmd("HGET")
            .arg(link.keys.named(name))
            .arg(tid.to_string());
    }
    let (exists, record, done): (bool, Option<String>, Option<String>) = link.query(&pipe).await?;
    if !exists {
        return Ok(None);
    }
    // An unreadable record lists nothing, so that the log is scanned.
    let unlisted = |_| EventIndex {
        is_cut: true,
        entries: Vec::new(),
    };
    Ok(Some(match (done, record) {
        (Some(done), _) => {
            FinishedRecord::parse(tid, &done).map_or_else(unlisted, |done| done.events)
        }
        (None, Some(record)) => {
            Record::parse(tid, &record).map_or_else(unlisted, |record| record.events)
        }
        (None, None) => EventIndex::default(),
    }))
}

/// Reads entries after an id. The entry before it may stand for several events, some of them after
/// the id.
fn read(pipe: &mut redis::Pipeline, key: &str, after: u64, max: u32) {
    let from = stream_id(after.min(i64::MAX as u64));
    pipe.cmd("XREVRANGE")
        .arg(key)
        .arg(&from)
        .arg("-")
        .arg("COUNT")
        .arg(1);
    pipe.cmd("XRANGE")
        .arg(key)
        .arg(format!("({from}"))
        .arg("+")
        .arg("COUNT")
        .arg(max);
}

/// The `created` events of entries of `born`.
fn created(entries: &Entries) -> impl Iterator<Item = TaskEvent> {
    entries
        .iter()
        .flat_map(|(id, fields)| born(id, fields))
        .map(created_event)
}

/// The tasks of an entry of `born`.
pub(super) fn born(id: &str, fields: &[String]) -> Vec<Tid> {
    let (Some(first), Some(count)) = (
        from_stream_id(id),
        fields.get(1).and_then(|n| n.parse::<u64>().ok()),
    ) else {
        return Vec::new();
    };
    (first..first.saturating_add(count))
        .filter_map(Tid::from_u64)
        .collect()
}

fn logged(entries: &Entries) -> impl Iterator<Item = TaskEvent> {
    entries.iter().flat_map(|(id, fields)| expand(id, fields))
}

/// The events of an entry of `log`; none if another program has added it.
fn expand(id: &str, fields: &[String]) -> Vec<TaskEvent> {
    let field = |name: &str| {
        fields
            .chunks_exact(2)
            .find(|pair| pair[0] == name)
            .map(|pair| pair[1].as_str())
    };
    let parse = || {
        let (first, kind) = (
            from_stream_id(id)?,
            TaskEventKind::from_u8(field("k")?.parse().ok()?)?,
        );
        let worker = field("w").and_then(|worker| worker.parse().ok());
        let detail = field("d").filter(|detail| !detail.is_empty());
        let one = |(offset, task): (usize, &str)| {
            let (tid, attempt) = task.split_once(':')?;
            let id = Tid::from_u64(first + offset as u64)?;
            Some(TaskEvent {
                id,
                tid: tid.parse().ok()?,
                event: kind,
                at: at_nanos(id.as_i64()),
                attempt: attempt.parse().ok()?,
                worker,
                detail: detail.map(Into::into),
            })
        };
        Some(field("t")?.split(' ').enumerate().filter_map(one).collect())
    };
    parse().unwrap_or_default()
}

fn created_event(tid: Tid) -> TaskEvent {
    let at = at_nanos(tid.as_i64());
    TaskEvent {
        id: tid,
        tid,
        event: TaskEventKind::Created,
        at,
        attempt: 0,
        worker: None,
        detail: None,
    }
}

/// The existing ones among these tasks.
pub(super) async fn known(
    link: &ServerConnection,
    tids: impl Iterator<Item = Tid>,
) -> Result<HashSet<Tid>> {
    let tids: Vec<Tid> = tids.collect::<HashSet<_>>().into_iter().collect();
    if tids.is_empty() {
        return Ok(HashSet::new());
    }
    let mut pipe = redis::pipe();
    tids.iter().for_each(|tid| {
        _ = pipe
            .cmd("HEXISTS")
            .arg(link.keys.named("specs"))
            .arg(tid.to_string())
    });
    let there: Vec<bool> = link.query(&pipe).await?;
    Ok(tids
        .into_iter()
        .zip(there)
        .filter(|(_, there)| *there)
        .map(|(tid, _)| tid)
        .collect())
}
