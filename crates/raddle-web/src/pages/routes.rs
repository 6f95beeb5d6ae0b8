//! The routes of the pages, and the right that each needs.

use axum::routing::{MethodRouter, get, post};

use super::{actions, go, output, show};
use crate::{
    auth::Right::{self, Control, Delete, Messages, Retry, Scale, See, SeeData, Submit},
    route::{Access, Route, Verb},
    state::AppState,
};

const fn screen(path: &'static str, right: Right, summary: &'static str) -> Route {
    Route::page(Verb::Get, path, Access::Needs(right), summary, || get(show))
}

const fn action(
    path: &'static str,
    access: Access,
    summary: &'static str,
    handler: fn() -> MethodRouter<AppState>,
) -> Route {
    Route::page(Verb::Post, path, access, summary, handler)
}

/// The routes of the pages.
pub(crate) const ROUTES: &[Route] = &[
    screen("/", See, "Overview"),
    screen("/tasks", See, "Tasks"),
    screen("/tasks/{tid}", See, "A task"),
    Route::page(
        Verb::Get,
        "/tasks/{tid}/output/{attempt}/{stream}",
        Access::Needs(SeeData),
        "Output of an attempt, as a file",
        || get(output::download),
    ),
    screen("/failures", See, "Failures by cause"),
    screen("/queues", See, "Queues of tasks"),
    screen("/queues/{name}", See, "A queue of tasks"),
    screen("/workers", See, "Workers"),
    screen("/workers/{tid}", See, "A worker"),
    screen("/pools", See, "Pools of call workers"),
    screen("/pools/{name}", See, "A pool"),
    screen("/groups", See, "Groups"),
    screen("/groups/{slug}", See, "A group"),
    screen("/schedules", See, "Schedules"),
    screen("/schedules/{name}", See, "A schedule"),
    screen("/messages", SeeData, "Queues of messages"),
    screen("/messages/{queue}", SeeData, "Messages"),
    screen("/events", See, "Events"),
    screen("/audit", Right::Admin, "The audit trail"),
    screen("/system", See, "Checks of the broker and of this machine"),
    screen("/new", Submit, "A new task"),
    screen("/help", See, "Keys, and the query language"),
    Route::page(
        Verb::Get,
        "/go",
        Access::Needs(See),
        "Leads from an id or words to a page",
        || get(go),
    ),
    // The action in the form decides which right it needs.
    action(
        "/tasks/act",
        Access::SignedIn,
        "Acts on selected tasks",
        || post(actions::on_tasks),
    ),
    action(
        "/workers/act",
        Access::Needs(Control),
        "Acts on a worker",
        || post(actions::on_worker),
    ),
    action(
        "/queues/act",
        Access::Needs(Control),
        "Pauses or resumes a queue",
        || post(actions::on_queue),
    ),
    action(
        "/groups/act",
        Access::Needs(Scale),
        "Turns a group on or off, or scales it",
        || post(actions::on_group),
    ),
    action(
        "/schedules/act",
        Access::SignedIn,
        "Acts on a schedule",
        || post(actions::on_schedule),
    ),
    action(
        "/messages/act",
        Access::Needs(Messages),
        "Writes, moves or removes messages",
        || post(actions::on_messages),
    ),
    action(
        "/failures/act",
        Access::Needs(Retry),
        "Retries the tasks of a cause",
        || post(actions::on_failures),
    ),
    action(
        "/purge",
        Access::Needs(Delete),
        "Deletes finished tasks past their retention",
        || post(actions::purge),
    ),
    action("/new", Access::Needs(Submit), "Submits a task", || {
        post(actions::submit)
    }),
];
