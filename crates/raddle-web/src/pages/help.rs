//! Help: the query language, and the keys.

use super::{
    context::Context,
    model::{Block, Cell, Content, Screen, Table},
};

const FIELDS: [(&str, &str); 12] = [
    (
        "state:failed,timeout",
        "one of these states: created, spawning, running, completed, failed, timeout, cancelled, killed",
    ),
    (
        "name:frame-*",
        "the name; * is any text. A word alone is a part of the name",
    ),
    ("queue:mail", "the queue"),
    ("kind:render", "the kind"),
    ("batch:july", "the batch"),
    (
        "worker:7993411584",
        "the worker that runs it, or ran it last",
    ),
    ("cap:gpu", "a capability that it needs"),
    ("dead:yes  paused:no", "dead letters; paused tasks"),
    ("tries:>2  exit:3", "how often it was tried; the exit code"),
    (
        "took:>30s  waited:>5m",
        "how long the last attempt ran; how long the task waited",
    ),
    ("since:-1h  until:2026-11-18T03:00Z", "when it was created"),
    (
        "-queue:mail",
        "not this. Terms are joined by and, values with commas by or",
    ),
];

const KEYS: [(&str, &str); 9] = [
    ("/", "go to the query box"),
    ("j  k", "next row, previous row"),
    ("Enter", "open the row"),
    ("x", "select the row"),
    ("Esc", "leave the box, clear the selection"),
    ("Space", "hold live changes, and go on"),
    (
        "g then o t f q w e",
        "go to Overview, Tasks, Failures, Queues, Workers, Events",
    ),
    ("t", "light, dark or as the system"),
    ("?", "this page"),
];

pub(super) fn show(cx: &Context) -> Screen {
    let table = |id, title, rows: &[(&str, &str)]| {
        let mut table = Table::new(&[("Type", "nowrap"), ("Meaning", "")]);
        for (keys, meaning) in rows {
            table.push(
                *keys,
                keys,
                vec![Cell::Code((*keys).into()), Cell::text(*meaning)],
            );
        }
        Block::new(id, title, Content::Table(table)).width("half")
    };
    let examples = [
        "state:failed since:-1h",
        "queue:mail -name:test*",
        "state:running took:>10m",
        "dead:yes",
    ];
    let links = examples
        .into_iter()
        .map(|query| Cell::Link {
            href: cx.tasks_url(query),
            text: query.into(),
        })
        .collect();
    Screen {
        title: "Help".into(),
        section: "/help",
        blocks: vec![
            table("query", "Find tasks", &FIELDS),
            table("keys", "Keys", &KEYS),
            Block::new("examples", "Examples", Content::Lines(links)).width("half"),
        ],
        commands: vec![
            "raddle task list 'state:failed since:-1h'".into(),
            cx.curl("/tasks?q=state%3Afailed"),
        ],
        ..Screen::default()
    }
}
