//! `?wait=30s&after=ID`: holds a request until something has changed, and the `ETag` of answers:
//! the id of the last event.

use std::time::Duration;

use axum::{
    extract::{FromRequestParts, Request, State},
    http::{
        HeaderValue, StatusCode,
        header::{ETAG, IF_NONE_MATCH},
        request::Parts,
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde::Deserialize;

use super::extract::{Params, duration};
use crate::{
    problem::{Problem, Result},
    state::AppState,
};

/// The longest time that a request is held.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// The last event before the answer is read. The answer shows this change, and maybe later ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsOf(pub(crate) u64);

#[derive(Deserialize)]
struct Hold {
    wait: Option<String>,
    after: Option<u64>,
}

/// Holds a request as long as it asks for, and adds the `ETag`.
pub(crate) async fn hold(State(state): State<AppState>, request: Request, next: Next) -> Response {
    match held(&state, request, next).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

async fn held(state: &AppState, request: Request, next: Next) -> Result<Response> {
    let (mut parts, body) = request.into_parts();
    let Params(Hold { wait, after }) = Params::from_request_parts(&mut parts, state).await?;
    let wait = duration(wait.as_deref(), MAX_WAIT)?;
    if let (Some(wait), Some(after)) = (wait, after) {
        tokio::select! {
            events = state.broker().events(Some(after), None, 1, wait) => drop(events?),
            () = state.stopping() => {}
        }
    }
    let as_of = state.broker().last_event().await?;
    let tag = format!("\"{as_of}\"");
    let is_known = parts
        .headers
        .get(IF_NONE_MATCH)
        .is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        parts.extensions.insert(AsOf(as_of));
        next.run(Request::from_parts(parts, body)).await
    };
    if !response.status().is_client_error() && !response.status().is_server_error() {
        let tag = HeaderValue::from_str(&tag).expect("digits are a header value");
        response.headers_mut().insert(ETAG, tag);
    }
    Ok(response)
}

impl<S: Sync> FromRequestParts<S> for AsOf {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        // Routes that are not held show no event.
        Ok(parts.extensions.get().copied().unwrap_or(Self(0)))
    }
}
