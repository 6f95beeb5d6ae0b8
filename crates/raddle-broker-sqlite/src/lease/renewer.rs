//! What keeps a worker alive: a store into the shared page, which nothing can hold up.
//!
//! Taking back what belongs to others needs the database, which another process may hold for long. So the thread that has the database does it, and a beat waits
//! for that only so long that the next is not late.

use std::{
    sync::{
        Arc, Mutex, TryLockError,
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

use raddle_model::{Tid, worker::Heartbeat};
use rusqlite::OptionalExtension;

use crate::{
    HandleState, Sqlite, clock,
    lease::{RenewalOutcome, end_of},
    open,
    reclaim::reclaim,
    registry::entered_at,
    writer::WeakWriter,
};
use raddle_broker::{LeaseRenewer, LeaseStatus, Leases, Reclaimed, Result};

pub(crate) struct SqliteLeaseRenewer {
    shared: Arc<HandleState>,
    writer: WeakWriter,
    worker: Tid,
    ttl: Duration,
    /// Whether it has beaten before.
    beats: bool,
}

/// The look for workers that are gone, if one is under way. One for all hearts of a handle: each would find the same.
#[derive(Default)]
pub(crate) struct Reaper(Mutex<Option<mpsc::Receiver<Vec<Reclaimed>>>>);

/// The part of a lease that a beat may wait for others.
const PATIENCE_IN_LEASE: u32 = 8;
const LONGEST_PATIENCE: Duration = Duration::from_secs(2);

impl Leases for Sqlite {
    fn lease_renewer(&self, worker: Tid, ttl: Duration) -> Box<dyn LeaseRenewer> {
        Box::new(SqliteLeaseRenewer::new(
            Arc::clone(&self.shared),
            self.writer().downgrade(),
            worker,
            ttl,
        ))
    }

    fn acquire_liveness_lock(&self, worker: Tid) -> bool {
        self.shared.leases.acquire_liveness_lock(worker)
    }

    fn suspend_unlocked(&self, stop: &mut dyn FnMut()) {
        let _gate = self.shared.bell.close();
        stop();
    }
}

impl SqliteLeaseRenewer {
    pub(crate) fn new(
        shared: Arc<HandleState>,
        writer: WeakWriter,
        worker: Tid,
        ttl: Duration,
    ) -> Self {
        Self {
            shared,
            writer,
            worker,
            ttl,
            beats: false,
        }
    }

    /// Takes back what belongs to workers that are gone, if that is `due`, and tells what was taken as far as it is known by now.
    fn sweep(&self, due: bool) -> Vec<Reclaimed> {
        let mut under_way = match self.shared.sweep.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another heart of this process waits for it.
            Err(TryLockError::WouldBlock) => return Vec::new(),
        };
        if under_way.is_none()
            && due
            && let Some(writer) = self.writer.upgrade()
        {
            let (tell, told) = mpsc::channel();
            writer.write_unattended(reclaim, move |reclaimed| drop(tell.send(reclaimed)));
            *under_way = Some(told);
        }
        let Some(told) = &*under_way else {
            return Vec::new();
        };
        match told.recv_timeout((self.ttl / PATIENCE_IN_LEASE).min(LONGEST_PATIENCE)) {
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            outcome => {
                *under_way = None;
                outcome.unwrap_or_default()
            }
        }
    }

    /// Enters a worker that the page has lost, if the database knows it.
    fn enter_again(&self, heartbeat: Heartbeat) -> Result<bool> {
        let shared = &self.shared;
        let entered = open::connection(&shared.place)?
            .query_row(
                "SELECT tid, boot, alive_until FROM workers WHERE tid = ?1",
                [self.worker.as_i64()],
                |row| entered_at(row, 0),
            )
            .optional()
            .map_err(|e| shared.error(&e))?;
        let Some(end) = entered.map(|entered| shared.leases.of(entered).until) else {
            return Ok(false);
        };
        let now = clock::machine();
        if now > end {
            return Ok(false);
        }
        tracing::warn!(worker = %self.worker, "the file of leases was lost: entering again");
        shared
            .leases
            .enter(self.worker, end_of(now, self.ttl), heartbeat)?;
        // As with any renewal: nobody has decided by the old end before it had passed.
        Ok(clock::machine() <= end)
    }
}

impl LeaseRenewer for SqliteLeaseRenewer {
    fn renew(&mut self, heartbeat: Heartbeat) -> Result<LeaseStatus> {
        self.shared.check_in_place()?;
        let leases = &self.shared.leases;
        leases.refresh();
        let is_alive = match leases.renew(self.worker, self.ttl, heartbeat) {
            RenewalOutcome::Renewed => true,
            RenewalOutcome::Late => false,
            RenewalOutcome::Missing => self.enter_again(heartbeat)?,
        };
        if !is_alive {
            leases.release_liveness_lock(self.worker);
        } else if !self.beats {
            // A renewal makes no lease shorter. It may have been long until now, as that of a worker that stood still.
            leases.shorten(self.worker, self.ttl);
        }
        self.beats |= is_alive;
        let reclaimed = self.sweep(!is_alive || leases.is_anyone_gone());
        Ok(if is_alive {
            LeaseStatus::Alive(reclaimed)
        } else {
            LeaseStatus::Expired
        })
    }
}
