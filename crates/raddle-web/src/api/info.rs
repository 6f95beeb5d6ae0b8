//! What this server is, and what the caller may do.

use axum::{Extension, Json, extract::State};
use serde_json::{Value, json};

use crate::{auth::Caller, problem::Result, state::AppState};

pub(super) async fn show(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>> {
    let health = state.broker().health().await?;
    Ok(Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "broker": state.options.broker_url,
        "engine": health.engine,
        "durability": health.durability,
        "name": caller.name,
        "role": caller.role,
        "rights": caller.rights,
        "read_only": state.options.is_read_only,
    })))
}
