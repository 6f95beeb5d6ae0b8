//! The frame around every screen: the navigation with counts, the query box, messages after an
//! action, and the pages outside of it for sign-in and problems.

use askama::{Template, filters::HtmlSafe};
use axum::{
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{CONTENT_TYPE, COOKIE, SET_COOKIE},
    },
    response::{IntoResponse, Response},
};
use raddle_model::TaskState;

use super::{
    assets::ASSETS,
    context::{Context, decode_text, encode},
    model::{Screen, number},
};
use crate::{
    auth::Right,
    problem::{Problem, Result},
    state::AppState,
};

/// The cookie with the message of the last action. It is shown once.
const FLASH: &str = "raddle_said";
/// The longest message that a cookie carries.
const MAX_FLASH: usize = 600;

#[derive(Template)]
#[template(path = "page.html")]
struct PageTemplate<'a> {
    frame: PageFrame<'a>,
    page: &'a Screen,
}

struct PageFrame<'a> {
    base: &'a str,
    theme: Option<&'static str>,
    style: &'a str,
    script: &'a str,
    worker: &'a str,
    icon: &'a str,
    query: &'a str,
    role: &'a str,
    broker: &'a str,
    /// The time of the server in milliseconds: the clock of the browser may be wrong.
    now: i64,
    nav: Vec<Vec<NavItem>>,
    flash: Option<Flash>,
}

/// An entry of the navigation, with a count that changes.
#[derive(Template)]
#[template(path = "nav_count.html")]
pub(super) struct NavItem {
    pub(super) path: &'static str,
    pub(super) label: &'static str,
    pub(super) count: String,
    pub(super) is_bad: bool,
}

impl HtmlSafe for NavItem {}

struct Flash {
    text: String,
    is_bad: bool,
}

#[derive(Template)]
#[template(path = "bare.html")]
struct BareTemplate<'a> {
    base: &'a str,
    theme: Option<&'static str>,
    style: &'a str,
    icon: &'a str,
    title: &'a str,
    text: &'a str,
    hint: Option<&'a str>,
    login: Option<&'a str>,
}

/// Puts a screen into its frame.
pub(super) async fn respond(cx: &Context, headers: &HeaderMap, page: &Screen) -> Result<Response> {
    let assets = &*ASSETS;
    let flash = cookie(headers, FLASH).and_then(|text| {
        let text = decode_text(text)?;
        let is_bad = text.starts_with('!');
        let text = text.trim_start_matches('!').to_owned();
        Some(Flash { text, is_bad })
    });
    let was_flashed = flash.is_some();
    let template = PageTemplate {
        frame: PageFrame {
            base: &cx.state.options.prefix,
            theme: theme(headers),
            style: &assets.style.path,
            script: &assets.script.path,
            worker: &assets.worker.path,
            icon: &assets.icon.path,
            query: cx.param("q").unwrap_or_default(),
            role: cx.caller.role.as_str(),
            broker: &cx.state.options.broker_url,
            now: cx.now.as_millisecond(),
            nav: navigation(cx).await?,
            flash,
        },
        page,
    };
    let mut response = html(StatusCode::OK, template.render());
    if was_flashed {
        set_cookie(&mut response, &flash_cookie(cx.state.url("/"), "", 0));
    }
    Ok(response)
}

