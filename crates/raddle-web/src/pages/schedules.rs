//! Schedules: what runs again and again, when next, and whether anything fires it.

use raddle_broker::ScheduleView;
use raddle_client::{schedule::zone, text};
use raddle_view::schedule::{ScheduleDetail, is_fired};

use super::{
    context::{Context, shell},
    model::{Action, Block, Cell, Content, Empty, Notice, Screen, Table},
    output,
};
use crate::{
    auth::Right,
    problem::{Problem, Result},
};

/// How many due times are shown.
const UPCOMING: usize = 5;

pub(super) async fn list(cx: &Context) -> Result<Screen> {
    let schedules = cx.broker().schedules(None).await?;
    let mut table = Table::new(&[
        ("Schedule", ""),
        ("State", "nowrap"),
        ("When", ""),
        ("Next", "num nowrap"),
        ("Last", "num nowrap p2"),
        ("Fired", "num p2"),
        ("Missed", "num p3"),
    ])
    .empty(Empty::new(
        "No schedule",
        "A schedule submits a task again and again. Make one from a terminal:",
        "raddle schedule add nightly --cron '0 3 * * *' -- /usr/local/bin/backup",
    ));
    for view in &schedules {
        let entry = &view.entry;
        let name = &entry.schedule.name;
        let cells = vec![
            Cell::Named {
                href: cx.url_of("/schedules", name),
                name: name.clone(),
                under: None,
            },
            state(view),
            Cell::text(in_words(view)),
            Cell::time_or_none(entry.due(), cx.now),
            Cell::time_or_none(entry.last, cx.now),
            Cell::num(entry.fired),
            match entry.missed {
                0 => Cell::num(0),
                missed => Cell::badge(missed.to_string(), "warn", "warn"),
            },
        ];
        table.push(name, name, cells);
    }
    let mut blocks = Vec::new();
    blocks.extend(unfired(cx, &schedules).await?);
    blocks.push(Block::new("schedules", "", Content::Table(table)));
    Ok(Screen {
        title: "Schedules".into(),
        section: "/schedules",
        blocks,
        commands: vec!["raddle schedule list".into(), cx.curl("/schedules")],
        is_live: true,
        ..Screen::default()
    })
}

async fn unfired(cx: &Context, schedules: &[ScheduleView]) -> Result<Option<Block>> {
    let waits = schedules.iter().any(|view| view.entry.due().is_some());
    if !waits || is_fired(cx.broker()).await.map_err(problem)? {
        return Ok(None);
    }
    let notice = Notice {
        tone: "warn",
        text: "No live worker fires schedules, so nothing is submitted.".into(),
        hint: Some("start one with 'raddle worker start'".into()),
    };
    Ok(Some(Block::new(
        "unfired",
        "",
        Content::Notices(vec![notice]),
    )))
}

fn state(view: &ScheduleView) -> Cell {
    match (view.entry.paused, view.entry.next) {
        (true, _) => Cell::badge("paused", "paused", "off"),
        (_, None) => Cell::badge("over", "completed", "wait"),
        _ => Cell::badge("on", "running", "ok"),
    }
}

fn in_words(view: &ScheduleView) -> String {
    let schedule = &view.entry.schedule;
    match (&schedule.every, &schedule.cron) {
        (Some(every), _) => format!("every {every}"),
        (_, Some(cron)) => format!("{} ({})", cron.as_str(), schedule.zone()),
        _ => "once".into(),
    }
}

fn problem(error: raddle_client::schedule::Error) -> Problem {
    match error {
        raddle_client::schedule::Error::Absent(_) => Problem::not_found(error.to_string()),
        raddle_client::schedule::Error::Broker(error) => error.into(),
        error => Problem::new(axum::http::StatusCode::CONFLICT, error.to_string()),
    }
}

pub(super) async fn show(cx: &Context, name: &str) -> Result<Screen> {
    let detail = ScheduleDetail::read(cx.broker(), name, UPCOMING)
        .await
        .map_err(problem)?;
    let view = &detail.view;
    let entry = &view.entry;
    let schedule = &entry.schedule;
    let mut fields = vec![
        ("State", state(view)),
        ("When", Cell::text(in_words(view))),
        ("Next", Cell::time_or_none(entry.due(), cx.now)),
        ("Last", Cell::time_or_none(entry.last, cx.now)),
        ("Fired", Cell::text(text::count(entry.fired, "time"))),
        ("Missed", Cell::text(text::count(entry.missed, "time"))),
        ("If missed", Cell::text(schedule.missed.as_str())),
    ];
    if let Some(owner) = &entry.owner {
        fields.push(("Managed by", Cell::text(owner)));
    }
    if let Some(tid) = view.task {
        let state = detail
            .task_state
            .map_or_else(|| Cell::soft("its record is gone"), Cell::state);
        fields.push(("Last task", Cell::Many(vec![state, cx.task(tid)])));
    }
    let local = zone(schedule.zone());
    let mut due = Table::new(&[
        ("Due", "nowrap"),
        ("There", "nowrap"),
        ("From now", "num nowrap"),
    ])
    .empty(Empty::new(
        "Nothing is due",
        "The schedule is paused or over.",
        "",
    ));
    for at in &detail.upcoming {
        let there = local.clone().map_or_else(String::new, |zone| {
            at.to_zoned(zone).strftime("%a %H:%M %Z").to_string()
        });
        let cells = vec![
            Cell::text(text::time(*at)),
            Cell::soft(there),
            Cell::time(*at, cx.now),
        ];
        due.push(format!("d{at}"), "due time", cells);
    }
    let spec = match cx.caller.may(Right::SeeData) {
        true => serde_json::to_string_pretty(&schedule.task).unwrap_or_default(),
        false => "(needs the right see-data)".into(),
    };
    let spec = Content::Pre {
        text: output::shorten(&spec),
        label: "The task as JSON".into(),
    };
    let mut blocks = Vec::new();
    blocks.extend(unfired(cx, std::slice::from_ref(view)).await?);
    blocks.push(Block::new("facts", "Facts", Content::Fields(fields)).width("half"));
    blocks.push(Block::new("due", "Next times", Content::Table(due)).width("half"));
    blocks.push(Block::new("spec", "Task", spec));
    Ok(Screen {
        title: name.into(),
        section: "/schedules",
        subtitle: vec![state(view), Cell::text(in_words(view))],
        actions: actions(cx, view),
        blocks,
        commands: vec![
            format!("raddle schedule show {}", shell(name)),
            cx.curl(&format!("/schedules/{name}")),
        ],
        is_live: true,
        ..Screen::default()
    })
}

fn actions(cx: &Context, view: &ScheduleView) -> Vec<Action> {
    let pause = match view.entry.paused {
        true => ("resume", "Resume", Right::Control),
        false => ("pause", "Pause", Right::Control),
    };
    [
        ("run-now", "Run now", Right::Submit),
        pause,
        ("remove", "Remove", Right::Submit),
    ]
    .into_iter()
    .map(|(verb, label, right)| Action {
        fields: vec![
            ("action", verb.into()),
            ("name", view.entry.schedule.name.clone()),
        ],
        is_danger: verb == "remove",
        confirm: (verb == "remove").then(|| "Remove this schedule?".into()),
        ..cx.action(label, "/schedules/act", right)
    })
    .collect()
}
