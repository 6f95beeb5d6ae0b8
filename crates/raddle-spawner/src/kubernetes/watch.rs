//! Following all pods of a class.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    api::WatchEvent,
    error::{ApiBackoff, ApiError},
    launcher::{PodEvent, PodState},
};

/// What is followed for shorter than this was not worth the connection: the next has to wait.
const WORTHWHILE: Duration = Duration::from_secs(1);

/// Tells of all pods, and then of what happens to them, for ever.
pub(super) async fn follow(yard: Arc<PodState>) {
    let mut backoff = ApiBackoff::default();
    loop {
        let asked_at = Instant::now();
        match yard.api.list().await {
            Ok(listing) => {
                backoff.reset();
                yard.tell(PodEvent::Listed {
                    pods: listing.pods,
                    asked_at,
                });
                changes(&yard, listing.version, &mut backoff).await;
            }
            Err(fault) => pause(&mut backoff, &fault).await,
        }
    }
}

/// Tells of what happens after a moment, until the server does not remember that.
async fn changes(yard: &PodState, mut version: String, backoff: &mut ApiBackoff) {
    loop {
        let begun = Instant::now();
        match one_after_another(yard, &mut version).await {
            Ok(()) if begun.elapsed() < WORTHWHILE => sleep(backoff.after(None)).await,
            Ok(()) => backoff.reset(),
            Err(fault) if fault.is_expired() => return,
            Err(fault) => pause(backoff, &fault).await,
        }
    }
}

async fn one_after_another(yard: &PodState, version: &mut String) -> Result<(), ApiError> {
    let mut following = yard.api.follow(version).await?;
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
        yard.tell(PodEvent::Changed(change));
    }
    Ok(())
}

async fn pause(backoff: &mut ApiBackoff, fault: &ApiError) {
    if backoff.is_fresh() {
        tracing::warn!(error = %fault, "pods cannot be followed yet");
    }
    sleep(backoff.after(Some(fault))).await;
}
