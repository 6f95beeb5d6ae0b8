//! Polls a name, and reports the changes.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use raddle_dns::resolver::{self, HostsFile};
use tokio::time::timeout;

use super::{
    Settings,
    lookup::{DnsLookup, lookup_service},
    state::{DnsNotice, DnsState},
};
use crate::{Subscription, WorkerFilter, WorkerMetadata, wait_for_recheck};

/// How long a subscription waits for the first answer. Later answers are reported when they arrive.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// Time limit of a lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts polling. The workers of the first answer are ready when this returns, unless it takes too
/// long.
pub(super) async fn subscribe(
    settings: Arc<Settings>,
    filter: Option<WorkerFilter>,
) -> Subscription {
    let rechecks = settings.recheck.subscribe();
    let initial = (settings, rechecks, DnsState::default(), None);
    let mut snapshots = Box::pin(stream::unfold(
        initial,
        |(settings, mut rechecks, mut state, pause)| async move {
            if let Some(pause) = pause {
                wait_for_recheck(&mut rechecks, settings.bounds.least, pause).await;
            }
            let lookup = timeout(LOOKUP_TIMEOUT, settings.lookup()).await;
            let found = lookup.unwrap_or_else(|_| Err("the lookup timed out".into()));
            let (workers, pause) = settings.apply_answer(&mut state, found);
            Some((workers, (settings, rechecks, state, Some(pause))))
        },
    ));
    // A lookup that takes longer continues in the subscription.
    let first = timeout(FIRST_ANSWER, snapshots.next()).await.ok().flatten();
    Subscription::from_snapshots(filter, first.unwrap_or_default(), snapshots)
}

impl Settings {
    async fn lookup(&self) -> Result<DnsLookup, String> {
        // Create a new resolver for each lookup: `/etc/resolv.conf` may have changed, and the
        // cache must not be used.
        let resolver = match &self.servers {
            Some(servers) => resolver::from_servers(servers.iter().copied()),
            None => resolver::from_system(HostsFile::Ignore),
        };
        lookup_service(
            &resolver.map_err(|error| error.to_string())?,
            &self.service,
            self.prefer,
        )
        .await
    }

    /// Applies an answer. Returns the known workers, and the pause until the next lookup.
    fn apply_answer(
        &self,
        state: &mut DnsState,
        found: Result<DnsLookup, String>,
    ) -> (Vec<WorkerMetadata>, Duration) {
        let name = &self.name;
        let (look, fault) = match found {
            Ok(mut look) => {
                let error = look.error.take();
                (Some(look), error)
            }
            Err(fault) => (None, Some(fault)),
        };
        let (pause, notice) = state.apply_lookup(look, self.bounds);
        let fault = fault.unwrap_or_default();
        match notice {
            Some(DnsNotice::Fault) => {
                tracing::warn!(
                    name,
                    fault,
                    "cannot look up workers; keeping the known ones"
                );
            }
            Some(DnsNotice::Recovered) => {
                tracing::info!(name, "looking up workers works again")
            }
            Some(DnsNotice::EmptyAnswer) => {
                tracing::warn!(
                    name,
                    "the answer has no workers; asking again before it counts"
                )
            }
            Some(DnsNotice::Gone) => tracing::warn!(name, "the name has no workers any more"),
            None => tracing::trace!(name, fault, ?pause, "looked up workers"),
        }
        (
            state
                .addresses()
                .into_iter()
                .map(|address| self.worker(address))
                .collect(),
            pause,
        )
    }
}
