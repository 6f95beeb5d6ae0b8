//! Subscriptions: the events of a discovery, and their derivation from snapshots.

use std::{collections::BTreeMap, fmt, future::ready, time::Duration};

use futures_core::Stream;
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{DiscoveryEvent, WorkerFilter};
use crate::{WorkerMetadata, WorkerUid};

/// The workers known to a subscriber.
type KnownWorkers = BTreeMap<WorkerUid, WorkerMetadata>;

/// The events of a discovery.
pub struct Subscription(BoxStream<'static, DiscoveryEvent>);

impl Subscription {
    /// A subscription to these events.
    pub fn new(events: impl Stream<Item = DiscoveryEvent> + Send + 'static) -> Self {
        Self(Box::pin(events.fuse()))
    }

    /// A subscription to the differences between successive snapshots, starting from none. The
    /// events of the first snapshot are ready at once.
    pub fn from_snapshots(
        filter: Option<WorkerFilter>,
        first: Vec<WorkerMetadata>,
        later: impl Stream<Item = Vec<WorkerMetadata>> + Send + 'static,
    ) -> Self {
        let mut known = KnownWorkers::new();
        let snapshots = stream::once(ready(first)).chain(later);
        Self::new(snapshots.flat_map(move |workers| {
            let wanted =
                |worker: &WorkerMetadata| filter.as_ref().is_none_or(|filter| filter(worker));
            let now = workers
                .into_iter()
                .filter(wanted)
                .map(|worker| (worker.uid, worker))
                .collect();
            let events = changes(&known, &now);
            known = now;
            stream::iter(events)
        }))
    }

    /// The next event. `None` at the end. Cancel-safe.
    pub async fn next(&mut self) -> Option<DiscoveryEvent> {
        self.0.next().await
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subscription")
    }
}

/// Waits between two polls of a discovery: for `most`, or less if a recheck is requested, but at
/// least for `least`.
pub async fn wait_for_recheck(rechecks: &mut watch::Receiver<()>, least: Duration, most: Duration) {
    sleep(least).await;
    let _ = timeout(most.saturating_sub(least), rechecks.changed()).await;
}

/// The events that lead from `known` to `now`. Drops come first, because an address may be reused.
fn changes(known: &KnownWorkers, now: &KnownWorkers) -> Vec<DiscoveryEvent> {
    let gone = known
        .iter()
        .filter(|(uid, _)| !now.contains_key(uid))
        .map(|(_, worker)| DiscoveryEvent::Dropped(worker.clone()));
    let there = now.iter().filter_map(|(uid, worker)| match known.get(uid) {
        None => Some(DiscoveryEvent::Added(worker.clone())),
        Some(before) if before != worker => Some(DiscoveryEvent::Updated(worker.clone())),
        Some(_) => None,
    });
    gone.chain(there).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn workers(pids: &[(u8, u32)]) -> KnownWorkers {
        let worker = |(uid, pid): &(u8, u32)| {
            let uid: WorkerUid = format!("00000000-0000-0000-0000-0000000000{uid:02x}")
                .parse()
                .unwrap();
            (
                uid,
                WorkerMetadata {
                    uid,
                    pid: *pid,
                    ..WorkerMetadata::for_address("h:1")
                },
            )
        };
        pids.iter().map(worker).collect()
    }

    #[test]
    fn drops_come_first_and_unchanged_workers_are_omitted() {
        let (before, after) = (
            workers(&[(1, 1), (2, 1), (3, 1)]),
            workers(&[(0, 1), (1, 1), (2, 2)]),
        );
        let [zero, two] = [0, 2].map(|place| after.values().nth(place).unwrap().clone());
        let three = before.values().nth(2).unwrap().clone();
        assert_eq!(
            changes(&before, &after),
            [
                DiscoveryEvent::Dropped(three),
                DiscoveryEvent::Added(zero),
                DiscoveryEvent::Updated(two)
            ]
        );
    }

    proptest! {
        #[test]
        fn applying_the_changes_yields_the_new_snapshot(
            before in prop::collection::vec((0_u8..9, 1_u32..3), 0..9),
            after in prop::collection::vec((0_u8..9, 1_u32..3), 0..9),
        ) {
            let (before, after) = (workers(&before), workers(&after));
            let mut known = before.clone();
            for event in changes(&before, &after) {
                match event {
                    DiscoveryEvent::Added(worker) => prop_assert!(known.insert(worker.uid, worker).is_none()),
                    DiscoveryEvent::Updated(worker) => prop_assert!(known.insert(worker.uid, worker).is_some()),
                    DiscoveryEvent::Dropped(worker) => prop_assert_eq!(known.remove(&worker.uid), Some(worker)),
                }
            }
            prop_assert_eq!(known, after);
        }
    }
}
