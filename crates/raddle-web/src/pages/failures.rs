//! Failures by cause: what failed in the same way, since when, and how often.

use raddle_model::TaskQuery;
use raddle_view::failures::{FailureGroup, FailureList};

use super::{
    charts::sparkline,
    context::{Context, cut, encode},
    model::{Action, Block, Cell, Content, Empty, Screen, Table, number},
    search,
};
use crate::{auth::Right, problem::Result};

/// How many causes are shown.
const SHOWN: usize = 50;
/// The most tasks of a cause that one form submits again.
const MAX_RETRIED: usize = 500;
/// The steps of the line that shows when the tasks of a cause failed.
const STEPS: usize = 24;

pub(super) async fn show(cx: &Context) -> Result<Screen> {
    let text = cx.param("q").unwrap_or_default();
    let query: TaskQuery = search::parse(text)?;
    let mut reader = cx.state.failures.lock().await;
    let mut list = reader.read(cx.broker(), &query).await?;
    drop(reader);
    if !cx.caller.may(Right::SeeData) {
        for group in &mut list.items {
            group.line.clear();
            group.sample_line.clear();
        }
    }
    let mut table = Table::new(&[
        ("Cause", ""),
        ("Tasks", "num"),
        ("Trend", "p2"),
        ("First", "num nowrap p3"),
        ("Last", "num nowrap p2"),
        ("Again", "nowrap num p2"),
    ])
    .empty(Empty::new(
        "Nothing has failed",
        "Tasks that fail, time out or are killed are grouped here by their cause.",
        "",
    ));
    for (n, group) in list.items.iter().take(SHOWN).enumerate() {
        // Viewers see no line, so that groups of one name and exit are told apart by their place.
        let line = match group.line.as_str() {
            "" => n.to_string(),
            line => line.to_owned(),
        };
        let cells = vec![
            cause(cx, group),
            Cell::Link {
                href: cx.tasks_url(&format!(
                    "state:failed,timeout,killed name:{}",
                    quote(&group.name)
                )),
                text: number(group.count),
            },
            trend(group).map_or_else(Cell::none, Cell::Svg),
            Cell::time(group.first_seen, cx.now),
            Cell::time(group.last_seen, cx.now),
            retry(cx, group),
        ];
        table.push(
            format!("{}|{}|{line}", group.name, group.exit),
            &group.name,
            cells,
        );
    }
    Ok(Screen {
        title: "Failures".into(),
        section: "/failures",
        subtitle: vec![Cell::soft(scope(&list))],
        blocks: vec![Block::new("failures", "", Content::Table(table))],
        commands: vec![
            "raddle failures".into(),
            cx.curl(&format!("/failures?q={}", encode(text))),
        ],
        is_live: true,
        ..Screen::default()
    })
}

fn scope(list: &FailureList) -> String {
    let n = number(list.looked_at);
    match list.complete {
        true => format!(
            "All {n} failed tasks that are kept, by name, exit and last line of their errors"
        ),
        false => {
            format!("The newest {n} failed tasks, by name, exit and last line of their errors")
        }
    }
}

fn cause(cx: &Context, group: &FailureGroup) -> Cell {
    let line = match group.sample_line.as_str() {
        "" => group.exit.clone(),
        line => format!("{} · {}", group.exit, cut(line)),
    };
    Cell::Named {
        href: cx.url(&format!("/tasks/{}", group.sample)),
        name: cut(&group.name),
        under: Some(line),
    }
}

/// When the tasks failed, from the first to the last.
fn trend(group: &FailureGroup) -> Option<super::charts::Svg> {
    let (first, last) = (
        group.tasks.last()?.unix_nanos(),
        group.tasks.first()?.unix_nanos(),
    );
    let length = last.saturating_sub(first).max(1);
    let mut steps = vec![0; STEPS];
    for tid in &group.tasks {
        let at = u128::from(tid.unix_nanos().saturating_sub(first)) * (STEPS as u128 - 1)
            / u128::from(length);
        steps[usize::try_from(at).unwrap_or(0).min(STEPS - 1)] += 1;
    }
    sparkline(&steps, "bad").filter(|_| group.count > 2)
}

/// Submits the dead letters of a cause again: those on this page, and none that come later.
fn retry(cx: &Context, group: &FailureGroup) -> Cell {
    if group.dead == 0 {
        return Cell::soft("none to retry");
    }
    let tids = group
        .tasks
        .iter()
        .take(MAX_RETRIED)
        .map(ToString::to_string);
    let tids: Vec<String> = tids.collect();
    Cell::Action(Action {
        fields: vec![("tids", tids.join(" "))],
        confirm: Some(format!(
            "Submit {} again?",
            raddle_client::text::count(group.dead, "task")
        )),
        ..cx.action(
            &format!("Retry {}", number(group.dead)),
            "/failures/act",
            Right::Retry,
        )
    })
}

/// A name as a value of the query language.
fn quote(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    match name.chars().all(is_plain) {
        true => name.into(),
        false => format!("{name:?}"),
    }
}
