//! Creating and deleting a pod.

use std::{sync::Arc, time::Duration};

use raddle_container::LaunchError;
use raddle_model::Tid;
use tokio::time::{Instant, sleep};

use super::{
    super::launcher::LaunchId,
    error::ApiBackoff,
    launcher::{PodEvent, PodState},
};

/// How long a creation is retried. After that it has failed, and the supervisor backs off.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);

/// Creates a pod, and reports the outcome.
pub(super) async fn create(state: Arc<PodState>, id: LaunchId, spawner: Tid) {
    let _permit = state.call_permits.acquire().await.expect("never closed");
    let begun = Instant::now();
    let (mut backoff, mut is_uncertain) = (ApiBackoff::default(), false);
    let event = loop {
        match state
            .api
            .create(&state.template.build_pod(id.as_str(), spawner))
            .await
        {
            Ok(()) => {
                break PodEvent::Created {
                    id,
                    at: Instant::now(),
                };
            }
            // An earlier try has succeeded, and its answer was lost.
            Err(fault) if fault.already_exists() && is_uncertain => {
                break PodEvent::Created {
                    id,
                    at: Instant::now(),
                };
            }
            Err(fault) if fault.is_retryable() && begun.elapsed() < GIVE_UP_AFTER => {
                is_uncertain |= fault.is_uncertain();
                sleep(backoff.pause_after(Some(&fault))).await;
            }
            Err(fault) => {
                break PodEvent::NotCreated {
                    id,
                    error: LaunchError::from(&fault),
                };
            }
        }
    };
    state.send_event(event);
}

/// Deletes a pod with this grace period in seconds, or the one of its spec. Retries while the
/// server is unreachable.
pub(super) async fn remove(state: &PodState, id: &LaunchId, grace: Option<u32>) {
    let mut backoff = ApiBackoff::default();
    while let Err(fault) = state.api.delete(id.as_str(), grace).await {
        let is_retryable = fault.is_retryable();
        if backoff.is_first() || !is_retryable {
            tracing::warn!(pod = %id, error = %fault, "a pod cannot be deleted{}", if is_retryable { ": retrying" } else { "" });
        }
        if !is_retryable {
            return;
        }
        sleep(backoff.pause_after(Some(&fault))).await;
    }
}
