//! `StaticDiscovery`: a fixed list of workers.

use async_trait::async_trait;
use futures_util::stream;

use super::{Discovery, DiscoveryError, Subscription, WorkerFilter};
use crate::WorkerMetadata;

/// A fixed list of workers.
#[derive(Clone, Debug, Default)]
pub struct StaticDiscovery(Vec<WorkerMetadata>);

impl StaticDiscovery {
    /// A discovery of these workers.
    pub fn new(workers: impl IntoIterator<Item = WorkerMetadata>) -> Self {
        Self(workers.into_iter().collect())
    }
}

#[async_trait]
impl Discovery for StaticDiscovery {
    async fn subscribe(
        &self,
        filter: Option<WorkerFilter>,
    ) -> Result<Subscription, DiscoveryError> {
        Ok(Subscription::from_snapshots(
            filter,
            self.0.clone(),
            stream::empty(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;

    use super::*;
    use crate::{DiscoveryEvent, WorkerUid};

    #[tokio::test]
    async fn reports_selected_workers_and_ends() {
        let worker = |pid| WorkerMetadata {
            uid: WorkerUid::new(),
            pid,
            ..WorkerMetadata::for_address(format!("h:{pid}"))
        };
        let workers = [1, 2, 3].map(worker);
        let discovery = StaticDiscovery::new(workers.clone());
        let filter: WorkerFilter = Arc::new(|worker| worker.pid != 2);
        for (filter, wanted) in [(None, vec![0, 1, 2]), (Some(filter), vec![0, 2])] {
            let mut subscription = discovery.subscribe(filter).await.unwrap();
            for place in wanted {
                let event = subscription.next().now_or_never().unwrap();
                assert_eq!(event, Some(DiscoveryEvent::Added(workers[place].clone())));
            }
            assert_eq!(subscription.next().await, None);
        }
    }
}
