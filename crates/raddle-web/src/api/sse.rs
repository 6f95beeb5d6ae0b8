//! Streams of server-sent events: bounded in number, ended when the server stops or the token of
//! their reader is revoked.

use std::{convert::Infallible, time::Duration};

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::ACCEPT},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::Stream;
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    auth::Caller,
    problem::{Problem, Result},
    state::AppState,
};

/// A stream does not fail: it ends.
pub(crate) type Never = Infallible;

/// How long a stream waits before it looks whether its reader may still read.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// How often an idle stream says that it is there.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The right of a stream to go on.
pub(crate) struct Guard {
    state: AppState,
    caller: Caller,
    _permit: OwnedSemaphorePermit,
}

impl Guard {
    /// Counts a stream.
    pub(crate) fn new(state: &AppState, caller: Caller) -> Result<Self> {
        let permit = state.streams.clone().try_acquire_owned().map_err(|_| {
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many streams are open: close one, or try again",
            )
        })?;
        Ok(Self {
            state: state.clone(),
            caller,
            _permit: permit,
        })
    }

    pub(crate) fn state(&self) -> &AppState {
        &self.state
    }

    /// Waits for something: `wait` waits at most for the time that it is given. `None` ends the
    /// stream.
    pub(crate) async fn wait<T>(
        &mut self,
        wait: impl AsyncFnOnce(&AppState, Duration) -> Option<T>,
    ) -> Option<T> {
        let state = &self.state;
        let found = tokio::select! {
            found = wait(state, CHECK_EVERY) => found?,
            () = state.stopping() => return None,
        };
        self.caller.is_still_valid(state).await.then_some(found)
    }
}

/// The response of a stream.
pub(crate) fn response<S>(stream: Sse<S>) -> Response
where
    S: Stream<Item = Result<Event, Never>> + Send + 'static,
{
    let mut response = stream
        .keep_alive(KeepAlive::new().interval(HEARTBEAT))
        .into_response();
    let header = HeaderName::from_static("x-accel-buffering");
    response
        .headers_mut()
        .insert(header, HeaderValue::from_static("no"));
    response
}

/// The id of the last event that the reader has seen.
pub(crate) fn last_event_id(headers: &HeaderMap) -> Option<&str> {
    headers.get("last-event-id")?.to_str().ok()
}

/// Whether the client asks for a stream.
pub(crate) fn is_asked_for(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(ACCEPT).into_iter();
    accepts
        .filter_map(|accept| accept.to_str().ok())
        .any(|accept| accept.contains("text/event-stream"))
}
