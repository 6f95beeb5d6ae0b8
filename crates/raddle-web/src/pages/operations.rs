//! Operations on many tasks, and the audit trail.

use raddle_broker::queues;
use raddle_model::QueueName;

use super::{
    context::{Context, cut},
    model::{Block, Cell, Content, Empty, Screen, Table},
};
use crate::{
    audit::{self, AuditEntry},
    problem::{Problem, Result},
};

/// How many entries of the audit trail are shown.
const SHOWN: usize = 200;

pub(super) async fn list(cx: &Context) -> Result<Screen> {
    let empty = Empty::new(
        "No operation",
        "Retry, stop or delete many tasks at once: find them, select them, and choose an action.",
        "",
    );
    let table = Table::new(&[("Operation", ""), ("State", ""), ("Done", "num")]).empty(empty);
    Ok(Screen {
        title: "Operations".into(),
        section: "/operations",
        blocks: vec![Block::new("operations", "", Content::Table(table))],
        commands: vec![cx.curl("/operations")],
        is_live: true,
        ..Screen::default()
    })
}

pub(super) async fn show(_cx: &Context, id: &str) -> Result<Screen> {
    Err(Problem::not_found(format!("there is no operation {id}")))
}

pub(super) async fn audit(cx: &Context) -> Result<Screen> {
    let queue = QueueName::Free(audit::QUEUE.into());
    let stored = queues::peek(cx.broker(), &queue, 10_000).await?;
    let mut table = Table::new(&[
        ("When", "nowrap"),
        ("Who", ""),
        ("Request", ""),
        ("Selected", "p2"),
        ("Tasks", "num p2"),
        ("Outcome", "nowrap"),
        ("From", "p3 nowrap"),
    ])
    .empty(Empty::new(
        "No entry",
        "Every request that changes something is recorded here.",
        "",
    ));
    for message in stored.iter().rev().take(SHOWN) {
        let Ok(entry) = serde_json::from_str::<AuditEntry>(&message.body) else {
            continue;
        };
        let (icon, tone) = match entry.outcome.as_str() {
            "done" => ("completed", "ok"),
            "refused" => ("cancelled", "warn"),
            _ => ("failed", "bad"),
        };
        let who = match (entry.by, entry.role) {
            (Some(by), Some(role)) => format!("{by} ({role})"),
            _ => "not signed in".into(),
        };
        let cells = vec![
            Cell::time(entry.at, cx.now),
            Cell::text(who),
            Cell::Code(cut(&entry.action)),
            Cell::text(entry.selection.as_deref().map(cut).unwrap_or_default()),
            entry.count.map_or_else(Cell::none, Cell::num),
            Cell::badge(format!("{} {}", entry.outcome, entry.status), icon, tone),
            Cell::soft(entry.from.unwrap_or_default()),
        ];
        table.push(format!("au{}", message.id), "entry", cells);
    }
    Ok(Screen {
        title: "Audit".into(),
        section: "/audit",
        subtitle: vec![Cell::soft(
            "Every request that changes something, newest first",
        )],
        blocks: vec![Block::new("audit", "", Content::Table(table))],
        commands: vec![
            format!("raddle queue peek {}", audit::QUEUE),
            cx.curl("/audit"),
        ],
        is_live: true,
        ..Screen::default()
    })
}
