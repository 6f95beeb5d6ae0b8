//! Queues of messages that programs write and read: how many there are, and what is in them.

use jiff::Timestamp;
use raddle_broker::queues;

use super::{
    context::{Context, shell},
    model::{Block, Cell, Content, Empty, Form, FormField, Screen, Table, bytes, id_of},
    output,
};
use crate::{api::messages::resolve_queue, auth::Right, problem::Result};

/// How many messages are shown.
const SHOWN: u32 = 50;

pub(super) async fn list(cx: &Context) -> Result<Screen> {
    let counts = queues::list_counts(cx.broker(), None).await?;
    let mut table = Table::new(&[("Queue", ""), ("Messages", "num")]).empty(Empty::new(
        "No message waits",
        "Programs write messages to queues that they name. Write one from a terminal:",
        "raddle queue write orders '{\"id\": 1}'",
    ));
    for count in counts.iter().filter(|count| count.messages > 0) {
        let name = count.queue.to_string();
        let link = Cell::Named {
            href: cx.url_of("/messages", &name),
            name: name.clone(),
            under: None,
        };
        table.push(&name, &name, vec![link, Cell::num(count.messages)]);
    }
    Ok(Screen {
        title: "Messages".into(),
        section: "/messages",
        blocks: vec![Block::new("messages", "", Content::Table(table))],
        commands: vec!["raddle queue list".into(), cx.curl("/messages")],
        is_live: true,
        ..Screen::default()
    })
}

pub(super) async fn show(cx: &Context, name: &str) -> Result<Screen> {
    let queue = resolve_queue(&cx.state, &cx.caller, name).await?;
    let messages = queues::peek(cx.broker(), &queue, SHOWN).await?;
    let mut table = Table::new(&[
        ("Written", "nowrap"),
        ("Message", ""),
        ("Size", "num nowrap p2"),
    ])
    .empty(Empty::new(
        "No message",
        "It has been read, or none was written. Write one from a terminal:",
        &format!("raddle queue write {} 'hello'", shell(name)),
    ));
    for message in &messages {
        let at = Timestamp::from_nanosecond(message.id.unix_nanos().into()).unwrap_or_default();
        let cells = vec![
            Cell::time(at, cx.now),
            Cell::Code(output::shorten(&super::context::cut(&message.body))),
            Cell::text(bytes(message.body.len() as u64)),
        ];
        table.push(format!("m{}", message.id), "message", cells);
    }
    let form = |verb: &str, button, label, field: &'static str, value: &str, help, rows| {
        let form = Form {
            href: cx.url("/messages/act"),
            button,
            missing: cx.missing(Right::Messages),
            fields: vec![
                FormField {
                    name: "queue",
                    label: "Queue",
                    value: name.into(),
                    is_required: true,
                    ..FormField::default()
                },
                FormField {
                    name: field,
                    label,
                    value: value.into(),
                    help,
                    rows,
                    is_required: rows == 0,
                    ..FormField::default()
                },
            ],
        };
        Block::new(id_of(verb), button, Content::Form(form)).width("half")
    };
    Ok(Screen {
        title: name.into(),
        section: "/messages",
        subtitle: vec![Cell::soft("Queue of messages, oldest first")],
        blocks: vec![
            Block::new("messages", "", Content::Table(table)),
            form("write", "Write a message", "Message", "body", "", "", 4),
            form(
                "move",
                "Move messages",
                "To the queue",
                "to",
                "",
                "All messages go to its end, in one transaction",
                0,
            ),
        ],
        commands: vec![
            format!("raddle queue peek {}", shell(name)),
            cx.curl(&format!("/messages/{name}")),
        ],
        is_live: true,
        ..Screen::default()
    })
}
