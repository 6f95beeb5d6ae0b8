//! Following all pods of a class.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    api::Change,
    fault::{Backoff, Fault},
    pods::{Event, Yard},
};

/// What is followed for shorter than this was not worth the connection: the next has to wait.
const WORTHWHILE: Duration = Duration::from_secs(1);

/// Tells of all pods, and then of what happens to them, for ever.
pub(super) async fn follow(yard: Arc<Yard>) {
    let mut backoff = Backoff::default();
    loop {
        let asked_at = Instant::now();
        match yard.api.list().await {
            Ok(listing) => {
                backoff.reset();
                yard.tell(Event::Listed { pods: listing.pods, asked_at });
                changes(&yard, listing.version, &mut backoff).await;
            }
            Err(fault) => pause(&mut backoff, &fault).await,
        }
    }
}

/// Tells of what happens after a moment, until the server does not remember that.
async fn changes(yard: &Yard, mut version: String, backoff: &mut Backoff) {
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

async fn one_after_another(yard: &Yard, version: &mut String) -> Result<(), Fault> {
    let mut following = yard.api.follow(version).await?;
    while let Some(change) = following.next().await? {
        let pod = match &change {
            Change::Added(pod) | Change::Modified(pod) | Change::Deleted(pod) | Change::Bookmark(pod) => pod,
            Change::Error(status) => return Err(Fault::refused(status.clone(), None)),
        };
        if !pod.metadata.resource_version.is_empty() {
            version.clone_from(&pod.metadata.resource_version);
        }
        yard.tell(Event::Changed(change));
    }
    Ok(())
}

async fn pause(backoff: &mut Backoff, fault: &Fault) {
    if backoff.is_fresh() {
        tracing::warn!(error = %fault, "pods cannot be followed yet");
    }
    sleep(backoff.after(Some(fault))).await;
}
