//! The known workers of the network. Pure: events and times are arguments.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::record::{LivenessRecord, ServiceRecord};
use crate::{WorkerMetadata, WorkerUid};

/// Largest number of workers, so that a flood takes bounded memory.
pub(super) const MAX_WORKERS: usize = 1024;
/// Shortest time between two rechecks of a worker.
const RECHECK_INTERVAL: Duration = Duration::from_secs(3);

/// The known workers.
#[derive(Debug, Default)]
pub(super) struct ServiceCache {
    workers: BTreeMap<WorkerUid, CachedService>,
    /// Workers were refused since there was last room.
    pub(super) is_full: bool,
}

#[derive(Debug)]
struct CachedService {
    worker: WorkerMetadata,
    address: SocketAddr,
    /// Its last liveness record.
    liveness: Option<LivenessRecord>,
    /// When it is gone, without a further announcement.
    until: Option<Instant>,
    /// It was silent for too long. Kept for a while, so that an echo of an old announcement does
    /// not bring it back.
    is_gone: bool,
    rechecked_at: Option<Instant>,
}

impl ServiceCache {
    /// The address that a worker is called at.
    pub(super) fn address(&self, uid: WorkerUid) -> Option<SocketAddr> {
        self.workers.get(&uid).map(|one| one.address)
    }

    /// Records an announcement. Returns whether the known workers have changed.
    pub(super) fn record(
        &mut self,
        record: ServiceRecord,
        address: SocketAddr,
        now: Instant,
    ) -> bool {
        let ServiceRecord {
            worker,
            address: _,
            liveness,
        } = record;
        let uid = worker.uid;
        let until = liveness.as_ref().map(|liveness| now + liveness.ttl);
        if let Some(one) = self.workers.get_mut(&uid) {
            // A repeated record is an echo, and no sign of life.
            let is_alive = liveness.is_none() || liveness != one.liveness;
            if is_alive {
                one.until = until;
            }
            let is_new = one.worker != worker || (one.is_gone && is_alive);
            one.is_gone &= !is_alive;
            (one.worker, one.address, one.liveness) = (worker, address, liveness);
            return is_new && !one.is_gone;
        }
        if self.workers.len() >= MAX_WORKERS && !self.evict_expired() {
            self.is_full = true;
            return false;
        }
        self.workers.insert(
            uid,
            CachedService {
                worker,
                address,
                liveness,
                until,
                is_gone: false,
                rechecked_at: None,
            },
        );
        true
    }

    /// Removes a worker that is gone or no longer valid. Returns whether it was known.
    pub(super) fn remove(&mut self, uid: WorkerUid) -> bool {
        self.is_full = false;
        self.workers.remove(&uid).is_some_and(|one| !one.is_gone)
    }

