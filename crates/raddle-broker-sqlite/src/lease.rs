//! Until when workers live. Kept in the shared page, so that renewing a lease takes a store and no lock: a process that sits on the
//! database for longer than a lease lasts takes nothing from those that wait for it.
//!
//! **Renewing** is to store the new end, and then to look at the clock once more: if the old end has passed by then, somebody may have
//! decided by it, and the lease counts as lost. Whoever takes over looks at the clock first and at the end after, with a margin in
//! between. So no two of them can both be right, wherever either is held up.
//!
//! **A worker without a slot** has lost it with the file: somebody deleted that, or copied the database without it. It is given
//! [`GRACE_NANOS`] from the making of the new file, and enters itself again with its next beat.

mod liveness_lock;
pub(super) mod renewer;

use std::{
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use raddle_model::{
    Tid,
    worker::{Heartbeat, WorkerStatus},
};

use super::{
    clock,
    shared_state::{SharedState, WorkerSlot},
};
use raddle_broker::Result;

/// Between the moment a worker's own runners give up and the moment others take over, so that no task runs twice at once.
const TAKEOVER_MARGIN_NANOS: i64 = 250_000_000;
/// How long workers have to enter themselves into a new file. More than one beat of any lease up to 40 s.
const GRACE_NANOS: i64 = 10_000_000_000;
/// The end of a lease that was not said yet, and of one whose worker knows that it is over.
const UNSAID: i64 = 0;
const LONG_AGO: i64 = 1;
/// How many workers a beat looks for at most: each costs a system call, and others look too.
const LOOKED_FOR: usize = 64;

pub(super) struct LeaseTable {
    database: PathBuf,
    /// This boot of the machine. Leases of another boot are void: its clock began anew.
    pub(super) boot: i64,
    page: Mutex<Arc<SharedState>>,
    /// What the processes of this handle's workers hold as long as they live.
    tethers: Mutex<Vec<(Tid, OwnedFd)>>,
    /// Whose turn it is to be looked for.
    turn: AtomicUsize,
    /// The making of the page whose grace was over when this was last asked.
    looked_beside: AtomicI64,
}

/// A worker's entry in the database.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerRow {
    pub(super) worker: Tid,
    pub(super) boot: i64,
    /// The end of the lease that it was entered with.
    pub(super) until: i64,
}

/// What is known of a worker's life.
#[derive(Clone, Debug)]
pub(super) struct WorkerLease {
    pub(super) until: i64,
    /// Its processes are known to be gone.
    is_dead: bool,
    /// What it said last.
    pub(super) heartbeat: Heartbeat,
}

/// What became of an attempt to renew a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenewalOutcome {
    Renewed,
    /// It had run out.
    Late,
    /// The page does not know of it.
    Missing,
}

impl WorkerLease {
    /// Whether the worker counts as alive. It does until others may take over.
    pub(super) fn holds(&self, now: i64) -> bool {
        !self.is_dead && self.until >= now.saturating_sub(TAKEOVER_MARGIN_NANOS)
    }
}

impl LeaseTable {
    pub(super) fn new(database: PathBuf, boot: i64, page: Arc<SharedState>) -> Self {
        let (page, tethers) = (Mutex::new(page), Mutex::default());
        Self {
            database,
            boot,
            page,
            tethers,
            turn: AtomicUsize::new(0),
            looked_beside: AtomicI64::new(0),
        }
    }

