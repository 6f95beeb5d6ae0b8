//! The workers that were heard of. Pure: what is heard, and what time it is, is given.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::record::{LivenessRecord, ServiceRecord};
use crate::{WorkerMetadata, WorkerUid};

/// So many workers are kept. A flood of them cannot take more memory than that.
pub(super) const MANY: usize = 1024;
/// How long it is not doubted again that a worker is there.
const DOUBT: Duration = Duration::from_secs(3);

/// The workers that were heard of.
#[derive(Debug, Default)]
pub(super) struct ServiceCache {
    workers: BTreeMap<WorkerUid, CachedService>,
    /// Some were not kept, since when there was room.
    pub(super) is_full: bool,
}

#[derive(Debug)]
struct CachedService {
    worker: WorkerMetadata,
    place: SocketAddr,
    /// Its last sign of life.
    beat: Option<LivenessRecord>,
    /// When it is gone, unless it is heard of again.
    until: Option<Instant>,
    /// It was silent for too long. It is kept for a while, so that it does not come back by what it has said before.
    is_gone: bool,
    doubted: Option<Instant>,
}

impl ServiceCache {
    /// Where a worker is called at.
    pub(super) fn place(&self, uid: WorkerUid) -> Option<SocketAddr> {
        self.workers.get(&uid).map(|one| one.place)
    }

    /// This is said of a worker, who is there. Returns whether that is news.
    pub(super) fn hear(&mut self, said: ServiceRecord, place: SocketAddr, now: Instant) -> bool {
        let ServiceRecord {
            worker,
            address: _,
            beat,
        } = said;
        let uid = worker.uid;
        let until = beat.as_ref().map(|beat| now + beat.ttl);
        if let Some(one) = self.workers.get_mut(&uid) {
            // What is heard again is no sign of life.
            let is_alive = beat.is_none() || beat != one.beat;
            if is_alive {
                one.until = until;
            }
            let is_new = one.worker != worker || (one.is_gone && is_alive);
            one.is_gone &= !is_alive;
            (one.worker, one.place, one.beat) = (worker, place, beat);
            return is_new && !one.is_gone;
        }
        if self.workers.len() >= MANY && !self.make_room() {
            self.is_full = true;
            return false;
        }
        self.workers.insert(
            uid,
            CachedService {
                worker,
                place,
                beat,
                until,
                is_gone: false,
                doubted: None,
            },
        );
        true
    }

    /// A worker is gone, or no more what it was. Returns whether it was there.
    pub(super) fn lose(&mut self, uid: WorkerUid) -> bool {
        self.is_full = false;
        self.workers.remove(&uid).is_some_and(|one| !one.is_gone)
    }

