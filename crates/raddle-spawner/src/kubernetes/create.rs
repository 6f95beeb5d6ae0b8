//! Making a pod, and removing one.

use std::{sync::Arc, time::Duration};

use raddle_container::LaunchError;
use raddle_model::Tid;
use tokio::time::{Instant, sleep};

use super::{
    super::launcher::LaunchId,
    error::ApiBackoff,
    launcher::{PodEvent, PodState},
};

/// How long a launch is tried: then it has failed, and the brake decides about the next.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);

/// Makes a pod, and tells how that went.
pub(super) async fn create(yard: Arc<PodState>, id: LaunchId, spawner: Tid) {
    let _turn = yard.turns.acquire().await.expect("never closed");
    let begun = Instant::now();
    let (mut backoff, mut is_open) = (ApiBackoff::default(), false);
    let event = loop {
        match yard.api.create(&yard.model.pod(id.as_str(), spawner)).await {
            Ok(()) => {
                break PodEvent::Created {
                    id,
                    at: Instant::now(),
                };
            }
            // The answer to an earlier try was lost.
            Err(fault) if fault.is_taken() && is_open => {
                break PodEvent::Created {
                    id,
                    at: Instant::now(),
                };
            }
            Err(fault) if fault.is_passing() && begun.elapsed() < GIVE_UP_AFTER => {
                is_open |= fault.is_open();
                sleep(backoff.after(Some(&fault))).await;
            }
            Err(fault) => {
                break PodEvent::NotCreated {
                    id,
                    error: LaunchError::from(&fault),
                };
            }
        }
    };
    yard.tell(event);
}

/// Removes a pod; what runs in it may take so many seconds, or as long as its spec says. A server that is away is waited for.
pub(super) async fn remove(yard: &PodState, id: &LaunchId, grace: Option<u32>) {
    let mut backoff = ApiBackoff::default();
    while let Err(fault) = yard.api.delete(id.as_str(), grace).await {
        let is_passing = fault.is_passing();
        if backoff.is_fresh() || !is_passing {
            tracing::warn!(pod = %id, error = %fault, "a pod cannot be removed{}", if is_passing { " yet" } else { "" });
        }
        if !is_passing {
            return;
        }
        sleep(backoff.after(Some(&fault))).await;
    }
}
