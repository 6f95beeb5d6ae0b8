//! The pages of the dashboard, rendered on the server. They can be read and acted on without
//! script; the script adds live changes, keys and a memory of selections.
//!
//! A page is a value ([`model::Screen`]) that a function makes from what `raddle-view` and the broker
//! say. One handler serves all screens, and live streams call the same functions, so what a patch
//! shows is what a reload would.

mod actions;
mod assets;
mod audit;
pub(crate) mod charts;
pub(crate) mod context;
mod events;
mod failures;
mod forms;
mod frame;
mod groups;
mod help;
mod messages;
pub(crate) mod model;
mod output;
mod overview;
#[cfg(feature = "pool")]
mod pools;
mod queues;
mod routes;
mod schedules;
mod search;
mod system;
mod task;
mod tasks;
mod workers;

use askama::Template as _;
use axum::{
    extract::{Extension, State},
    http::{HeaderMap, StatusCode, Uri, request::Parts},
    response::{IntoResponse, Redirect, Response},
};

use self::{context::Context, model::Screen};
use crate::{
    auth::{Caller, Right},
    problem::{Problem, Result},
    route::{Access, Route, Verb},
    state::AppState,
};

pub(crate) use self::{assets::router as assets, routes::ROUTES};

/// Makes the screen that a path names, if the caller has the right that its route asks for: live
/// streams come here without passing the route.
pub(crate) async fn screen(cx: &Context) -> Result<Screen> {
    let segments: Vec<&str> = cx.segments.iter().map(String::as_str).collect();
    let right = right_to_see(&segments).ok_or_else(no_such_page)?;
    cx.caller.require(right)?;
    match segments.as_slice() {
        [] => overview::show(cx).await,
        ["tasks"] => tasks::show(cx).await,
        ["tasks", tid] => task::show(cx, tid).await,
        ["failures"] => failures::show(cx).await,
        ["queues"] => queues::list(cx).await,
        ["queues", name] => queues::show(cx, name).await,
        ["workers"] => workers::list(cx).await,
        ["workers", tid] => workers::show(cx, tid).await,
        #[cfg(feature = "pool")]
        ["pools"] => pools::list(cx).await,
        #[cfg(feature = "pool")]
        ["pools", name] => pools::show(cx, name).await,
        ["groups"] => groups::list(cx).await,
        ["groups", slug] => groups::show(cx, slug).await,
        ["schedules"] => schedules::list(cx).await,
        ["schedules", name] => schedules::show(cx, name).await,
        ["messages"] => messages::list(cx).await,
        ["messages", queue] => messages::show(cx, queue).await,
        ["events"] => events::show(cx).await,
        ["audit"] => audit::show(cx).await,
        ["system"] => system::show(cx).await,
        ["new"] => forms::new_task(cx).await,
        ["help"] => Ok(help::show(cx)),
        _ => Err(no_such_page()),
    }
}

fn no_such_page() -> Problem {
    Problem::not_found("there is no such page")
}

/// The right that the table of routes asks for a screen.
fn right_to_see(segments: &[&str]) -> Option<Right> {
    let is_path_of = |route: &&Route| {
        let mut parts = route.path.split('/').filter(|part| !part.is_empty());
        route.verb == Verb::Get
            && segments.iter().all(|it| {
                parts
                    .next()
                    .is_some_and(|part| part == *it || part.starts_with('{'))
            })
            && parts.next().is_none()
    };
    match ROUTES.iter().find(is_path_of)?.access {
        Access::Needs(right) => Some(right),
        Access::Open | Access::SignedIn => None,
    }
}

/// The path and the query string of a request. Over HTTP/2 the URI names the host, too.
pub(crate) fn path_of(uri: &Uri) -> &str {
    uri.path_and_query().map_or("/", |path| path.as_str())
}

/// How many tasks of a list are newer than those on the screen, if the screen is a list.
pub(crate) async fn count_newer(cx: &Context) -> Result<Option<usize>> {
    match (cx.segments.as_slice(), cx.rows(), cx.param("before")) {
        ([path], Some(rows), None) if path == "tasks" => {
            let query = search::parse(cx.param("q").unwrap_or_default())?;
            let newest = rows.into_iter().max();
            Ok(Some(search::count_newer(cx, &query, newest).await?))
        }
        _ => Ok(None),
    }
}

/// The counts of the navigation as HTML, with the ids of their elements.
pub(crate) async fn navigation_counts(cx: &Context) -> Result<Vec<(String, String)>> {
    let groups = frame::navigation(cx).await?;
    let counts = groups.iter().flatten().map(|item| {
        let html = item.render().unwrap_or_default();
        (format!("n-{}", item.label), html)
    });
    Ok(counts.collect())
}

/// Answers a request for a screen.
async fn show(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response> {
    let cx = Context::new(state, caller, path_of(&uri))?;
    let page = screen(&cx).await?;
    frame::respond(&cx, &headers, &page).await
}

/// Leads from ten or nineteen digits, a name or a query to a page.
async fn go(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Response> {
    let cx = Context::new(state, caller, path_of(&uri))?;
    let to = cx.param("to").unwrap_or_default().trim().to_owned();
    let path = match to.parse() {
        Ok(arg) => format!("/tasks/{}", search::resolve(&cx, arg).await?),
        Err(_) if to.is_empty() => "/".into(),
        Err(_) => format!("/tasks?q={}", context::encode(&to)),
    };
    Ok(Redirect::to(&cx.url(&path)).into_response())
}

/// Shows a problem as a page. Those who are not signed in are sent to the sign-in page, and from
/// there back.
pub(crate) fn problem_page(state: &AppState, request: &Parts, problem: &Problem) -> Response {
    if problem.status == StatusCode::UNAUTHORIZED {
        let to = context::encode(path_of(&request.uri));
        return Redirect::to(&state.url(&format!("/login?to={to}"))).into_response();
    }
    frame::problem(state, &request.headers, problem)
}

/// The sign-in page.
pub(crate) fn sign_in_page(state: &AppState, to: &str, problem: Option<&Problem>) -> Response {
    frame::sign_in(state, to, problem)
}
