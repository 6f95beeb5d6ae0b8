//! Parts of requests, with problems for what is wrong in them.

use std::time::Duration;

use axum::{
    Json,
    extract::{FromRequest, FromRequestParts, Path, Query, Request, rejection::JsonRejection},
    http::{StatusCode, request::Parts},
};
use raddle_model::{HumanDuration, Tid, tid::TidArg};
use raddle_view::find;
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    problem::{Problem, Result},
    state::AppState,
};

/// The parameters of the query string.
pub(crate) struct Params<T>(pub(crate) T);

/// A body in JSON.
pub(crate) struct Body<T>(pub(crate) T);

/// The id in a path: 19 digits, or the last ten.
pub(crate) struct TaskPath(pub(crate) Tid);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let Query(params) = Query::from_request_parts(parts, state)
            .await
            .map_err(|error| Problem::bad_request(error.body_text()))?;
        Ok(Self(params))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        match Json::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(error) => Err(body_problem(&error)),
        }
    }
}

fn body_problem(error: &JsonRejection) -> Problem {
    let status = match error {
        JsonRejection::JsonSyntaxError(_) => StatusCode::BAD_REQUEST,
        error => error.status(),
    };
    Problem::new(status, error.body_text())
}

impl FromRequestParts<AppState> for TaskPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self> {
        #[derive(Deserialize)]
        struct Named {
            tid: String,
        }
        let Path(Named { tid }) = Path::from_request_parts(parts, state)
            .await
            .map_err(|error| Problem::bad_request(error.body_text()))?;
        resolve(state, &tid).await.map(Self)
    }
}

/// The id that a text names.
pub(crate) async fn resolve(state: &AppState, text: &str) -> Result<Tid> {
    match text.parse::<TidArg>() {
        Ok(TidArg::Full(tid)) => Ok(tid),
        Ok(TidArg::Short(short)) => Ok(find::resolve_short_id(state.broker(), short).await?),
        Err(error) => Err(Problem::bad_request(error.to_string())),
    }
}

/// A time such as `30s`, at most `max`.
pub(crate) fn duration(text: Option<&str>, max: Duration) -> Result<Option<Duration>> {
    let parse = |text: &str| {
        let parsed = text.parse::<HumanDuration>();
        parsed.map(|HumanDuration(time)| time.min(max))
    };
    text.map(parse)
        .transpose()
        .map_err(|error| Problem::bad_request(error.to_string()))
}
