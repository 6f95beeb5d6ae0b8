//! Pools of workers that are called: those of this machine, and what their workers report.

use raddle_view::pool::{FoundWorkers, local_pools, query::query_all};

use super::{
    context::{Context, shell},
    model::{Block, Cell, Content, Empty, Screen, Table, number},
};
use crate::problem::{Problem, Result};

pub(super) async fn list(cx: &Context) -> Result<Screen> {
    let pools = find()?;
    let mut table =
        Table::new(&[("Pool", ""), ("Workers", "num"), ("Tags", "p2")]).empty(Empty::new(
            "No pool on this machine",
            "A pool answers calls without a queue. Start one from a terminal:",
            "raddle pool serve",
        ));
    for pool in &pools {
        let link = Cell::Named {
            href: cx.url_of("/pools", &pool.name),
            name: pool.name.clone(),
            under: None,
        };
        let tags = pool.tags().into_iter().map(str::to_owned).collect();
        table.push(
            &pool.name,
            &pool.name,
            vec![link, Cell::num(pool.workers.len() as u64), Cell::Tags(tags)],
        );
    }
    Ok(Screen {
        title: "Pools".into(),
        section: "/pools",
        subtitle: vec![Cell::soft(
            "Workers of this machine that are called directly",
        )],
        blocks: vec![Block::new("pools", "", Content::Table(table))],
        commands: vec!["raddle pool list".into(), cx.curl("/pools")],
        is_live: true,
        ..Screen::default()
    })
}

fn find() -> Result<Vec<FoundWorkers>> {
    local_pools().map_err(|error| Problem::not_found(error.to_string()))
}

pub(super) async fn show(cx: &Context, name: &str) -> Result<Screen> {
    let pools = find()?;
    let pool = pools.iter().find(|pool| pool.name == name).ok_or_else(|| {
        Problem::not_found(format!(
            "no worker of the pool '{name}' runs on this machine"
        ))
    })?;
    let mut table = Table::new(&[
        ("Worker", ""),
        ("Status", "nowrap"),
        ("In flight", "num"),
        ("Taken", "num"),
        ("Up for", "num nowrap p2"),
        ("Address", "p2"),
        ("TLS", "p3"),
    ]);
    for queried in query_all(&pool.workers, None).await {
        let activity = queried.answer.as_ref().ok();
        let status = match (queried.status(), &queried.answer) {
            (word, Ok(activity)) if activity.is_stopping => Cell::badge(word, "spawning", "warn"),
            (word, Ok(_)) => Cell::badge(word, "running", "ok"),
            (word, Err(error)) => Cell::Many(vec![
                Cell::badge(word, "warn", "warn"),
                Cell::Under(error.to_string()),
            ]),
        };
        let n = |value: Option<u64>| value.map_or_else(Cell::none, |n| Cell::text(number(n)));
        let worker = &queried.worker;
        let cells = vec![
            Cell::Code(worker.uid.to_string()),
            status,
            n(activity.map(|activity| activity.in_flight)),
            n(activity.map(|activity| activity.taken)),
            Cell::took(activity.map(|activity| activity.uptime)),
            Cell::text(worker.address.to_string()),
            Cell::text(if worker.secure { "yes" } else { "no" }),
        ];
        let uid = worker.uid.to_string();
        table.push(&uid, &uid, cells);
    }
    Ok(Screen {
        title: name.into(),
        section: "/pools",
        subtitle: vec![Cell::soft("Pool of call workers")],
        blocks: vec![Block::new("workers", "Workers", Content::Table(table))],
        commands: vec![
            format!("raddle pool status {}", shell(name)),
            cx.curl(&format!("/pools/{name}")),
        ],
        is_live: true,
        ..Screen::default()
    })
}
