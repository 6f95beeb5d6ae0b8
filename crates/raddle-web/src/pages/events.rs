//! Events: the end of the log of all tasks, or the log around a moment.

use std::time::Duration;

use jiff::Timestamp;
use raddle_broker::Broker;
use raddle_model::{TaskEvent, Tid};

use super::{
    context::{Context, cut},
    model::{Block, Body, Cell, Empty, Page, Row, Table},
    search,
    task::event_badge,
};
use crate::problem::{Problem, Result};

/// How many events are shown.
const SHOWN: usize = 100;
/// How far back the page looks for the end of the log, and how far at most.
const FIRST_LOOK: Duration = Duration::from_secs(10);
const LONGEST_LOOK: Duration = Duration::from_hours(24);
/// How many events are read at once.
const SLICE: u32 = 1_000;
/// How many slices one request reads.
const SLICES: usize = 20;

pub(super) async fn show(cx: &Context) -> Result<Page> {
    let of_task = match cx.param("tid") {
        Some(text) => Some(search::tid_of(cx, text).await?),
        None => None,
    };
    let until = match cx.param("until") {
        Some(text) => Some(parse_time(text)?),
        None => None,
    };
    let events = newest(cx, of_task, until).await?;
    let mut table = columns().empty(Empty::new(
        "No event",
        "Every change of a task is recorded here. Make one from a terminal:",
        "raddle submit -- echo hello",
    ));
    table.rows = events.iter().rev().map(|event| row(cx, event)).collect();
    let title = match until {
        Some(at) => format!("Until {}", raddle_client::text::time(at)),
        None => "Newest first".into(),
    };
    let mut block = Block::new("events", title, Body::Table(table));
    if let Some(first) = events.first() {
        block = block.tool(Cell::Link {
            href: cx.url(&format!("/events?until={}{}", first.at, of_task.map(|tid| format!("&tid={tid}")).unwrap_or_default())),
            text: "Earlier".into(),
        });
    }
    if until.is_some() {
        block = block.tool(Cell::Link {
            href: cx.url("/events"),
            text: "Now".into(),
        });
    }
    Ok(Page {
        title: "Events".into(),
        section: "/events",
        subtitle: vec![match of_task {
            Some(tid) => Cell::Many(vec![Cell::soft("of the task"), cx.task(tid)]),
            None => Cell::soft("Every change of every task, in the order in which the broker made it"),
        }],
        blocks: vec![block],
        commands: vec!["raddle queue peek raddle.tasks.log".into(), cx.curl("/events")],
        is_live: until.is_none(),
        ..Page::default()
    })
}

/// The table of events, without rows.
pub(crate) fn columns() -> Table {
    Table::new(&[
        ("When", "nowrap"),
        ("Event", "nowrap"),
        ("Task", "nowrap"),
        ("Try", "num p2"),
        ("Worker", "nowrap p2"),
        ("Detail", "p2"),
    ])
}

/// An event as a row.
pub(crate) fn row(cx: &Context, event: &TaskEvent) -> Row {
    let cells = vec![
        Cell::Clock {
            absolute: raddle_client::text::time(event.at),
            text: event.at.strftime("%H:%M:%S%.3f").to_string(),
        },
        event_badge(event.event),
        cx.task(event.tid),
        Cell::text(event.attempt.to_string()),
        event.worker.map_or_else(Cell::none, |tid| cx.worker(tid)),
        event.detail.as_deref().map_or_else(Cell::none, |detail| Cell::soft(cut(detail))),
    ];
    Row {
        id: format!("e-{}", event.id),
        key: event.id.to_string(),
        label: "event".into(),
        cells,
    }
}

/// The last events before a time, oldest first. An event's id is its time, so the log is read from
/// a guess on, and from an earlier one if that was too late.
async fn newest(cx: &Context, of_task: Option<Tid>, until: Option<Timestamp>) -> Result<Vec<TaskEvent>> {
    let broker = cx.broker();
    if let Some(tid) = of_task {
        return read_from(broker, tid.as_u64() - 1, of_task, until).await;
    }
    let end = match until {
        Some(at) => nanos(at),
        None => broker.last_event().await?,
    };
    let (mut back, mut events) = (FIRST_LOOK, Vec::new());
    while events.len() < SHOWN && back <= LONGEST_LOOK {
        let from = end.saturating_sub(u64::try_from(back.as_nanos()).unwrap_or(u64::MAX));
        events = read_from(broker, from, None, until).await?;
        back *= 10;
    }
    Ok(events)
}

async fn read_from(
    broker: &dyn Broker,
    mut after: u64,
    of_task: Option<Tid>,
    until: Option<Timestamp>,
) -> Result<Vec<TaskEvent>> {
    let mut events = Vec::new();
    for _ in 0..SLICES {
        let slice = broker.events(Some(after), of_task, SLICE, Duration::ZERO).await?;
        let Some(last) = slice.last() else { break };
        after = last.id.as_u64();
        let is_end = slice.len() < SLICE as usize || until.is_some_and(|until| last.at >= until);
        events.extend(slice.into_iter().filter(|event| until.is_none_or(|until| event.at < until)));
        let surplus = events.len().saturating_sub(SHOWN);
        events.drain(..surplus);
        if is_end {
            break;
        }
    }
    Ok(events)
}

fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond()).unwrap_or(0)
}

fn parse_time(text: &str) -> Result<Timestamp> {
    text.parse().map_err(|_| {
        Problem::bad_request(format!("'{text}' is not a time"))
            .with_hint("write it as 2026-11-18T03:00:00Z")
    })
}
