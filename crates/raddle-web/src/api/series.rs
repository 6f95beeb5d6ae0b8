//! Outcomes by minute and name.

use axum::{Json, extract::State};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use super::{extract::Params, hold::AsOf, reply::Page};
use crate::{problem::Result, state::AppState};

/// The span without `from`.
const DEFAULT_SPAN: SignedDuration = SignedDuration::from_hours(1);

/// Which minutes, and of which tasks.
#[derive(Deserialize)]
pub(super) struct SeriesParams {
    name: Option<String>,
    from: Option<Timestamp>,
    until: Option<Timestamp>,
}

pub(super) async fn series(
    State(state): State<AppState>,
    AsOf(as_of): AsOf,
    Params(params): Params<SeriesParams>,
) -> Result<Json<Page>> {
    let until = params.until.unwrap_or_else(Timestamp::now);
    let from = params
        .from
        .unwrap_or_else(|| until.checked_sub(DEFAULT_SPAN).unwrap_or(until));
    let found = state
        .broker()
        .outcome_rollups(from, until, params.name)
        .await?;
    Ok(Json(Page::whole(found, as_of)))
}
