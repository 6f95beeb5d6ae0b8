//! Leases of workers, in the shared mapping: a renewal is a store and takes no lock, so a process
//! that blocks the database for longer than a lease lasts makes no worker lose its lease.
//!
//! **Renewal** stores the new end and then reads the clock again: if the old end has passed by
//! then, another process may have acted on it, and the lease counts as lost. A process that takes
//! over reads the clock first and the end after, with a margin between. So the two can never both
//! succeed, wherever either is delayed.
//!
//! **A worker without a slot** has lost it with the file: it was deleted, or the database was
//! copied without it. The worker gets [`GRACE_NANOS`] from the creation of the new file, and
//! registers again with its next renewal.

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

/// The time between the moment a worker's runners give up and the moment others take over, so that
/// no task runs twice at once.
const TAKEOVER_MARGIN_NANOS: i64 = 250_000_000;
/// How long workers have to register in a new file: more than one renewal interval of any lease up
/// to 40 s.
const GRACE_NANOS: i64 = 10_000_000_000;
/// Values of `lease_end`: not set yet, and expired as its worker knows.
const NOT_SET: i64 = 0;
const EXPIRED: i64 = 1;
/// The most liveness locks that one renewal tests: each costs a system call, and other workers test
/// too.
const MAX_TESTED_LOCKS: usize = 64;

pub(super) struct LeaseTable {
    database: PathBuf,
    /// The boot id. Leases of another boot are void, because the monotonic clock restarted.
    pub(super) boot: i64,
    page: Mutex<Arc<SharedState>>,
    /// The liveness locks of this handle's workers.
    liveness_locks: Mutex<Vec<(Tid, OwnedFd)>>,
    /// The slot at which the next test of liveness locks starts.
    next_tested: AtomicUsize,
    /// The creation time of the file whose grace period was over at the last check.
    checked_file: AtomicI64,
}

/// A worker's row in the database.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerRow {
    pub(super) worker: Tid,
    pub(super) boot: i64,
    /// The end of the lease with which it registered.
    pub(super) until: i64,
}

/// A worker's lease and last heartbeat.
#[derive(Clone, Debug)]
pub(super) struct WorkerLease {
    pub(super) until: i64,
    /// Its liveness lock is free, so its processes are gone.
    is_dead: bool,
    /// The last heartbeat.
    pub(super) heartbeat: Heartbeat,
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenewalOutcome {
    Renewed,
    /// The lease had expired.
    Late,
    /// The worker has no slot.
    Missing,
}

impl WorkerLease {
    /// Whether the worker counts as alive, which it does until others may take over.
    pub(super) fn holds(&self, now: i64) -> bool {
        !self.is_dead && self.until >= now.saturating_sub(TAKEOVER_MARGIN_NANOS)
    }
}

impl LeaseTable {
    pub(super) fn new(database: PathBuf, boot: i64, page: Arc<SharedState>) -> Self {
        let (page, liveness_locks) = (Mutex::new(page), Mutex::default());
        Self {
            database,
            boot,
            page,
            liveness_locks,
            next_tested: AtomicUsize::new(0),
            checked_file: AtomicI64::new(0),
        }
    }

