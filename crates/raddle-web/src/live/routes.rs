//! The stream of a browser, and which screens it is for.

use std::{convert::Infallible, time::Duration};

use axum::{
    extract::{Extension, Path, Request, State},
    http::{HeaderName, HeaderValue, StatusCode},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
    routing::{get, post},
};
use futures_util::stream;
use tokio::time::{Instant, timeout};

use super::hub::{self, Subscription};
use crate::{
    audit::Unrecorded,
    auth::{Caller, Right},
    pages::context::parse_query,
    problem::{Problem, Result},
    route::{Access, Route, Verb},
    state::AppState,
};

/// How often an idle stream shows that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How often a stream checks that its owner may still see it.
const CHECK: Duration = Duration::from_secs(10);
/// The longest list of screens.
const MAX_LIST: usize = 256 << 10;

/// The routes of live updates.
pub(crate) const ROUTES: &[Route] = &[
    Route::page(
        Verb::Get,
        "/live",
        Access::Needs(Right::See),
        "Live updates, as a stream of events",
        || get(open),
    ),
    Route::page(
        Verb::Post,
        "/live/{session}",
        Access::Needs(Right::See),
        "Says which screens a stream is for",
        || post(show),
    )
    .body("`screen`, repeated: path and query string of a page")
    .transient(),
];

async fn open(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
) -> Result<Response> {
    let subscription = hub::subscribe(&state, caller.clone()).ok_or_else(|| {
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many browsers are connected",
        )
    })?;
    let hello = Event::default().event("hello").data(&subscription.name);
    let begin = Stream {
        subscription,
        caller,
        state,
        hello: Some(hello),
        checked: Instant::now(),
    };
    let events = stream::unfold(begin, |mut stream| async move {
        let event = stream.next().await?;
        Some((Ok::<_, Infallible>(event), stream))
    });
    let alive = KeepAlive::new()
        .interval(HEARTBEAT)
        .event(Event::default().event("beat").data("1"));
    let mut response = Sse::new(events).keep_alive(alive).into_response();
    // Proxies that buffer would hold events back.
    let unbuffered = HeaderValue::from_static("no");
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-accel-buffering"), unbuffered);
    Ok(response)
}

struct Stream {
    subscription: Subscription,
    caller: Caller,
    state: AppState,
    hello: Option<Event>,
    checked: Instant,
}

impl Stream {
    /// The next event; `None` when the server stops, or the owner may not see it any more.
    async fn next(&mut self) -> Option<Event> {
        if let Some(hello) = self.hello.take() {
            return Some(hello);
        }
        let state = self.state.clone();
        loop {
            if self.checked.elapsed() >= CHECK {
                self.checked = Instant::now();
                if !self.caller.is_still_valid(&self.state).await {
                    return None;
                }
            }
            let next = async {
                tokio::select! {
                    frame = self.subscription.frames.recv() => frame,
                    () = state.stopping() => None,
                }
            };
            if let Ok(frame) = timeout(CHECK, next).await {
                let (at, frame) = frame?;
                return Some(
                    Event::default()
                        .id(at.to_string())
                        .event(frame.event)
                        .data(frame.data),
                );
            }
        }
    }
}

async fn show(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    Path(session): Path<String>,
    request: Request,
) -> Result<impl IntoResponse> {
    let bytes = axum::body::to_bytes(request.into_body(), MAX_LIST)
        .await
        .map_err(|_| Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "the list is too long"))?;
    let text = String::from_utf8_lossy(&bytes);
    let screens = parse_query(&text)
        .into_iter()
        .filter(|(key, screen)| key == "screen" && screen.starts_with('/'))
        .map(|(_, screen)| screen)
        .collect();
    match hub::show(&state, &caller, &session, screens) {
        true => Ok((Extension(Unrecorded), StatusCode::NO_CONTENT)),
        false => Err(Problem::not_found("the stream has ended: open another")),
    }
}
