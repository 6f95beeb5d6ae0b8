//! System: the broker, its checks, and what is connected to it.

use raddle_client::text::count;

use super::{
    context::Context,
    model::{Action, Badge, Block, Cell, Content, Screen, Table},
};
use crate::{auth::Right, problem::Result};

pub(super) async fn show(cx: &Context) -> Result<Screen> {
    let health = cx.broker().health().await?;
    let summary = cx.broker().summary().await?;
    let workers = cx.broker().workers().await?;
    let mut checks = Table::new(&[("Finding", "nowrap"), ("Check", "nowrap"), ("Result", "")]);
    for check in &health.checks {
        let badge = match check.ok {
            true => Badge {
                word: "fine".into(),
                icon: "completed",
                tone: "ok",
            },
            false => Badge {
                word: "look".into(),
                icon: "warn",
                tone: "warn",
            },
        };
        let mut result = vec![Cell::text(&check.detail)];
        if let Some(fix) = &check.fix {
            result.push(Cell::Under(fix.clone()));
        }
        checks.push(
            &check.name,
            &check.name,
            vec![
                Cell::State(badge),
                Cell::text(&check.name),
                Cell::Many(result),
            ],
        );
    }
    let hosts: std::collections::BTreeSet<String> = workers
        .iter()
        .map(|worker| worker.info.host.clone())
        .collect();
    let fields = vec![
        ("Engine", Cell::text(&health.engine)),
        ("Location", Cell::Code(cx.state.options.broker_url.clone())),
        ("Durability", Cell::text(&health.durability)),
        (
            "Version of this page",
            Cell::text(env!("CARGO_PKG_VERSION")),
        ),
        ("Workers", Cell::text(count(workers.len() as u64, "worker"))),
        ("Hosts", Cell::Tags(hosts.into_iter().collect())),
        ("Reclaimed tasks", Cell::num(summary.reclaims)),
        ("Stale writes refused", Cell::num(summary.stale_writes)),
        ("Dead letters", Cell::num(summary.dead)),
    ];
    Ok(Screen {
        title: "System".into(),
        section: "/system",
        actions: vec![Action {
            confirm: Some("Delete finished tasks that are past their retention?".into()),
            ..cx.action("Purge", "/purge", Right::Delete)
        }],
        blocks: vec![
            Block::new("facts", "Broker", Content::Fields(fields)).width("half"),
            Block::new("checks", "Checks", Content::Table(checks))
                .width("half")
                .note(Cell::soft("'raddle doctor' also checks this machine")),
        ],
        commands: vec!["raddle doctor".into(), cx.curl("/doctor")],
        is_live: true,
        ..Screen::default()
    })
}