    fn page(&self) -> Arc<SharedState> {
        Arc::clone(&self.page.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn liveness_locks(&self) -> MutexGuard<'_, Vec<(Tid, OwnedFd)>> {
        self.liveness_locks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps the file that has the name now, if it is another than the mapped one.
    pub(super) fn refresh(&self) {
        // Without the database there are no other processes, and no file must be created for it.
        if self.page().is_current() || !self.database.exists() {
            return;
        }
        match SharedState::open(&self.database, self.boot) {
            Ok(page) => *self.page.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(page),
            Err(error) => {
                tracing::warn!(%error, "the state file is gone and cannot be created again")
            }
        }
    }

    /// Gives a worker a slot and a lease until `until`.
    pub(super) fn register(&self, worker: Tid, until: i64, heartbeat: Heartbeat) -> Result<()> {
        let page = self.page();
        let slot = loop {
            match page.slots().iter().find(|slot| claim_slot(slot, worker)) {
                Some(slot) => break slot,
                None => page.grow()?,
            }
        };
        store_heartbeat(slot, heartbeat);
        slot.until.store(until, Ordering::SeqCst);
        Ok(())
    }

    /// Clears the slot of a worker that is no longer in the database.
    pub(super) fn remove(&self, worker: Tid) {
        if let Some(slot) = find_slot(&self.page(), worker) {
            free_slot(slot, worker);
        }
        self.release_liveness_lock(worker);
    }

    /// Renews a lease for `ttl` from now.
    pub(super) fn renew(&self, worker: Tid, ttl: Duration, heartbeat: Heartbeat) -> RenewalOutcome {
        let page = self.page();
        let Some(slot) = find_slot(&page, worker) else {
            return RenewalOutcome::Missing;
        };
        store_heartbeat(slot, heartbeat);
        let end = slot.until.load(Ordering::SeqCst);
        // `fetch_max`: a process that was stopped right here must not shorten the lease of the
        // slot's next owner.
        slot.until
            .fetch_max(end_of(clock::machine(), ttl), Ordering::SeqCst);
        if clock::machine() <= end {
            return RenewalOutcome::Renewed;
        }
        // The runners have given up, so others need not wait for the lease to expire again.
        let stored = slot.until.load(Ordering::SeqCst);
        if owner_of(slot) == Some(worker) {
            let _ =
                slot.until
                    .compare_exchange(stored, EXPIRED, Ordering::SeqCst, Ordering::SeqCst);
        }
        RenewalOutcome::Late
    }

    /// The lease of a registered worker.
    pub(super) fn get(&self, entered: WorkerRow) -> WorkerLease {
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
        let slot = find_slot(&page, worker).map(|slot| (slot, slot.until.load(Ordering::SeqCst)));
        match slot.filter(|(_, end)| *end != NOT_SET) {
            Some((slot, end)) => WorkerLease {
                until: end.max(until),
                is_dead: is_dead(&page, slot, worker),
                heartbeat: load_heartbeat(slot),
            },
            None => {
                let until = until.max(page.created_at().saturating_add(GRACE_NANOS));
                WorkerLease {
                    until,
                    is_dead: false,
                    heartbeat: Heartbeat::default(),
                }
            }
        }
    }

    /// Whether the database should be asked for tasks to reclaim.
    pub(super) fn may_reclaim(&self) -> bool {
        let (page, now) = (self.page(), clock::machine());
        let slots = page.slots();
        // A worker that has not registered in a new file by now never will; only the database knows
        // it. One check is enough.
        let created_at = page.created_at();
        if now > created_at.saturating_add(GRACE_NANOS)
            && self.checked_file.swap(created_at, Ordering::Relaxed) != created_at
        {
            return true;
        }
        let has_run_out = |slot: &WorkerSlot| {
            slot.until.load(Ordering::SeqCst) < now.saturating_sub(TAKEOVER_MARGIN_NANOS)
        };
        let start = self
            .next_tested
            .fetch_add(MAX_TESTED_LOCKS, Ordering::Relaxed)
            % slots.len();
        let mut tested = slots
            .iter()
            .cycle()
            .skip(start)
            .take(MAX_TESTED_LOCKS.min(slots.len()));
        slots
            .iter()
            .any(|slot| owner_of(slot).is_some() && has_run_out(slot))
            || tested.any(|slot| owner_of(slot).is_some_and(|worker| is_dead(&page, slot, worker)))
    }

    /// Clears slots of workers that are not in the database: their registration was rolled back, or
    /// the process that removed them was killed before it cleared the slot. The caller must hold
    /// the write lock.
    pub(super) fn prune(&self, known: &[WorkerRow], now: i64) {
        let page = self.page();
        for slot in page.slots() {
            let Some(worker) = owner_of(slot) else {
                continue;
            };
            let has_run_out =
                slot.until.load(Ordering::SeqCst) < now || is_dead(&page, slot, worker);
            if has_run_out && !known.iter().any(|entered| entered.worker == worker) {
                free_slot(slot, worker);
            }
        }
    }

    /// Takes the worker's liveness lock for this process and those that it starts from now on.
    /// Returns whether the lock was taken now.
    pub(super) fn acquire_liveness_lock(&self, worker: Tid) -> bool {
        let page = self.page();
        let Some(slot) = find_slot(&page, worker) else {
            return false;
        };
        // `F_OFD_SETLK` fails if the lock is held, even by this process.
        let Some(lock) = page
            .reopen()
            .and_then(|file| liveness_lock::acquire_liveness_lock(file, worker))
        else {
            return false;
        };
        self.liveness_locks().push((worker, lock));
        slot.lock_token
            .store(clock::machine() as u32 | 1, Ordering::SeqCst);
        true
    }

    /// Shortens a lease to `ttl` from now, if it would end later.
    pub(super) fn shorten(&self, worker: Tid, ttl: Duration) {
        let page = self.page();
        let Some(slot) = find_slot(&page, worker) else {
            return;
        };
        let (end, sooner) = (
            slot.until.load(Ordering::SeqCst),
            end_of(clock::machine(), ttl),
        );
        if owner_of(slot) == Some(worker) && sooner < end {
            // Compare: the slot may have another owner by now.
            let _ = slot
                .until
                .compare_exchange(end, sooner, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Releases the liveness lock of a worker that is gone.
    pub(super) fn release_liveness_lock(&self, worker: Tid) {
        self.liveness_locks().retain(|(owner, _)| *owner != worker);
    }
}

/// The end of a lease of `ttl` from `now`.
pub(super) fn end_of(now: i64, ttl: Duration) -> i64 {
    now.saturating_add(i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX))
}

fn find_slot(page: &SharedState, worker: Tid) -> Option<&WorkerSlot> {
    page.slots()
        .iter()
        .find(|slot| owner_of(slot) == Some(worker))
}

fn owner_of(slot: &WorkerSlot) -> Option<Tid> {
    Tid::from_u64(slot.worker.load(Ordering::SeqCst) as u64)
}

/// Takes a free slot; `false` if another process was faster.
fn claim_slot(slot: &WorkerSlot, worker: Tid) -> bool {
    slot.worker
        .compare_exchange(0, worker.as_i64(), Ordering::SeqCst, Ordering::SeqCst)
        .is_ok()
}

/// Frees a slot. Several processes may do this at once, and the slot may have a new owner before
/// the last is done, so each changes only the values that it has read.
fn free_slot(slot: &WorkerSlot, worker: Tid) {
    let until = slot.until.load(Ordering::SeqCst);
    if owner_of(slot) == Some(worker) {
        slot.lock_token.store(0, Ordering::SeqCst);
        let _ = slot
            .until
            .compare_exchange(until, NOT_SET, Ordering::SeqCst, Ordering::SeqCst);
        let _ =
            slot.worker
                .compare_exchange(worker.as_i64(), 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

fn is_dead(page: &SharedState, slot: &WorkerSlot, worker: Tid) -> bool {
    let token = slot.lock_token.load(Ordering::SeqCst);
    // Read again: a live worker may have released the lock and acquired it anew in between.
    token != 0
        && liveness_lock::is_free(page.file(), worker)
        && slot.lock_token.load(Ordering::SeqCst) == token
}

fn store_heartbeat(slot: &WorkerSlot, heartbeat: Heartbeat) {
    slot.status
        .store((heartbeat.status as u8).into(), Ordering::Relaxed);
    slot.busy.store(heartbeat.busy, Ordering::Relaxed);
    slot.spawned
        .store(heartbeat.spawned_count, Ordering::Relaxed);
}

fn load_heartbeat(slot: &WorkerSlot) -> Heartbeat {
    Heartbeat {
        status: WorkerStatus::from_u8(slot.status.load(Ordering::Relaxed) as u8),
        busy: slot.busy.load(Ordering::Relaxed),
        spawned_count: slot.spawned.load(Ordering::Relaxed),
    }
}
