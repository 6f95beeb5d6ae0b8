//! The checks in front of each route, in one order for all methods.

use std::time::Duration;

use axum::{
    body::HttpBody,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::time::timeout;

use super::{Caller, Credential, caller::not_signed_in, origin::check_origin};
use crate::{
    pages,
    problem::{Problem, Result},
    route::{Access, Face, Route},
    state::AppState,
};

/// The longest time that a handler may take to begin its response. Longer than the longest wait
/// that a request can ask for.
const ANSWER_WITHIN: Duration = Duration::from_secs(75);

/// Checks a request for a route, and passes it on with its [`Caller`].
pub(crate) async fn gate(
    State((state, route)): State<(AppState, &'static Route)>,
    request: Request,
    next: Next,
) -> Response {
    let has_body = !request.body().is_end_stream();
    let (mut parts, body) = request.into_parts();
    let mut caller = None;
    let mut response = match check(&state, route, &parts, has_body, &mut caller).await {
        Err(problem) => problem.into_response(),
        Ok(()) => {
            if let Some(caller) = caller.clone() {
                parts.extensions.insert(caller);
            }
            let request = Request::from_parts(parts.clone(), body);
            match timeout(ANSWER_WITHIN, next.run(request)).await {
                Ok(response) => response,
                Err(_) => Problem::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the broker or the client took too long: try again",
                )
                .into_response(),
            }
        }
    };
    if let (Face::Page, Some(problem)) = (route.face, response.extensions().get::<Problem>()) {
        response = pages::problem_page(&state, &parts, problem);
    }
    if let Some(caller) = caller {
        // For the audit trail.
        response.extensions_mut().insert(caller);
    }
    response
}

async fn check(
    state: &AppState,
    route: &Route,
    request: &Parts,
    has_body: bool,
    found: &mut Option<Caller>,
) -> Result<()> {
    let identified = Caller::identify(state, request).await;
    *found = match (identified, route.access) {
        (Ok(caller), _) => caller,
        // The sign-in page is there for those whose token has become wrong.
        (Err(_), Access::Open) => None,
        (Err(problem), _) => return Err(problem),
    };
    let caller = found.as_ref();
    if caller.is_none() && route.access != Access::Open {
        return Err(not_signed_in());
    }
    if route.is_unsafe() {
        let credential = caller.map(|caller| caller.credential);
        if credential != Some(Credential::Bearer) {
            let is_strict = credential == Some(Credential::Cookie);
            check_origin(&state.options, &request.headers, is_strict)?;
        }
        check_type(route.face, &request.headers, has_body)?;
    }
    match (route.access, caller) {
        (Access::Needs(right), Some(caller)) => caller.require(right),
        _ => Ok(()),
    }
}

/// A form of another site can send text, and no JSON.
fn check_type(face: Face, headers: &HeaderMap, has_body: bool) -> Result<()> {
    let header = headers.get(CONTENT_TYPE);
    if header.is_none() && !has_body {
        return Ok(());
    }
    let kind = header
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .map(str::trim)
        .unwrap_or_default();
    let (json, form) = ("application/json", "application/x-www-form-urlencoded");
    let expected = match face {
        Face::Api => &[json][..],
        Face::Page => &[form],
        Face::Either => &[json, form],
    };
    if expected
        .iter()
        .any(|expected| kind.eq_ignore_ascii_case(expected))
    {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        format!("the body must be {}", expected.join(" or ")),
    )
    .with_hint(format!("send it with 'Content-Type: {}'", expected[0])))
}