/// The entries of the navigation, in groups.
pub(super) async fn navigation(cx: &Context) -> Result<Vec<Vec<NavItem>>> {
    let item = |path, label| NavItem {
        path,
        label,
        count: String::new(),
        is_bad: false,
    };
    let count = |n: u64| if n > 0 { number(n) } else { String::new() };
    let summary = cx.broker().summary().await?;
    let workers = cx.broker().workers().await?.len() as u64;
    let of = |state| summary.states.get(&state).copied().unwrap_or_default();
    let running = of(TaskState::Running) + of(TaskState::Spawning);
    let mut data = vec![item("/events", "Events")];
    if cx.caller.may(Right::SeeData) {
        data.insert(0, item("/messages", "Messages"));
    }
    let mut system = Vec::new();
    if cx.caller.may(Right::Admin) {
        system.push(item("/audit", "Audit"));
    }
    system.push(item("/system", "System"));
    Ok(vec![
        vec![
            item("/", "Overview"),
            NavItem {
                count: count(running),
                ..item("/tasks", "Tasks")
            },
            NavItem {
                count: count(summary.dead),
                is_bad: true,
                ..item("/failures", "Failures")
            },
            NavItem {
                count: count(summary.ready.values().sum()),
                ..item("/queues", "Queues")
            },
            item("/schedules", "Schedules"),
        ],
        vec![
            NavItem {
                count: count(workers),
                ..item("/workers", "Workers")
            },
            item("/groups", "Groups"),
            item("/pools", "Pools"),
        ],
        data,
        system,
    ])
}

/// A problem as a page.
pub(super) fn problem(state: &AppState, headers: &HeaderMap, problem: &Problem) -> Response {
    let title = match problem.status {
        StatusCode::NOT_FOUND => "Not found",
        StatusCode::FORBIDDEN => "Not allowed",
        StatusCode::SERVICE_UNAVAILABLE => "The broker does not answer",
        StatusCode::BAD_REQUEST => "That makes no sense here",
        _ => "It did not work",
    };
    let place = problem
        .position
        .map(|position| format!(" (at character {})", position + 1));
    let text = format!("{}{}", problem.detail, place.unwrap_or_default());
    bare(
        state,
        theme(headers),
        problem.status,
        title,
        &text,
        problem.hint.as_deref(),
        None,
    )
}

/// The sign-in page.
pub(super) fn sign_in(state: &AppState, to: &str, problem: Option<&Problem>) -> Response {
    let status = problem.map_or(StatusCode::OK, |problem| problem.status);
    let text = problem.map_or("", |problem| &problem.detail);
    let hint = problem.and_then(|problem| problem.hint.as_deref());
    bare(state, None, status, "Sign in", text, hint, Some(to))
}

fn bare(
    state: &AppState,
    theme: Option<&'static str>,
    status: StatusCode,
    title: &str,
    text: &str,
    hint: Option<&str>,
    login: Option<&str>,
) -> Response {
    let assets = &*ASSETS;
    let template = BareTemplate {
        base: &state.options.prefix,
        theme,
        style: &assets.style.path,
        icon: &assets.icon.path,
        title,
        text,
        hint,
        login,
    };
    html(status, template.render())
}

/// Leads to a page after an action, which shows there what was done. `said` begins with `!` if it
/// failed.
pub(super) fn see_other(cx: &Context, to: &str, said: &str) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    if let Ok(to) = HeaderValue::from_str(&cx.url(to)) {
        response.headers_mut().insert("location", to);
    }
    let end = said.floor_char_boundary(MAX_FLASH);
    set_cookie(
        &mut response,
        &flash_cookie(cx.state.url("/"), &encode(&said[..end]), 60),
    );
    response
}

fn flash_cookie(path: String, value: &str, seconds: u32) -> String {
    format!("{FLASH}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict")
}

fn set_cookie(response: &mut Response, cookie: &str) {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(SET_COOKIE, value);
    }
}

fn theme(headers: &HeaderMap) -> Option<&'static str> {
    ["light", "dark"]
        .into_iter()
        .find(|theme| cookie(headers, "raddle_theme") == Some(theme))
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers
        .get_all(COOKIE)
        .into_iter()
        .filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(';'))
        .find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

fn html(status: StatusCode, rendered: askama::Result<String>) -> Response {
    match rendered {
        Ok(text) => {
            let kind = HeaderValue::from_static("text/html; charset=utf-8");
            (status, [(CONTENT_TYPE, kind)], text).into_response()
        }
        // Templates only fail when a value in them does; ours are texts and numbers.
        Err(error) => {
            tracing::error!(%error, "cannot render a page");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
