//! The form for a new task.

use super::{
    context::Context,
    model::{Block, Body, Form, FormField, Page},
};
use crate::{auth::Right, problem::Result};

/// What the form holds at first.
const EXAMPLE: &str =
    "{\n  \"name\": \"hello\",\n  \"target\": {\"command\": [\"echo\", \"hello\"]}\n}";

pub(super) async fn new_task(cx: &Context) -> Result<Page> {
    let form = Form {
        href: cx.url("/new"),
        button: "Submit",
        missing: cx.missing(Right::Submit),
        fields: vec![FormField {
            name: "spec",
            label: "Spec, as JSON or TOML",
            value: cx.param("spec").unwrap_or(EXAMPLE).into(),
            help: "A worker runs this as its own user. 'raddle task spec' checks a spec without submitting it.",
            rows: 16,
            ..FormField::default()
        }],
    };
    Ok(Page {
        title: "New task".into(),
        section: "/tasks",
        blocks: vec![Block::new("new", "", Body::Form(form))],
        commands: vec![
            "raddle submit -- echo hello".into(),
            "raddle submit --file spec.json".into(),
        ],
        ..Page::default()
    })
}
