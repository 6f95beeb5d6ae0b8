//! Groups, and changes of them.

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use raddle_groups::{self as group, DesiredState, GroupChangeError, GroupWorkerView};
use serde::Deserialize;

use super::{extract::Body, hold::AsOf, reply::Page};
use crate::{
    problem::{Problem, Result},
    state::AppState,
};

pub(super) async fn list(State(state): State<AppState>, AsOf(as_of): AsOf) -> Result<Json<Page>> {
    let groups = group::list(state.broker()).await?;
    Ok(Json(Page::whole(groups, as_of)))
}

pub(super) async fn show(
    State(state): State<AppState>,
    Path(slug): Path<String>,
) -> Result<Json<GroupWorkerView>> {
    let groups = group::list(state.broker()).await?;
    let found = groups.into_iter().find(|group| group.slug == slug);
    let absent = || Problem::from(GroupChangeError::Absent(slug));
    found.map(Json).ok_or_else(absent)
}

/// What to change.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupChange {
    on: Option<bool>,
    replicas: Option<u32>,
}

pub(super) async fn change(
    State(state): State<AppState>,
    Path(slug): Path<String>,
    Body(change): Body<GroupChange>,
) -> Result<Json<DesiredState>> {
    let broker = state.broker();
    let mut changed = None;
    if let Some(replicas) = change.replicas {
        changed = Some(group::scale(broker, &slug, replicas).await?);
    }
    if let Some(on) = change.on {
        changed = Some(group::set_worker_on(broker, &slug, on).await?);
    }
    changed
        .map(Json)
        .ok_or_else(|| Problem::bad_request("give 'on', 'replicas' or both"))
}

impl From<GroupChangeError> for Problem {
    fn from(error: GroupChangeError) -> Self {
        match error {
            GroupChangeError::Broker(error) => error.into(),
            GroupChangeError::Absent(_) => Self::not_found(error.to_string()),
            error => Self::new(StatusCode::CONFLICT, error.to_string()),
        }
    }
}
