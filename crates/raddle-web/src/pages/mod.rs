//! The pages of the dashboard, rendered on the server.

use axum::{
    Router,
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Redirect, Response},
};

use crate::{problem::Problem, route::Route, state::AppState};

/// The routes of the pages.
pub(crate) const ROUTES: &[Route] = &[];

/// Files of the pages, which everyone may read: they hold nothing of the broker.
pub(crate) fn assets() -> Router<AppState> {
    Router::new()
}

/// Shows a problem as a page. Those who are not signed in are sent to the sign-in page, and from
/// there back.
pub(crate) fn problem_page(state: &AppState, request: &Parts, problem: &Problem) -> Response {
    if problem.status == StatusCode::UNAUTHORIZED {
        let to = form_urlencode(&request.uri.to_string());
        return Redirect::to(&state.url(&format!("/login?to={to}"))).into_response();
    }
    (problem.status, problem.detail.clone()).into_response()
}

/// The sign-in page, with the reason why the last attempt failed. `to` is the path to go to after
/// sign-in, relative to the prefix.
pub(crate) fn sign_in_page(_state: &AppState, _to: &str, problem: Option<&Problem>) -> Response {
    let status = problem.map_or(StatusCode::OK, |problem| problem.status);
    let text = problem.map_or("Sign in with 'raddle web open'.", |problem| &problem.detail);
    (status, text.to_owned()).into_response()
}

fn form_urlencode(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(byte.into())
            }
            _ => write!(out, "%{byte:02X}").expect("a string takes any text"),
        }
        out
    })
}
