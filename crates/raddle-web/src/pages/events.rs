//! Events: the end of the log of all tasks, or the log around a moment.

use jiff::Timestamp;
use raddle_model::{TaskEvent, Tid};
use raddle_view::events::{last_events, task_events};

use super::{
    context::{Context, cut},
    model::{Block, Cell, Content, Empty, Row, Screen, Table},
    search,
    task::event_badge,
};
use crate::problem::{Problem, Result};

/// How many events are shown.
const SHOWN: usize = 100;
pub(super) async fn show(cx: &Context) -> Result<Screen> {
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
    let mut block = Block::new("events", title, Content::Table(table));
    if let Some(first) = events.first() {
        block = block.tool(Cell::Link {
            href: cx.url(&format!(
                "/events?until={}{}",
                first.at,
                of_task.map(|tid| format!("&tid={tid}")).unwrap_or_default()
            )),
            text: "Earlier".into(),
        });
    }
    if until.is_some() {
        block = block.tool(Cell::Link {
            href: cx.url("/events"),
            text: "Now".into(),
        });
    }
    Ok(Screen {
        title: "Events".into(),
        section: "/events",
        subtitle: vec![match of_task {
            Some(tid) => Cell::Many(vec![Cell::soft("of the task"), cx.task(tid)]),
            None => {
                Cell::soft("Every change of every task, in the order in which the broker made it")
            }
        }],
        blocks: vec![block],
        commands: vec![
            "raddle queue peek raddle.tasks.log".into(),
            cx.curl("/events"),
        ],
        is_live: until.is_none(),
        ..Screen::default()
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
        event
            .detail
            .as_deref()
            .map_or_else(Cell::none, |detail| Cell::soft(cut(detail))),
    ];
    Row {
        id: format!("e-{}", event.id),
        key: event.id.to_string(),
        label: "event".into(),
        cells,
    }
}

/// The last events, of one task or of all.
async fn newest(
    cx: &Context,
    of_task: Option<Tid>,
    until: Option<Timestamp>,
) -> Result<Vec<TaskEvent>> {
    let Some(tid) = of_task else {
        return Ok(last_events(cx.broker(), until, SHOWN).await?.items);
    };
    let mut events = task_events(cx.broker(), tid).await?;
    events.retain(|event| until.is_none_or(|until| event.at < until));
    Ok(events.split_off(events.len().saturating_sub(SHOWN)))
}

fn parse_time(text: &str) -> Result<Timestamp> {
    text.parse().map_err(|_| {
        Problem::bad_request(format!("'{text}' is not a time"))
            .with_hint("write it as 2026-11-18T03:00:00Z")
    })
}
