//! Sign-in and sign-out: a one-time code or a token for a cookie.

use axum::{
    Form, Json, RequestExt,
    extract::{DefaultBodyLimit, FromRequest, Query, Request, State},
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{CONTENT_TYPE, LOCATION, SET_COOKIE},
    },
    response::{IntoResponse, Response},
    routing::{get, post},
};
use jiff::Timestamp;
use serde::Deserialize;

use super::{
    Caller,
    caller::wrong_token,
    code::redeem_code,
    cookie::{self, Subject},
};
use crate::{
    pages,
    problem::{Problem, Result},
    route::{Access, Face, Route, Verb},
    state::AppState,
};

/// The largest body of a sign-in, which needs no credential.
const MAX_CREDENTIALS: usize = 16 << 10;

/// The routes of sign-in.
pub(crate) const ROUTES: &[Route] = &[
    Route::page(
        Verb::Get,
        "/login",
        Access::Open,
        "The sign-in page; with `code`, signs in with a one-time code",
        || get(show),
    )
    .parameters(&[
        ("code", "A one-time code of `raddle web open`"),
        ("to", "The path to go to"),
    ]),
    Route::page(
        Verb::Post,
        "/login",
        Access::Open,
        "Signs in: sets the cookie",
        || post(sign_in).layer(DefaultBodyLimit::max(MAX_CREDENTIALS)),
    )
    .face(Face::Either)
    .body("`token` or `code`, and `to`, as a form or as JSON"),
    Route::page(
        Verb::Post,
        "/logout",
        Access::SignedIn,
        "Signs out: removes the cookie",
        || post(sign_out),
    )
    .face(Face::Either)
    .transient(),
];

/// The credentials of a sign-in.
#[derive(Default, Deserialize)]
struct SignInRequest {
    code: Option<String>,
    token: Option<String>,
    to: Option<String>,
}

async fn show(
    State(state): State<AppState>,
    Query(asked): Query<SignInRequest>,
    headers: HeaderMap,
) -> Result<Response> {
    let to = local_path(asked.to.as_deref());
    // A browser that fetches a link ahead must not use the code up.
    let is_prefetch = headers
        .get("sec-purpose")
        .is_some_and(|value| value.as_bytes().starts_with(b"prefetch"));
    match asked.code.filter(|_| !is_prefetch) {
        None => Ok(pages::sign_in_page(&state, to, None)),
        Some(code) if redeem_code(state.broker(), &code).await? => {
            Ok(signed_in(&state, Subject::Owner, to))
        }
        Some(_) => Ok(pages::sign_in_page(&state, to, Some(&wrong_code()))),
    }
}

async fn sign_in(State(state): State<AppState>, request: Request) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let asked = read(Request::from_parts(parts.clone(), body)).await?;
    let to = local_path(asked.to.as_deref());
    let subject = match (&asked.token, &asked.code) {
        (Some(token), _) => Caller::by_token(&state, token.trim())
            .await?
            .map(|caller| caller.subject())
            .ok_or_else(|| wrong_token(&state, &parts.extensions)),
        (None, Some(code)) => match redeem_code(state.broker(), code.trim()).await? {
            true => Ok(Subject::Owner),
            false => Err(match wrong_token(&state, &parts.extensions) {
                many if many.status == StatusCode::TOO_MANY_REQUESTS => many,
                _ => wrong_code(),
            }),
        },
        (None, None) => Err(Problem::bad_request("give a token or a code")),
    };
    match subject {
        Ok(subject) => Ok(signed_in(&state, subject, to)),
        Err(problem) if is_form(&parts.headers) => {
            Ok(pages::sign_in_page(&state, to, Some(&problem)))
        }
        Err(problem) => Err(problem),
    }
}

async fn sign_out(State(state): State<AppState>) -> Response {
    with_cookie(&state, &cookie::end(&state.options), "/login")
}

async fn read(request: Request) -> Result<SignInRequest> {
    let result = if is_form(request.headers()) {
        Form::from_request(request, &())
            .await
            .map(|Form(asked)| asked)
            .map_err(|e| e.to_string())
    } else {
        let asked = request.extract::<Json<SignInRequest>, _>().await;
        asked.map(|Json(asked)| asked).map_err(|e| e.to_string())
    };
    result.map_err(Problem::bad_request)
}

fn is_form(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| !kind.as_bytes().starts_with(b"application/json"))
}

fn wrong_code() -> Problem {
    Problem::new(
        StatusCode::UNAUTHORIZED,
        "the link was used already, or is older than a minute: print another with 'raddle web open'",
    )
}

fn signed_in(state: &AppState, subject: Subject, to: &str) -> Response {
    let cookie = cookie::start(&state.options, subject, Timestamp::now());
    with_cookie(state, &cookie, to)
}

fn with_cookie(state: &AppState, cookie: &str, to: &str) -> Response {
    let value = |text: &str| HeaderValue::from_str(text).ok();
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    headers.extend(value(cookie).map(|cookie| (SET_COOKIE, cookie)));
    let to = value(&state.url(to)).or_else(|| value(&state.url("/")));
    headers.extend(to.map(|to| (LOCATION, to)));
    response
}

/// A path of this server, relative to the prefix. Anything else could lead to another site.
fn local_path(to: Option<&str>) -> &str {
    let is_local = |to: &&str| {
        to.starts_with('/')
            && !to.starts_with("//")
            && to
                .bytes()
                .all(|byte| (b'!'..=b'~').contains(&byte) && byte != b'\\')
    };
    to.filter(is_local).unwrap_or("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sign_in_leads_to_no_other_site() {
        assert_eq!(
            local_path(Some("/tasks?q=state:failed")),
            "/tasks?q=state:failed"
        );
        for other in [
            "",
            "//evil.test",
            "https://evil.test",
            "/\\evil.test",
            "/a\r\nb",
            "a",
        ] {
            assert_eq!(local_path(Some(other)), "/", "{other}");
        }
    }
}