    /// Expires workers that were silent for too long. Returns whether there were any.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let mut has_changed = false;
        for one in self.workers.values_mut().filter(|one| !one.is_gone) {
            one.is_gone = one.until.is_some_and(|until| until <= now);
            has_changed |= one.is_gone;
        }
        has_changed
    }

    /// Expires workers that are not announced again by then, because events may have been lost.
    pub(super) fn require_confirmation(&mut self, by: Instant) {
        for one in self.workers.values_mut() {
            one.until = Some(one.until.map_or(by, |until| until.min(by)));
            // Without it, a repeated record counts as a sign of life.
            one.liveness = None;
        }
    }

    /// Requests a recheck of a worker that could not be reached. Returns whether to query the
    /// worker.
    pub(super) fn request_recheck(&mut self, uid: WorkerUid, now: Instant) -> bool {
        let Some(one) = self.workers.get_mut(&uid).filter(|one| !one.is_gone) else {
            return false;
        };
        if one
            .rechecked_at
            .is_some_and(|rechecked_at| now < rechecked_at + RECHECK_INTERVAL)
        {
            return false;
        }
        one.rechecked_at = Some(now);
        true
    }

    /// The known workers.
    pub(super) fn workers(&self) -> impl Iterator<Item = WorkerMetadata> {
        self.workers
            .values()
            .filter(|one| !one.is_gone)
            .map(|one| one.worker.clone())
    }

    /// Evicts an expired worker, if there is one.
    fn evict_expired(&mut self) -> bool {
        let gone = self
            .workers
            .iter()
            .find(|(_, one)| one.is_gone)
            .map(|(uid, _)| *uid);
        gone.is_some_and(|uid| self.workers.remove(&uid).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(15);

    fn sample_record(uid: WorkerUid, count: Option<u64>) -> ServiceRecord {
        let liveness = count.map(|count| LivenessRecord { count, ttl: TTL });
        let worker = WorkerMetadata {
            uid,
            ..WorkerMetadata::for_address(sample_address().to_string())
        };
        ServiceRecord {
            worker,
            address: None,
            liveness,
        }
    }

    fn sample_address() -> SocketAddr {
        "10.0.0.1:7".parse().unwrap()
    }

    #[test]
    fn worker_lives_by_its_announcements() {
        let (mut cache, uid, now) = (ServiceCache::default(), WorkerUid::new(), Instant::now());
        assert!(cache.record(sample_record(uid, Some(1)), sample_address(), now));
        assert!(
            !cache.record(sample_record(uid, Some(2)), sample_address(), now + TTL / 2),
            "nothing has changed"
        );
        assert!(!cache.expire(now + TTL));
        // A repeated record is an echo.
        assert!(!cache.record(sample_record(uid, Some(2)), sample_address(), now + TTL));
        assert!(cache.expire(now + TTL * 2) && cache.workers().count() == 0);
        assert!(
            !cache.record(sample_record(uid, Some(2)), sample_address(), now + TTL * 2),
            "an echo does not bring it back"
        );
        assert_eq!(cache.workers().count(), 0);
        assert!(
            cache.record(sample_record(uid, Some(3)), sample_address(), now + TTL * 2)
                && cache.workers().count() == 1
        );
        let mut changed = sample_record(uid, Some(3));
        changed.worker.secure = true;
        assert!(cache.record(changed, sample_address(), now + TTL * 2));
        assert!(cache.remove(uid) && !cache.remove(uid));
        assert_eq!(cache.workers().count(), 0);
    }

    #[test]
    fn worker_without_liveness_stays_until_removed_or_unconfirmed() {
        let (mut cache, uid, now) = (ServiceCache::default(), WorkerUid::new(), Instant::now());
        cache.record(sample_record(uid, None), sample_address(), now);
        assert!(!cache.expire(now + TTL * 100));
        cache.require_confirmation(now + TTL);
        cache.record(sample_record(uid, None), sample_address(), now);
        assert!(!cache.expire(now + TTL * 2), "it was announced again");
        cache.require_confirmation(now + TTL);
        assert!(cache.expire(now + TTL));
        // With liveness records, a repeated one suffices.
        cache.record(sample_record(uid, Some(1)), sample_address(), now);
        cache.require_confirmation(now + TTL / 2);
        cache.record(sample_record(uid, Some(1)), sample_address(), now + TTL / 4);
        assert!(!cache.expire(now + TTL));
    }

    #[test]
    fn flood_takes_bounded_memory() {
        let (mut cache, now) = (ServiceCache::default(), Instant::now());
        let first = WorkerUid::new();
        assert!(cache.record(sample_record(first, Some(1)), sample_address(), now));
        for _ in 0..3 * MAX_WORKERS {
            cache.record(sample_record(WorkerUid::new(), None), sample_address(), now);
        }
        assert_eq!(cache.workers().count(), MAX_WORKERS);
        assert!(
            cache.is_full && cache.workers().any(|worker| worker.uid == first),
            "known workers stay"
        );
        // An expired worker makes room for another.
        assert!(cache.expire(now + TTL));
        assert!(cache.record(sample_record(WorkerUid::new(), None), sample_address(), now));
        assert!(!cache.record(sample_record(WorkerUid::new(), None), sample_address(), now));
    }

    #[test]
    fn rechecks_are_rate_limited() {
        let (mut cache, uid, now) = (ServiceCache::default(), WorkerUid::new(), Instant::now());
        assert!(!cache.request_recheck(uid, now), "unknown");
        cache.record(sample_record(uid, None), sample_address(), now);
        assert!(
            cache.request_recheck(uid, now)
                && !cache.request_recheck(uid, now + RECHECK_INTERVAL / 2)
                && cache.request_recheck(uid, now + RECHECK_INTERVAL)
        );
    }
}
