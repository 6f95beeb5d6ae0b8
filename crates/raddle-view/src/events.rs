//! The event log: its end, and what a task went through.

use std::time::Duration;

use jiff::Timestamp;
use raddle_broker::Broker;
use raddle_model::{TaskEvent, TaskEventKind, TaskState, Tid};
use serde::Serialize;

use crate::Result;

/// How many events are read at once.
const PAGE: u32 = 1000;
/// The most events of one task that are read.
pub const MAX_TASK_EVENTS: usize = 5000;
/// The first look back from the end of the log, in nanoseconds. It grows until enough events are
/// found: ids are times, and the log can only be read forwards.
const FIRST_LOOK_BACK: u64 = 1_000_000_000;
/// The growth of the look back.
const GROWTH: u64 = 8;
/// The farthest look back.
const MAX_LOOK_BACK: u64 = 30 * 86_400 * 1_000_000_000;
/// The most events that are read to find the last ones.
const MAX_READ: usize = 20_000;

/// The end of the event log, or of its part before a time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EventList {
    /// The events, the oldest first.
    pub items: Vec<TaskEvent>,
    /// The id of the last event, from which to go on.
    pub next: Option<Tid>,
}

/// Reads the last `max` events, or the last ones before a time.
pub async fn last_events(
    broker: &dyn Broker,
    until: Option<Timestamp>,
    max: usize,
) -> Result<EventList> {
    let last = broker.last_event().await?;
    let until = until.map_or(u64::MAX, |time| {
        u64::try_from(time.as_nanosecond()).unwrap_or(0)
    });
    let end = last.min(until);
    let mut look_back = FIRST_LOOK_BACK;
    let mut items = loop {
        let from = end.saturating_sub(look_back);
        let found = read_between(broker, from, end).await?;
        if found.len() >= max || look_back >= MAX_LOOK_BACK || from == 0 {
            break found;
        }
        look_back *= GROWTH;
    };
    items.drain(..items.len().saturating_sub(max));
    Ok(EventList {
        next: items.last().map(|event| event.id),
        items,
    })
}

/// The events after `from` and up to `end`; the last ones if there are too many.
async fn read_between(broker: &dyn Broker, from: u64, end: u64) -> Result<Vec<TaskEvent>> {
    let (mut events, mut after) = (Vec::new(), from);
    loop {
        let page = broker
            .events(Some(after), None, PAGE, Duration::ZERO)
            .await?;
        let is_last = page.len() < PAGE as usize;
        after = page.last().map_or(after, |event| event.id.as_u64());
        events.extend(page.into_iter().filter(|event| event.id.as_u64() <= end));
        if is_last || after >= end || events.len() >= MAX_READ {
            return Ok(events);
        }
    }
}

/// Reads the events of a task, the oldest first.
pub async fn task_events(broker: &dyn Broker, tid: Tid) -> Result<Vec<TaskEvent>> {
    // The first event has the id of the task.
    let (mut events, mut after) = (Vec::new(), tid.as_u64() - 1);
    while events.len() < MAX_TASK_EVENTS {
        let page = broker
            .events(Some(after), Some(tid), PAGE, Duration::ZERO)
            .await?;
        let is_last = page.len() < PAGE as usize;
        after = page.last().map_or(after, |event| event.id.as_u64());
        events.extend(page);
        if is_last {
            break;
        }
    }
    Ok(events)
}

/// The state of a task after these events of it; `None` before the first.
pub fn state_after<'a>(events: impl IntoIterator<Item = &'a TaskEvent>) -> Option<TaskState> {
    events.into_iter().fold(None, |state, event| {
        use TaskEventKind::{Reclaimed, Released, Retrying};
        match event.event {
            Retrying | Released | Reclaimed => Some(TaskState::Created),
            kind => TaskState::ALL
                .into_iter()
                .find(|state| TaskEventKind::from(*state) == kind)
                .or(state),
        }
    })
}

/// One attempt of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttemptSpan {
    /// Its number.
    pub attempt: u32,
    /// The worker that ran it.
    pub worker: Option<Tid>,
    /// Since when the task waited for it.
    pub waited_from: Option<Timestamp>,
    /// When a worker claimed the task.
    pub claimed_at: Timestamp,
    /// When the target started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// How it ended.
    pub end: Option<TaskEventKind>,
    /// Details of its end.
    pub detail: Option<String>,
}

/// The attempts of a task, from its events.
pub fn attempts(events: &[TaskEvent]) -> Vec<AttemptSpan> {
    let mut spans: Vec<AttemptSpan> = Vec::new();
    let mut waits_from = None;
    for event in events {
        use TaskEventKind as Kind;
        match event.event {
            Kind::Created => waits_from = Some(event.at),
            Kind::Spawning => spans.push(AttemptSpan {
                attempt: event.attempt,
                worker: event.worker,
                waited_from: waits_from.take(),
                claimed_at: event.at,
                started_at: None,
                ended_at: None,
                end: None,
                detail: None,
            }),
            Kind::Running => {
                if let Some(span) = spans.last_mut() {
                    span.started_at = Some(event.at);
                }
            }
            kind if kind.is_terminal()
                || matches!(kind, Kind::Retrying | Kind::Released | Kind::Reclaimed) =>
            {
                if let Some(span) = spans.last_mut().filter(|span| span.end.is_none()) {
                    span.ended_at = Some(event.at);
                    span.end = Some(kind);
                    span.detail.clone_from(&event.detail);
                }
                waits_from = Some(event.at);
            }
            _ => {}
        }
    }
    spans
}
