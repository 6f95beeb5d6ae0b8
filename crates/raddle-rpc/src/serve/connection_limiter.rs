//! Who has come in, and who has to make room for others.
//!
//! Every connection takes descriptors, of which a process has so many. If there are too many connections, the one that was quiet for longest has to go, of
//! those that wait for nothing: its client comes again when it has something to say. Those who wait for an answer stay.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::authorizer::{Authorizer, PeerOrigin};

/// Connections at a time, where the system does not set a narrower limit.
const MOST: u64 = 4096;
/// Where it does, there are at least so many.
const FEWEST: u64 = 16;
/// Descriptors that a connection takes: its own, and one for each direction that is waited for; and some for what routines do with it.
const EACH: u64 = 4;
/// Descriptors that are left for all else: those at the door, those who are leaving, and the process itself.
const OTHERS: u64 = 512;
/// How many may take their time to leave. Who is in nobody's way has heard of it by then.
const LEAVING: usize = 64;

/// A connection.
pub(super) trait ConnectionPermit: Send + Sync {
    /// Where it comes from.
    fn from(&self) -> PeerOrigin;

    /// When it was last heard, by the clock of the guests.
    fn heard(&self) -> u64;

    /// Has it go, unless it waits for something. Returns whether it goes.
    fn make_room(&self) -> bool;

    /// Ends it, whether it has heard that it has to go or not.
    fn hang_up(&self);
}

/// The connections of a worker.
pub(super) struct ConnectionLimiter {
    most: usize,
    open: Mutex<OpenConnections>,
    clock: ArrivalClock,
    gate: Arc<Authorizer>,
}

#[derive(Default)]
struct OpenConnections {
    present: Vec<Weak<dyn ConnectionPermit>>,
    /// Those who have to go, the first of them first.
    leaving: VecDeque<Weak<dyn ConnectionPermit>>,
}

/// Goes on with each guest that comes: enough to tell who was heard before whom, and cheaper than the time.
#[derive(Clone, Default)]
pub(super) struct ArrivalClock(Arc<AtomicU64>);

impl ArrivalClock {
    pub(super) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl ConnectionLimiter {
    pub(super) fn new(most: usize, gate: Arc<Authorizer>) -> Arc<Self> {
        Arc::new(Self {
            most,
            open: Mutex::default(),
            clock: ArrivalClock::default(),
            gate,
        })
    }

    /// As many as this process has descriptors for.
    pub(super) fn within_limits(gate: Arc<Authorizer>) -> Arc<Self> {
        let most = (descriptors().saturating_sub(OTHERS) / EACH).clamp(FEWEST, MOST);
        Self::new(most as usize, gate)
    }

    pub(super) fn clock(&self) -> ArrivalClock {
        self.clock.clone()
    }

    /// Lets somebody in. Returns whether there is room, which somebody else may have had to make.
    pub(super) fn admit(&self, guest: &Arc<impl ConnectionPermit + 'static>) -> bool {
        self.clock.0.fetch_add(1, Ordering::Relaxed);
        let mut open = self.lock();
        open.present.retain(|guest| guest.strong_count() > 0);
        let has_room = open.present.len() < self.most || self.make_room(&mut open);
        if has_room {
            let guest = Arc::downgrade(guest);
            open.present.push(guest);
        } else {
            self.gate.crowd_out(guest.from());
        }
        has_room
    }

    fn make_room(&self, open: &mut OpenConnections) -> bool {
        let present = open.present.iter().enumerate();
        let mut quiet: Vec<_> = present
            .filter_map(|(at, one)| Some((at, one.upgrade()?)))
            .collect();
        quiet.sort_by_key(|(_, one)| one.heard());
        let Some((at, goes)) = quiet.into_iter().find(|(_, one)| one.make_room()) else {
            return false;
        };
        self.gate.crowd_out(goes.from());
        open.leaving.push_back(open.present.remove(at));
        open.leaving.retain(|one| one.strong_count() > 0);
        if open.leaving.len() > LEAVING {
            open.leaving
                .pop_front()
                .and_then(|one| one.upgrade())
                .iter()
                .for_each(|one| one.hang_up());
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many this process may have, after it has asked for as many as it needs.
fn descriptors() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = MOST * EACH + OTHERS;
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
        heard: u64,
        is_busy: bool,
        is_gone: AtomicBool,
        is_cut: AtomicBool,
    }

    impl ConnectionPermit for OpenConnection {
        fn from(&self) -> PeerOrigin {
            None
        }

        fn heard(&self) -> u64 {
            self.heard
        }

        fn make_room(&self) -> bool {
            !self.is_busy && !self.is_gone.swap(true, Ordering::Relaxed)
        }

        fn hang_up(&self) {
            self.is_cut.store(true, Ordering::Relaxed);
        }
    }

    fn one(heard: u64, is_busy: bool) -> Arc<OpenConnection> {
        Arc::new(OpenConnection {
            heard,
            is_busy,
            is_gone: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
        })
    }

    #[test]
    fn who_waits_for_nothing_and_was_quiet_for_longest_makes_room() {
        let gate = Arc::new(Authorizer::default());
        let guests = ConnectionLimiter::new(3, Arc::clone(&gate));
        let present = [one(2, false), one(0, true), one(1, false)];
        assert!(present.iter().all(|one| guests.admit(one)));
        let new = one(9, true);
        assert!(guests.admit(&new));
        let gone = || {
            present
                .each_ref()
                .map(|one| one.is_gone.load(Ordering::Relaxed))
        };
        assert_eq!(gone(), [false, false, true]);
        let newer = one(9, true);
        assert!(guests.admit(&newer));
        assert_eq!(gone(), [true, false, true]);
        assert!(
            !guests.admit(&one(9, true)),
            "all of them wait for something"
        );
        drop(new);
        assert!(guests.admit(&one(9, true)), "one has gone by itself");
        assert_eq!(gate.refused()["crowded"], 3);
    }

    #[test]
    fn who_takes_too_long_to_leave_is_hung_up_on() {
        let guests = ConnectionLimiter::new(1, Arc::default());
        let all: Vec<_> = (0..LEAVING as u64 + 3)
            .map(|heard| one(heard, false))
            .collect();
        assert!(all.iter().all(|one| guests.admit(one)));
        let is_cut = |one: &Arc<OpenConnection>| one.is_cut.load(Ordering::Relaxed);
        // One of them is still there, and one leaves for each that is cut off.
        assert_eq!(all.iter().filter(|one| is_cut(one)).count(), 2);
        assert!(is_cut(&all[0]) && is_cut(&all[1]));
    }
}
