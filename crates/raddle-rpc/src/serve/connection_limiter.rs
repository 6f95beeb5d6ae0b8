//! Limits the number of connections, and evicts idle ones.
//!
//! Each connection takes descriptors, and a process has a limited number of them. When the limit is
//! reached, the connection that was idle for longest is evicted, of those without calls in flight:
//! its client reconnects for its next call.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::authorizer::{Authorizer, PeerOrigin};

/// Largest number of connections, where the kernel's descriptor limit does not set a lower one.
const MAX_CONNECTIONS: u64 = 4096;
/// Lower bound on the limit.
const MIN_CONNECTIONS: u64 = 16;
/// Descriptors per connection: its own, one per direction that is waited for, and some for what its
/// calls open.
const DESCRIPTORS_PER_CONNECTION: u64 = 4;
/// Descriptors reserved for everything else: pending and leaving connections, and the process
/// itself.
const RESERVED_DESCRIPTORS: u64 = 512;
/// Number of evicted connections that may take their time to close. By then the first ones have
/// seen the eviction.
const MAX_LEAVING: usize = 64;

/// A connection, as the limiter sees it.
pub(super) trait EvictableConnection: Send + Sync {
    /// The peer's IP address.
    fn peer_ip(&self) -> PeerOrigin;

    /// When data was last received, by the limiter's clock.
    fn last_active(&self) -> u64;

    /// Evicts the connection unless it has calls in flight. Returns whether it was evicted.
    fn evict(&self) -> bool;

    /// Closes the connection, whether its peer has seen the eviction or not.
    fn close(&self);
}

/// Limits the connections of a worker.
pub(super) struct ConnectionLimiter {
    limit: usize,
    open: Mutex<OpenConnections>,
    clock: ActivityClock,
    authorizer: Arc<Authorizer>,
}

#[derive(Default)]
struct OpenConnections {
    present: Vec<Weak<dyn EvictableConnection>>,
    /// Evicted connections that are not closed yet, oldest first.
    leaving: VecDeque<Weak<dyn EvictableConnection>>,
}

/// A logical clock that advances with each new connection: enough to order connections by activity,
/// and cheaper than the time.
#[derive(Clone, Default)]
pub(super) struct ActivityClock(Arc<AtomicU64>);

impl ActivityClock {
    pub(super) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl ConnectionLimiter {
    pub(super) fn new(limit: usize, authorizer: Arc<Authorizer>) -> Arc<Self> {
        Arc::new(Self {
            limit,
            open: Mutex::default(),
            clock: ActivityClock::default(),
            authorizer,
        })
    }

    /// A limit derived from this process's descriptor limit.
    pub(super) fn within_limits(authorizer: Arc<Authorizer>) -> Arc<Self> {
        let limit = (raise_descriptor_limit().saturating_sub(RESERVED_DESCRIPTORS)
            / DESCRIPTORS_PER_CONNECTION)
            .clamp(MIN_CONNECTIONS, MAX_CONNECTIONS);
        Self::new(limit as usize, authorizer)
    }

    pub(super) fn clock(&self) -> ActivityClock {
        self.clock.clone()
    }

    /// Adds a connection, and evicts another if necessary. Returns whether there is room.
    pub(super) fn admit(&self, connection: &Arc<impl EvictableConnection + 'static>) -> bool {
        self.clock.0.fetch_add(1, Ordering::Relaxed);
        let mut open = self.lock();
        open.present
            .retain(|connection| connection.strong_count() > 0);
        let has_room = open.present.len() < self.limit || self.evict_one(&mut open);
        if has_room {
            let connection = Arc::downgrade(connection);
            open.present.push(connection);
        } else {
            self.authorizer.record_eviction(connection.peer_ip());
        }
        has_room
    }

    fn evict_one(&self, open: &mut OpenConnections) -> bool {
        let present = open.present.iter().enumerate();
        let mut idle: Vec<_> = present
            .filter_map(|(index, one)| Some((index, one.upgrade()?)))
            .collect();
        idle.sort_by_key(|(_, one)| one.last_active());
        let Some((index, evicted)) = idle.into_iter().find(|(_, one)| one.evict()) else {
            return false;
        };
        self.authorizer.record_eviction(evicted.peer_ip());
        open.leaving.push_back(open.present.remove(index));
        open.leaving.retain(|one| one.strong_count() > 0);
        if open.leaving.len() > MAX_LEAVING {
            open.leaving
                .pop_front()
                .and_then(|one| one.upgrade())
                .iter()
                .for_each(|one| one.close());
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The descriptor limit (`RLIMIT_NOFILE`) of this process, after raising it as far as needed and
/// allowed.
fn raise_descriptor_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = MAX_CONNECTIONS * DESCRIPTORS_PER_CONNECTION + RESERVED_DESCRIPTORS;
    let allowed = maximum.unwrap_or(wanted).min(wanted);
    let now = current.unwrap_or(wanted);
    if now < allowed
        && setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(allowed),
                maximum,
            },
        )
        .is_ok()
    {
        return allowed;
    }
    now
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    struct OpenConnection {
        last_active: u64,
        is_busy: bool,
        is_evicted: AtomicBool,
        is_closed: AtomicBool,
    }

    impl EvictableConnection for OpenConnection {
        fn peer_ip(&self) -> PeerOrigin {
            None
        }

        fn last_active(&self) -> u64 {
            self.last_active
        }

        fn evict(&self) -> bool {
            !self.is_busy && !self.is_evicted.swap(true, Ordering::Relaxed)
        }

        fn close(&self) {
            self.is_closed.store(true, Ordering::Relaxed);
        }
    }

    fn one(last_active: u64, is_busy: bool) -> Arc<OpenConnection> {
        Arc::new(OpenConnection {
            last_active,
            is_busy,
            is_evicted: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        })
    }

    #[test]
    fn evicts_the_connection_that_was_idle_for_longest() {
        let authorizer = Arc::new(Authorizer::default());
        let limiter = ConnectionLimiter::new(3, Arc::clone(&authorizer));
        let present = [one(2, false), one(0, true), one(1, false)];
        assert!(present.iter().all(|one| limiter.admit(one)));
        let new = one(9, true);
        assert!(limiter.admit(&new));
        let evicted = || {
            present
                .each_ref()
                .map(|one| one.is_evicted.load(Ordering::Relaxed))
        };
        assert_eq!(evicted(), [false, false, true]);
        let newer = one(9, true);
        assert!(limiter.admit(&newer));
        assert_eq!(evicted(), [true, false, true]);
        assert!(
            !limiter.admit(&one(9, true)),
            "all others have calls in flight"
        );
        drop(new);
        assert!(
            limiter.admit(&one(9, true)),
            "a connection has closed by itself"
        );
        assert_eq!(authorizer.refused()["crowded"], 3);
    }

    #[test]
    fn closes_evicted_connections_that_take_too_long() {
        let limiter = ConnectionLimiter::new(1, Arc::default());
        let all: Vec<_> = (0..MAX_LEAVING as u64 + 3)
            .map(|last_active| one(last_active, false))
            .collect();
        assert!(all.iter().all(|one| limiter.admit(one)));
        let is_closed = |one: &Arc<OpenConnection>| one.is_closed.load(Ordering::Relaxed);
        // The last one is open, and each further eviction closes the oldest evicted one.
        assert_eq!(all.iter().filter(|one| is_closed(one)).count(), 2);
        assert!(is_closed(&all[0]) && is_closed(&all[1]));
    }
}
