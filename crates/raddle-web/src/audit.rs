//! The audit trail: one entry for every request that changes something, or tried to.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    extract::{OriginalUri, Request, State},
    http::{Method, StatusCode},
    middleware::Next,
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use raddle_model::QueueName;
use serde::{Deserialize, Serialize};

use crate::{
    auth::{Caller, PeerAddress},
    state::AppState,
};

pub(crate) use raddle_broker::queues::AUDIT_QUEUE as QUEUE;
/// How many refused requests of strangers are recorded in a minute: anyone who reaches the server
/// could fill the disk otherwise.
const STRANGERS_A_MINUTE: u32 = 60;

/// One entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AuditEntry {
    pub(crate) at: Timestamp,
    /// The name of the caller; `None` without sign-in.
    pub(crate) by: Option<String>,
    pub(crate) role: Option<String>,
    /// The address of the client; `None` on a Unix socket.
    pub(crate) from: Option<String>,
    /// The method and the path.
    pub(crate) action: String,
    /// The selection: ids, or a query.
    pub(crate) selection: Option<String>,
    pub(crate) count: Option<u64>,
    pub(crate) reason: Option<String>,
    /// `done`, `refused` or `failed`.
    pub(crate) outcome: String,
    pub(crate) status: u16,
}

/// The part that a handler adds to the entry of its request: an extension of its response.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuditNote {
    pub(crate) selection: Option<String>,
    pub(crate) count: Option<u64>,
    pub(crate) reason: Option<String>,
}

/// An extension of responses to requests that change nothing that is stored, whatever their method:
/// they have no entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unrecorded;

/// Records a request after it was answered.
pub(crate) async fn record(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    // In a task of its own: a client that hangs up ends neither the request nor its entry.
    match tokio::spawn(run_recorded(state, request, next)).await {
        Ok(response) => response,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn run_recorded(state: AppState, request: Request, next: Next) -> Response {
    let path = match request.extensions().get::<OriginalUri>() {
        Some(OriginalUri(uri)) => uri.path().to_owned(),
        None => request.uri().path().to_owned(),
    };
    let method = request.method().clone();
    let from = PeerAddress::of_request(request.extensions());
    let response = next.run(request).await;
    if response.extensions().get::<Unrecorded>().is_some() {
        return response;
    }
    let caller = response.extensions().get::<Caller>();
    let status = response.status();
    if caller.is_none() && !status.is_redirection() && !state.strangers.admits(Instant::now()) {
        tracing::warn!(%method, path, %status, "refused a request of a stranger");
        return response;
    }
    let note = response.extensions().get::<AuditNote>().cloned();
    let AuditNote {
        selection,
        count,
        reason,
    } = note.unwrap_or_default();
    let entry = AuditEntry {
        at: Timestamp::now(),
        by: caller.map(|caller| caller.name.clone()),
        role: caller.map(|caller| caller.role.to_string()),
        from: from.map(|address| address.to_string()),
        action: action(&method, &path),
        selection,
        count,
        reason,
        outcome: match status.as_u16() {
            400..500 => "refused",
            500.. => "failed",
            _ => "done",
        }
        .into(),
        status: status.as_u16(),
    };
    write(&state, &entry).await;
    response
}

/// A path may be as long as a request head.
fn action(method: &Method, path: &str) -> String {
    let end = path.floor_char_boundary(200);
    format!("{method} {}", &path[..end])
}

async fn write(state: &AppState, entry: &AuditEntry) {
    let body = serde_json::to_string(entry).expect("an entry has only string keys");
    let queue = QueueName::Free(QUEUE.into());
    if let Err(error) = state.broker().put(queue, vec![body.clone()]).await {
        // The request was answered already: the log is the only place left.
        tracing::error!(%error, entry = body, "cannot write to the audit trail");
    }
}

/// Bounds the entries of those who are not signed in.
#[derive(Default)]
pub(crate) struct Strangers(Mutex<Option<(Instant, u32)>>);

impl Strangers {
    fn admits(&self, now: Instant) -> bool {
        let mut minute = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, count) = minute.get_or_insert((now, 0));
        if now - *since >= Duration::from_mins(1) {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= STRANGERS_A_MINUTE
    }
}