    /// Those that were silent for too long are gone. Returns whether there are such.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let mut is_news = false;
        for one in self.workers.values_mut().filter(|one| !one.is_gone) {
            one.is_gone = one.until.is_some_and(|until| until <= now);
            is_news |= one.is_gone;
        }
        is_news
    }

    /// Who is not heard of again by then is gone: something may have been missed.
    pub(super) fn confirm(&mut self, by: Instant) {
        for one in self.workers.values_mut() {
            one.until = Some(one.until.map_or(by, |until| until.min(by)));
            // Also by what was said before.
            one.beat = None;
        }
    }

    /// Somebody could not reach a worker. Returns whether it is to be asked if it is there.
    pub(super) fn request_recheck(&mut self, uid: WorkerUid, now: Instant) -> bool {
        let Some(one) = self.workers.get_mut(&uid).filter(|one| !one.is_gone) else {
            return false;
        };
        if one.doubted.is_some_and(|doubted| now < doubted + DOUBT) {
            return false;
        }
        one.doubted = Some(now);
        true
    }

    /// Those that are there.
    pub(super) fn workers(&self) -> impl Iterator<Item = WorkerMetadata> {
        self.workers
            .values()
            .filter(|one| !one.is_gone)
            .map(|one| one.worker.clone())
    }

    /// Forgets one that is gone, if there is one.
    fn make_room(&mut self) -> bool {
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

    fn said(uid: WorkerUid, count: Option<u64>) -> ServiceRecord {
        let beat = count.map(|count| LivenessRecord { count, ttl: TTL });
        let worker = WorkerMetadata {
            uid,
            ..WorkerMetadata::at(place().to_string())
        };
        ServiceRecord {
            worker,
            address: None,
            beat,
        }
    }

    fn place() -> SocketAddr {
        "10.0.0.1:7".parse().unwrap()
    }

    #[test]
    fn a_worker_lives_by_its_beats() {
        let (mut seen, uid, now) = (ServiceCache::default(), WorkerUid::new(), Instant::now());
        assert!(seen.hear(said(uid, Some(1)), place(), now));
        assert!(
            !seen.hear(said(uid, Some(2)), place(), now + TTL / 2),
            "nothing else is said of it"
        );
        assert!(!seen.expire(now + TTL));
        // The same again is an echo.
        assert!(!seen.hear(said(uid, Some(2)), place(), now + TTL));
        assert!(seen.expire(now + TTL * 2) && seen.workers().count() == 0);
        assert!(
            !seen.hear(said(uid, Some(2)), place(), now + TTL * 2),
            "nor does that bring it back"
        );
        assert_eq!(seen.workers().count(), 0);
        assert!(
            seen.hear(said(uid, Some(3)), place(), now + TTL * 2) && seen.workers().count() == 1
        );
        let mut changed = said(uid, Some(3));
        changed.worker.secure = true;
        assert!(seen.hear(changed, place(), now + TTL * 2));
        assert!(seen.lose(uid) && !seen.lose(uid));
        assert_eq!(seen.workers().count(), 0);
    }

    #[test]
    fn one_that_gives_no_signs_stays_until_it_is_lost_or_must_be_confirmed() {
        let (mut seen, uid, now) = (ServiceCache::default(), WorkerUid::new(), Instant::now());
        seen.hear(said(uid, None), place(), now);
        assert!(!seen.expire(now + TTL * 100));
        seen.confirm(now + TTL);
        seen.hear(said(uid, None), place(), now);
        assert!(!seen.expire(now + TTL * 2), "it was heard again");
        seen.confirm(now + TTL);
        assert!(seen.expire(now + TTL));
        // With signs, the last one is enough.
        seen.hear(said(uid, Some(1)), place(), now);
        seen.confirm(now + TTL / 2);
        seen.hear(said(uid, Some(1)), place(), now + TTL / 4);
        assert!(!seen.expire(now + TTL));
    }

    #[test]
    fn a_flood_takes_no_more_room_than_there_is() {
        let (mut seen, now) = (ServiceCache::default(), Instant::now());
        let first = WorkerUid::new();
        assert!(seen.hear(said(first, Some(1)), place(), now));
        for _ in 0..3 * MANY {
            seen.hear(said(WorkerUid::new(), None), place(), now);
        }
        assert_eq!(seen.workers().count(), MANY);
        assert!(
            seen.is_full && seen.workers().any(|worker| worker.uid == first),
            "who was there stays"
        );
        // The place of one that is gone is taken by another.
        assert!(seen.expire(now + TTL));
        assert!(seen.hear(said(WorkerUid::new(), None), place(), now));
        assert!(!seen.hear(said(WorkerUid::new(), None), place(), now));
    }

    #[test]
    fn it_is_not_asked_again_and_again_who_is_there() {
        let (mut seen, uid, now) = (ServiceCache::default(), WorkerUid::new(), Instant::now());
        assert!(!seen.request_recheck(uid, now), "nobody knows it");
        seen.hear(said(uid, None), place(), now);
        assert!(
            seen.request_recheck(uid, now)
                && !seen.request_recheck(uid, now + DOUBT / 2)
                && seen.request_recheck(uid, now + DOUBT)
        );
    }
}