    fn page(&self) -> Arc<SharedState> {
        Arc::clone(&self.page.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tethers(&self) -> MutexGuard<'_, Vec<(Tid, OwnedFd)>> {
        self.tethers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes over to the file that others find, if it is not the one that is mapped.
    pub(super) fn refresh(&self) {
        // Without the database there are no others, and nothing to be made for them.
        if self.page().is_current() || !self.database.exists() {
            return;
        }
        match SharedState::open(&self.database, self.boot) {
            Ok(page) => *self.page.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(page),
            Err(error) => {
                tracing::warn!(%error, "the file of leases is gone, and there can be no other")
            }
        }
    }

    /// Gives a worker a lease until `until`.
    pub(super) fn enter(&self, worker: Tid, until: i64, heartbeat: Heartbeat) -> Result<()> {
        let page = self.page();
        let slot = loop {
            match page.slots().iter().find(|slot| take(slot, worker)) {
                Some(slot) => break slot,
                None => page.grow()?,
            }
        };
        say(slot, heartbeat);
        slot.until.store(until, Ordering::SeqCst);
        Ok(())
    }

    /// Forgets a worker that is not in the database any more.
    pub(super) fn leave(&self, worker: Tid) {
        if let Some(slot) = find(&self.page(), worker) {
            vacate(slot, worker);
        }
        self.release_liveness_lock(worker);
    }

    /// Renews a lease for `ttl` from now.
    pub(super) fn renew(&self, worker: Tid, ttl: Duration, heartbeat: Heartbeat) -> RenewalOutcome {
        let page = self.page();
        let Some(slot) = find(&page, worker) else {
            return RenewalOutcome::Missing;
        };
        say(slot, heartbeat);
        let end = slot.until.load(Ordering::SeqCst);
        // Never back: a process that was stopped right here must not shorten the lease of whoever has the slot by then.
        slot.until
            .fetch_max(end_of(clock::machine(), ttl), Ordering::SeqCst);
        if clock::machine() <= end {
            return RenewalOutcome::Renewed;
        }
        // Runners have given up: others need not wait for the lease to run out once more.
        let stored = slot.until.load(Ordering::SeqCst);
        if owner(slot) == Some(worker) {
            let _ =
                slot.until
                    .compare_exchange(stored, LONG_AGO, Ordering::SeqCst, Ordering::SeqCst);
        }
        RenewalOutcome::Late
    }

    /// What is known of a worker that is in the database.
    pub(super) fn of(&self, entered: WorkerRow) -> WorkerLease {
        let WorkerRow {
            worker,
            boot,
            until,
        } = entered;
        if boot != self.boot {
            return WorkerLease {
                until: i64::MIN,
                is_dead: true,
                heartbeat: Heartbeat::default(),
            };
        }
        let page = self.page();
        let slot = find(&page, worker).map(|slot| (slot, slot.until.load(Ordering::SeqCst)));
        match slot.filter(|(_, end)| *end != UNSAID) {
            Some((slot, end)) => WorkerLease {
                until: end.max(until),
                is_dead: is_dead(&page, slot, worker),
                heartbeat: said(slot),
            },
            None => {
                let until = until.max(page.made_at().saturating_add(GRACE_NANOS));
                WorkerLease {
                    until,
                    is_dead: false,
                    heartbeat: Heartbeat::default(),
                }
            }
        }
    }

    /// Whether it is worth asking the database whose tasks can be taken back.
    pub(super) fn is_anyone_gone(&self) -> bool {
        let (page, now) = (self.page(), clock::machine());
        let slots = page.slots();
        // Who has not entered a new file by now will not, and is found in the database alone. One look is enough.
        let made_at = page.made_at();
        if now > made_at.saturating_add(GRACE_NANOS)
            && self.looked_beside.swap(made_at, Ordering::Relaxed) != made_at
        {
            return true;
        }
        let has_run_out = |slot: &WorkerSlot| {
            slot.until.load(Ordering::SeqCst) < now.saturating_sub(TAKEOVER_MARGIN_NANOS)
        };
        let turn = self.turn.fetch_add(LOOKED_FOR, Ordering::Relaxed) % slots.len();
        let mut looked_for = slots
            .iter()
            .cycle()
            .skip(turn)
            .take(LOOKED_FOR.min(slots.len()));
        slots
            .iter()
            .any(|slot| owner(slot).is_some() && has_run_out(slot))
            || looked_for.any(|slot| owner(slot).is_some_and(|worker| is_dead(&page, slot, worker)))
    }

    /// Vacates slots of workers that are not `known` to the database: their registration was undone, or somebody was killed after he had
    /// written that they are gone. To be called by who can write there.
    pub(super) fn prune(&self, known: &[WorkerRow], now: i64) {
        let page = self.page();
        for slot in page.slots() {
            let Some(worker) = owner(slot) else { continue };
            let has_run_out =
                slot.until.load(Ordering::SeqCst) < now || is_dead(&page, slot, worker);
            if has_run_out && !known.iter().any(|entered| entered.worker == worker) {
                vacate(slot, worker);
            }
        }
    }

    /// Has this process, and those that it starts from now on, hold what shows that the worker is not dead. Says whether it does, and did not before.
    pub(super) fn acquire_liveness_lock(&self, worker: Tid) -> bool {
        let page = self.page();
        let Some(slot) = find(&page, worker) else {
            return false;
        };
        // Nobody can take a lock that is held, not even who holds it.
        let Some(tether) = page
            .open_again()
            .and_then(|file| liveness_lock::acquire_liveness_lock(file, worker))
        else {
            return false;
        };
        self.tethers().push((worker, tether));
        slot.tied
            .store(clock::machine() as u32 | 1, Ordering::SeqCst);
        true
    }

    /// Has a lease end `ttl` from now, if it would end later.
    pub(super) fn shorten(&self, worker: Tid, ttl: Duration) {
        let page = self.page();
        let Some(slot) = find(&page, worker) else {
            return;
        };
        let (end, sooner) = (
            slot.until.load(Ordering::SeqCst),
            end_of(clock::machine(), ttl),
        );
        if owner(slot) == Some(worker) && sooner < end {
            // Only what was seen: by now the slot may be another's.
            let _ = slot
                .until
                .compare_exchange(end, sooner, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Lets go of it, of a worker that is over.
    pub(super) fn release_liveness_lock(&self, worker: Tid) {
        self.tethers().retain(|(tied, _)| *tied != worker);
    }
}

/// The end of a lease that begins now.
pub(super) fn end_of(now: i64, ttl: Duration) -> i64 {
    now.saturating_add(i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX))
}

fn find(page: &SharedState, worker: Tid) -> Option<&WorkerSlot> {
    page.slots().iter().find(|slot| owner(slot) == Some(worker))
}

fn owner(slot: &WorkerSlot) -> Option<Tid> {
    Tid::from_u64(slot.worker.load(Ordering::SeqCst) as u64)
}

/// Takes a slot that is nobody's, unless somebody else is faster.
fn take(slot: &WorkerSlot, worker: Tid) -> bool {
    slot.worker
        .compare_exchange(0, worker.as_i64(), Ordering::SeqCst, Ordering::SeqCst)
        .is_ok()
}

/// Leaves a slot as one that was never used. Several may do so at once, and the slot be somebody else's before the last is done: what
/// they change is only what they have seen.
fn vacate(slot: &WorkerSlot, worker: Tid) {
    let until = slot.until.load(Ordering::SeqCst);
    if owner(slot) == Some(worker) {
        slot.tied.store(0, Ordering::SeqCst);
        let _ = slot
            .until
            .compare_exchange(until, UNSAID, Ordering::SeqCst, Ordering::SeqCst);
        let _ =
            slot.worker
                .compare_exchange(worker.as_i64(), 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

fn is_dead(page: &SharedState, slot: &WorkerSlot, worker: Tid) -> bool {
    let tied = slot.tied.load(Ordering::SeqCst);
    // It may have been let go of in between by a worker that lives on, and that has tied itself anew since.
    tied != 0
        && liveness_lock::is_free(page.file(), worker)
        && slot.tied.load(Ordering::SeqCst) == tied
}

fn say(slot: &WorkerSlot, heartbeat: Heartbeat) {
    slot.status
        .store((heartbeat.status as u8).into(), Ordering::Relaxed);
    slot.busy.store(heartbeat.busy, Ordering::Relaxed);
    slot.spawned
        .store(heartbeat.spawned_count, Ordering::Relaxed);
}

fn said(slot: &WorkerSlot) -> Heartbeat {
    Heartbeat {
        status: WorkerStatus::from_u8(slot.status.load(Ordering::Relaxed) as u8),
        busy: slot.busy.load(Ordering::Relaxed),
        spawned_count: slot.spawned.load(Ordering::Relaxed),
    }
}
