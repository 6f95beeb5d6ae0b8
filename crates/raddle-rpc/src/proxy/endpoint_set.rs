//! Who comes back that was found to be no use, and when. Pure: what is told, and what time it is, is given.
//!
//! A balancer removes a worker with which nothing can be begun: its certificate is wrong, or what it says makes no sense. Its discovery goes on saying that
//! it is there, and has nothing new to say when it is of use again, after certificates were renewed or somebody was started anew at the same
//! address. So whoever is said to be there is tried again, after longer and longer pauses.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use raddle_discovery::{WorkerMetadata, WorkerUid};
use raddle_model::ExponentialBackoff;
use tokio::time::Instant;

/// How long a worker is left out, the first time.
const FIRST: Duration = Duration::from_secs(1);
/// The longest that it is left out. One that was of use for so long begins anew.
const LONGEST: Duration = Duration::from_secs(60);
const BACKOFF: ExponentialBackoff = ExponentialBackoff::new(FIRST, LONGEST);

/// The workers that a discovery tells of.
#[derive(Debug, Default)]
pub(super) struct EndpointSet(BTreeMap<WorkerUid, ReportedWorker>);

#[derive(Debug)]
struct ReportedWorker {
    worker: WorkerMetadata,
    /// How often in a row it was removed.
    removals: u32,
    place: EndpointSlot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndpointSlot {
    /// It is called.
    In { since: Instant },
    /// It is no use, and tried again then.
    Out { until: Instant },
}

impl EndpointSet {
    /// A worker is said to be there, or something else is said of it: what was thought of it before counts no more.
    pub(super) fn hear(&mut self, worker: WorkerMetadata, now: Instant) {
        self.0.insert(
            worker.uid,
            ReportedWorker {
                worker,
                removals: 0,
                place: EndpointSlot::In { since: now },
            },
        );
    }

    /// It is said to be gone.
    pub(super) fn forget(&mut self, uid: WorkerUid) {
        self.0.remove(&uid);
    }

    /// These are called now: who is not, and is said to be there, was removed.
    pub(super) fn look(&mut self, called: &BTreeSet<WorkerUid>, now: Instant) {
        for (uid, told) in &mut self.0 {
            match told.place {
                EndpointSlot::In { since } if !called.contains(uid) => {
                    told.removals = if now.duration_since(since) >= LONGEST {
                        1
                    } else {
                        told.removals + 1
                    };
                    told.place = EndpointSlot::Out {
                        until: now + BACKOFF.pause(told.removals),
                    };
                }
                EndpointSlot::Out { .. } if called.contains(uid) => {
                    told.place = EndpointSlot::In { since: now }
                }
                EndpointSlot::In { .. } | EndpointSlot::Out { .. } => {}
            }
        }
    }

    /// When the next comes back.
    pub(super) fn due(&self) -> Option<Instant> {
        let until = |told: &ReportedWorker| {
            if let EndpointSlot::Out { until } = told.place {
                Some(until)
            } else {
                None
            }
        };
        self.0.values().filter_map(until).min()
    }

    /// Those who come back now.
    pub(super) fn back(&mut self, now: Instant) -> Vec<WorkerMetadata> {
        let is_due = |told: &&mut ReportedWorker| matches!(told.place, EndpointSlot::Out { until } if until <= now);
        let back = self.0.values_mut().filter(is_due).map(|told| {
            told.place = EndpointSlot::In { since: now };
            told.worker.clone()
        });
        back.collect()
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
    fn who_is_removed_comes_back_after_longer_and_longer_pauses() {
        let (mut returns, mut now, nobody) =
            (EndpointSet::default(), Instant::now(), BTreeSet::new());
        let (bad, good) = (worker(1), worker(2));
        returns.hear(bad.clone(), now);
        returns.hear(good.clone(), now);
        let well: BTreeSet<_> = [good.uid].into();
        for pause in [1, 2, 4, 8, 16, 32, 60, 60].map(sec) {
            returns.look(&well, now);
            assert_eq!(returns.due(), Some(now + pause));
            assert_eq!(returns.back(now + pause / 2), []);
            now += pause;
            assert_eq!(returns.back(now), std::slice::from_ref(&bad));
            assert_eq!(returns.due(), None);
        }
        // One that was of use for a while has a good name again.
        returns.look(&[bad.uid, good.uid].into(), now);
        returns.look(&well, now + sec(60));
        assert_eq!(returns.due(), Some(now + sec(61)));
        // What is new of it counts at once, and what is gone does not come back.
        returns.hear(
            WorkerMetadata {
                pid: 3,
                ..bad.clone()
            },
            now,
        );
        assert_eq!(returns.due(), None);
        returns.forget(bad.uid);
        returns.look(&nobody, now);
        assert_eq!(returns.back(now + sec(1)), [good]);
    }

    #[test]
    fn who_was_put_back_by_others_is_there() {
        let (mut returns, now, one) = (EndpointSet::default(), Instant::now(), worker(1));
        returns.hear(one.clone(), now);
        returns.look(&BTreeSet::new(), now);
        returns.look(&[one.uid].into(), now);
        assert_eq!((returns.due(), returns.back(now + sec(9))), (None, vec![]));
    }
}
