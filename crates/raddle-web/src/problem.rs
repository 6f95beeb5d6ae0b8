//! Errors of the API: problems as in RFC 9457, with a hint.

use axum::{
    Json,
    http::{
        HeaderValue, StatusCode,
        header::{CONTENT_TYPE, RETRY_AFTER},
    },
    response::{IntoResponse, Response},
};
use raddle_broker::Error as BrokerError;
use raddle_model::Tid;
use serde::Serialize;

/// Why a request has no answer.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    /// What failed and why.
    pub(crate) detail: String,
    /// What to do next.
    pub(crate) hint: Option<String>,
    /// Where in the query the error is, in bytes.
    pub(crate) position: Option<usize>,
    /// The task that is in the way, or the one that was named.
    pub(crate) tid: Option<Tid>,
    /// The right that is missing.
    pub(crate) right: Option<&'static str>,
}

/// The result of a handler.
pub(crate) type Result<T, E = Problem> = std::result::Result<T, E>;

#[derive(Serialize)]
struct Body<'a> {
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<Tid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    right: Option<&'static str>,
}

impl Problem {
    /// A problem whose message names the next command, if there is one, behind the error.
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let message = message.into();
        let (detail, hint) = raddle_client::text::split_hint(&message);
        Self {
            status,
            detail: detail.to_owned(),
            hint: hint.map(str::to_owned),
            position: None,
            tid: None,
            right: None,
        }
    }

    /// A request that makes no sense.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A request for what does not exist.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }

    pub(crate) fn with_tid(self, tid: Tid) -> Self {
        Self {
            tid: Some(tid),
            ..self
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = Body {
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
            hint: self.hint.as_deref(),
            position: self.position,
            tid: self.tid,
            right: self.right,
        };
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if matches!(
            self.status,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
        ) {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("5"));
        }
        // Pages show the problem in their own way.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<BrokerError> for Problem {
    fn from(error: BrokerError) -> Self {
        let (status, tid) = match &error {
            BrokerError::NotFound(tid) => (StatusCode::NOT_FOUND, Some(*tid)),
            BrokerError::Finished(tid, _)
            | BrokerError::Unfinished(tid, _)
            | BrokerError::NotDead(tid) => (StatusCode::CONFLICT, Some(*tid)),
            BrokerError::KeyTaken { holder, .. } => (StatusCode::CONFLICT, Some(*holder)),
            BrokerError::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, None),
            error if error.is_callers() => (StatusCode::BAD_REQUEST, None),
            _ => (StatusCode::SERVICE_UNAVAILABLE, None),
        };
        Self {
            tid,
            ..Self::new(status, error.to_string())
        }
    }
}

impl From<raddle_view::Error> for Problem {
    fn from(error: raddle_view::Error) -> Self {
        match error {
            raddle_view::Error::Broker(error) => error.into(),
            raddle_view::Error::AmbiguousShortId { .. } => {
                Self::new(StatusCode::CONFLICT, error.to_string())
            }
            raddle_view::Error::CommandRefused { tid, .. }
            | raddle_view::Error::IsWorker { tid, .. }
            | raddle_view::Error::Completed(tid) => {
                Self::new(StatusCode::CONFLICT, error.to_string()).with_tid(tid)
            }
            raddle_view::Error::WorkerSilent(tid) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()).with_tid(tid)
            }
            error => Self::not_found(error.to_string()),
        }
    }
}
