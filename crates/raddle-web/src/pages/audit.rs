//! The audit trail.

use super::{
    context::{Context, cut},
    model::{Block, Cell, Content, Empty, Screen, Table},
};
use crate::{
    api::audit::newest_entries,
    audit::{self, AuditEntry},
    problem::Result,
};

/// How many entries of the audit trail are shown.
const SHOWN: usize = 200;

pub(super) async fn show(cx: &Context) -> Result<Screen> {
    let stored = newest_entries(&cx.state, SHOWN).await?;
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
    for message in &stored {
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
