//! Watching all pods of a class.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    api::WatchEvent,
    error::{ApiBackoff, ApiError},
    launcher::{PodEvent, PodState},
};

/// A watch that ends sooner was not worth its connection, so the next one waits.
const MIN_WATCH: Duration = Duration::from_secs(1);

/// Reports all pods, and then every change, without end.
pub(super) async fn watch_pods(state: Arc<PodState>) {
    let mut backoff = ApiBackoff::default();
    loop {
        let requested_at = Instant::now();
        match state.api.list().await {
            Ok(listing) => {
                backoff.reset();
                state.send_event(PodEvent::Listed {
                    pods: listing.pods,
                    requested_at,
                });
                watch_changes(&state, listing.version, &mut backoff).await;
            }
            Err(fault) => pause(&mut backoff, &fault).await,
        }
    }
}

/// Reports changes since a version, until the server has forgotten that version.
async fn watch_changes(state: &PodState, mut version: String, backoff: &mut ApiBackoff) {
    loop {
        let begun = Instant::now();
        match forward_events(state, &mut version).await {
            Ok(()) if begun.elapsed() < MIN_WATCH => sleep(backoff.pause_after(None)).await,
            Ok(()) => backoff.reset(),
            Err(fault) if fault.is_expired() => return,
            Err(fault) => pause(backoff, &fault).await,
        }
    }
}

async fn forward_events(state: &PodState, version: &mut String) -> Result<(), ApiError> {
    let mut following = state.api.watch(version).await?;
    while let Some(change) = following.next().await? {
        let pod = match &change {
            WatchEvent::Added(pod)
            | WatchEvent::Modified(pod)
            | WatchEvent::Deleted(pod)
            | WatchEvent::Bookmark(pod) => pod,
            WatchEvent::Error(status) => return Err(ApiError::refused(status.clone(), None)),
        };
        if !pod.metadata.resource_version.is_empty() {
            version.clone_from(&pod.metadata.resource_version);
        }
        state.send_event(PodEvent::Changed(change));
    }
    Ok(())
}

async fn pause(backoff: &mut ApiBackoff, fault: &ApiError) {
    if backoff.is_first() {
        tracing::warn!(error = %fault, "pods cannot be watched: retrying");
    }
    sleep(backoff.pause_after(Some(fault))).await;
}
