//! The form for a new task.

use super::{
    context::Context,
    model::{Block, Content, Form, FormField, Screen},
};
use crate::{auth::Right, problem::Result};

/// The spec that the form shows at first.
const EXAMPLE: &str =
    "{\n  \"name\": \"hello\",\n  \"target\": {\"command\": [\"echo\", \"hello\"]}\n}";

pub(super) async fn new_task(cx: &Context) -> Result<Screen> {
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
    Ok(Screen {
        title: "New task".into(),
        section: "/tasks",
        blocks: vec![Block::new("new", "", Content::Form(form))],
        commands: vec![
            "raddle submit -- echo hello".into(),
            "raddle submit --file spec.json".into(),
        ],
        ..Screen::default()
    })
}
