//! Looking a name up again and again.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use raddle_dns::resolver::{self, HostsFile};
use tokio::time::timeout;

use super::{
    Settings,
    lookup::{DnsLookup, look},
    state::{DnsNotice, DnsState},
};
use crate::{Subscription, WorkerFilter, WorkerMetadata, wait_for_recheck};

/// How long a subscription waits for the first answer. Later ones are told when they come.
const FIRST: Duration = Duration::from_secs(5);
/// How long a look may take.
const LONGEST: Duration = Duration::from_secs(30);

/// Begins to look. What is there is ready to be told, unless it takes too long to find out.
pub(super) async fn subscribe(
    settings: Arc<Settings>,
    filter: Option<WorkerFilter>,
) -> Subscription {
    let rechecks = settings.again.subscribe();
    let begin = (settings, rechecks, DnsState::default(), None);
    let mut snapshots = Box::pin(stream::unfold(
        begin,
        |(settings, mut rechecks, mut state, pause)| async move {
            if let Some(pause) = pause {
                wait_for_recheck(&mut rechecks, settings.bounds.least, pause).await;
            }
            let looking = timeout(LONGEST, settings.look()).await;
            let found = looking.unwrap_or_else(|_| Err("it takes too long to find out".into()));
            let (workers, pause) = settings.take_in(&mut state, found);
            Some((workers, (settings, rechecks, state, Some(pause))))
        },
    ));
    // A look that is not done by then goes on.
    let first = timeout(FIRST, snapshots.next()).await.ok().flatten();
    Subscription::from_snapshots(filter, first.unwrap_or_default(), snapshots)
}

impl Settings {
    async fn look(&self) -> Result<DnsLookup, String> {
        // Made for each look: the system's configuration may have changed, and no answer is to come from a cache.
        let resolver = match &self.servers {
            Some(servers) => resolver::from_servers(servers.iter().copied()),
            None => resolver::from_system(HostsFile::Ignore),
        };
        look(
            &resolver.map_err(|error| error.to_string())?,
            &self.service,
            self.prefer,
        )
        .await
    }

    /// Returns the workers that are known after this answer, and how long to wait before the next look.
    fn take_in(
        &self,
        state: &mut DnsState,
        found: Result<DnsLookup, String>,
    ) -> (Vec<WorkerMetadata>, Duration) {
        let name = &self.name;
        let (look, fault) = match found {
            Ok(mut look) => {
                let doubt = look.doubt.take();
                (Some(look), doubt)
            }
            Err(fault) => (None, Some(fault)),
        };
        let (pause, remark) = state.hear(look, self.bounds);
        let fault = fault.unwrap_or_default();
        match remark {
            Some(DnsNotice::Fault) => {
                tracing::warn!(
                    name,
                    fault,
                    "cannot find out who the workers are: those that are known stay"
                );
            }
            Some(DnsNotice::Mended) => {
                tracing::info!(name, "it can be found out again who the workers are")
            }
            Some(DnsNotice::Doubted) => {
                tracing::warn!(
                    name,
                    "is said to have no workers any more: it is asked for again"
                )
            }
            Some(DnsNotice::Gone) => tracing::warn!(name, "has no workers any more"),
            None => tracing::trace!(name, fault, ?pause, "looked for workers"),
        }
        (
            state
                .places()
                .into_iter()
                .map(|place| self.worker(place))
                .collect(),
            pause,
        )
    }
}
