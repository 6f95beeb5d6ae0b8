//! Readmission of workers that a balancer has removed. Pure: events and times are arguments.
//!
//! A balancer removes an unusable worker: one whose certificate is wrong, or whose replies make no
//! sense. Discovery goes on listing the worker, and reports nothing new when it becomes usable,
//! such as after certificates were renewed or another program took over the address. So a worker
//! that is listed is tried again, with exponential backoff.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use raddle_discovery::{WorkerMetadata, WorkerUid};
use raddle_model::ExponentialBackoff;
use tokio::time::Instant;

/// First backoff.
const FIRST: Duration = Duration::from_secs(1);
/// Longest backoff. A worker that was usable for this long starts over.
const LONGEST: Duration = Duration::from_secs(60);
const BACKOFF: ExponentialBackoff = ExponentialBackoff::new(FIRST, LONGEST);

/// The workers that discovery lists.
#[derive(Debug, Default)]
pub(super) struct Readmission(BTreeMap<WorkerUid, ListedWorker>);

#[derive(Debug)]
struct ListedWorker {
    worker: WorkerMetadata,
    /// Number of removals in a row.
    removals: u32,
    admission: Admission,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// The worker gets calls.
    Admitted { since: Instant },
    /// The worker was removed, and is readmitted then.
    Removed { until: Instant },
}

impl Readmission {
    /// Discovery lists or updates a worker: earlier removals no longer count.
    pub(super) fn record_listed(&mut self, worker: WorkerMetadata, now: Instant) {
        self.0.insert(
            worker.uid,
            ListedWorker {
                worker,
                removals: 0,
                admission: Admission::Admitted { since: now },
            },
        );
    }

    /// Discovery no longer lists the worker.
    pub(super) fn forget(&mut self, uid: WorkerUid) {
        self.0.remove(&uid);
    }

    /// Compares with the workers that get calls now: a listed worker that is missing was removed.
    pub(super) fn record_active(&mut self, active: &BTreeSet<WorkerUid>, now: Instant) {
        for (uid, listed) in &mut self.0 {
            match listed.admission {
                Admission::Admitted { since } if !active.contains(uid) => {
                    listed.removals = if now.duration_since(since) >= LONGEST {
                        1
                    } else {
                        listed.removals + 1
                    };
                    listed.admission = Admission::Removed {
                        until: now + BACKOFF.pause(listed.removals),
                    };
                }
                Admission::Removed { .. } if active.contains(uid) => {
                    listed.admission = Admission::Admitted { since: now }
                }
                Admission::Admitted { .. } | Admission::Removed { .. } => {}
            }
        }
    }

    /// When the next worker is readmitted.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let until = |listed: &ListedWorker| {
            if let Admission::Removed { until } = listed.admission {
                Some(until)
            } else {
                None
            }
        };
        self.0.values().filter_map(until).min()
    }

    /// Readmits the workers whose backoff is over.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<WorkerMetadata> {
        let is_due = |listed: &&mut ListedWorker| matches!(listed.admission, Admission::Removed { until } if until <= now);
        let due = self.0.values_mut().filter(is_due).map(|listed| {
            listed.admission = Admission::Admitted { since: now };
            listed.worker.clone()
        });
        due.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(pid: u32) -> WorkerMetadata {
        let (address, version) = (format!("h:{pid}"), String::new());
        let (tags, extra, encodings) = ([].into(), [].into(), [].into());
        WorkerMetadata {
            uid: WorkerUid::of_address(&address),
            address,
            pid,
            version,
            tags,
            extra,
            secure: true,
            encodings,
        }
    }

    fn sec(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn removed_worker_returns_with_exponential_backoff() {
        let (mut readmission, mut now, none) =
            (Readmission::default(), Instant::now(), BTreeSet::new());
        let (bad, good) = (worker(1), worker(2));
        readmission.record_listed(bad.clone(), now);
        readmission.record_listed(good.clone(), now);
        let usable: BTreeSet<_> = [good.uid].into();
        for pause in [1, 2, 4, 8, 16, 32, 60, 60].map(sec) {
            readmission.record_active(&usable, now);
            assert_eq!(readmission.next_due(), Some(now + pause));
            assert_eq!(readmission.take_due(now + pause / 2), []);
            now += pause;
            assert_eq!(readmission.take_due(now), std::slice::from_ref(&bad));
            assert_eq!(readmission.next_due(), None);
        }
        // A worker that was usable for a while starts over.
        readmission.record_active(&[bad.uid, good.uid].into(), now);
        readmission.record_active(&usable, now + sec(60));
        assert_eq!(readmission.next_due(), Some(now + sec(61)));
        // An update counts at once, and a worker that is no longer listed does not return.
        readmission.record_listed(
            WorkerMetadata {
                pid: 3,
                ..bad.clone()
            },
            now,
        );
        assert_eq!(readmission.next_due(), None);
        readmission.forget(bad.uid);
        readmission.record_active(&none, now);
        assert_eq!(readmission.take_due(now + sec(1)), [good]);
    }

    #[test]
    fn worker_added_by_others_is_not_readmitted() {
        let (mut readmission, now, one) = (Readmission::default(), Instant::now(), worker(1));
        readmission.record_listed(one.clone(), now);
        readmission.record_active(&BTreeSet::new(), now);
        readmission.record_active(&[one.uid].into(), now);
        assert_eq!(
            (readmission.next_due(), readmission.take_due(now + sec(9))),
            (None, vec![])
        );
    }
}
