//! Groups: supervised replicas of processes, and whether they keep up.

use raddle_groups::GroupWorkerView;

use super::{
    context::{Context, shell},
    model::{Action, Block, Cell, Content, Empty, Form, FormField, Notice, Screen, Table},
};
use crate::{
    auth::Right,
    problem::{Problem, Result},
};

pub(super) async fn list(cx: &Context) -> Result<Screen> {
    let views = raddle_groups::list(cx.broker()).await?;
    let mut table = Table::new(&[
        ("Group worker", ""),
        ("State", "nowrap"),
        ("Replicas", "nowrap"),
        ("Busy", "num p2"),
        ("Waiting", "num"),
        ("Sources", "p3"),
        ("Process", "p2"),
    ])
    .empty(Empty::new(
        "No group",
        "A group keeps replicas of your programs running. Describe it in raddle.toml, then:",
        "raddle up",
    ));
    for view in &views {
        let cells = vec![
            Cell::Named {
                href: cx.url_of("/groups", &view.slug),
                name: view.slug.clone(),
                under: None,
            },
            state(view),
            replicas(view),
            Cell::num(view.busy),
            Cell::num(view.waiting),
            Cell::Tags(view.sources.clone()),
            Cell::text(&view.process),
        ];
        table.push(&view.slug, &view.slug, cells);
    }
    Ok(Screen {
        title: "Groups".into(),
        section: "/groups",
        blocks: vec![Block::new("groups", "", Content::Table(table))],
        commands: vec!["raddle group list".into(), cx.curl("/groups")],
        is_live: true,
        ..Screen::default()
    })
}

fn state(view: &GroupWorkerView) -> Cell {
    match (view.on, view.managers.is_empty()) {
        (false, _) => Cell::badge("off", "paused", "off"),
        (true, true) => Cell::badge("no manager", "warn", "warn"),
        (true, false) if view.live < view.replicas as usize => {
            Cell::badge("starting", "spawning", "warn")
        }
        (true, false) => Cell::badge("on", "running", "ok"),
    }
}

fn replicas(view: &GroupWorkerView) -> Cell {
    let text = format!("{} of {} live", view.live, view.replicas);
    Cell::bar(view.live as f64, view.replicas.into(), text)
}

pub(super) async fn show(cx: &Context, slug: &str) -> Result<Screen> {
    let views = raddle_groups::list(cx.broker()).await?;
    let view = views
        .iter()
        .find(|view| view.slug == slug)
        .ok_or_else(|| Problem::not_found(format!("there is no group worker '{slug}'")))?;
    let mut blocks = Vec::new();
    if view.managers.is_empty() && view.on {
        let notice = Notice {
            tone: "warn",
            text: "No live manager runs it.".into(),
            hint: Some("start its manager with 'raddle up'".into()),
        };
        blocks.push(Block::new("unmanaged", "", Content::Notices(vec![notice])));
    }
    let pids = view.pids.iter().map(ToString::to_string).collect();
    let managers = view
        .managers
        .iter()
        .map(|manager| Cell::Many(vec![Cell::text(&manager.name), cx.worker(manager.tid)]))
        .collect();
    let fields = vec![
        ("State", state(view)),
        ("Replicas", replicas(view)),
        ("Busy", Cell::num(view.busy)),
        ("Waiting", Cell::num(view.waiting)),
        ("Sources", Cell::Tags(view.sources.clone())),
        ("Process", Cell::text(&view.process)),
        ("Process ids", Cell::Tags(pids)),
        ("Managers", Cell::Many(managers)),
    ];
    blocks.push(Block::new("facts", "Facts", Content::Fields(fields)).width("half"));
    let form = Form {
        href: cx.url("/groups/act"),
        button: "Scale",
        missing: cx.missing(Right::Scale),
        fields: vec![
            FormField {
                name: "slug",
                label: "Group worker",
                value: slug.into(),
                is_required: true,
                ..FormField::default()
            },
            FormField {
                name: "replicas",
                label: "Replicas",
                value: view.replicas.to_string(),
                help: "How many processes serve it, from 0 on",
                is_required: true,
                ..FormField::default()
            },
        ],
    };
    blocks.push(Block::new("scale", "Scale", Content::Form(form)).width("half"));
    let (verb, label) = if view.on {
        ("off", "Turn off")
    } else {
        ("on", "Turn on")
    };
    Ok(Screen {
        title: slug.into(),
        section: "/groups",
        subtitle: vec![state(view), Cell::soft("Group worker")],
        actions: vec![Action {
            fields: vec![("action", verb.into()), ("slug", slug.into())],
            ..cx.action(label, "/groups/act", Right::Scale)
        }],
        blocks,
        commands: vec![
            format!("raddle group scale {} {}", shell(slug), view.replicas),
            cx.curl(&format!("/groups/{slug}")),
        ],
        is_live: true,
        ..Screen::default()
    })
}
