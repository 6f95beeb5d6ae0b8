//! Renewal of leases: a store into the shared mapping, which nothing can block.
//!
//! Reclaiming needs the database, which another process may have locked for long. So the writer
//! thread reclaims, and a renewal waits for the result only for as long as the next renewal is not
//! late.

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
    registry::worker_row_at,
    writer::WeakWriter,
};
use raddle_broker::{LeaseRenewer, LeaseStatus, Leases, Reclaimed, Result};

pub(crate) struct SqliteLeaseRenewer {
    shared: Arc<HandleState>,
    writer: WeakWriter,
    worker: Tid,
    ttl: Duration,
    /// Whether it has renewed before.
    has_renewed: bool,
}

/// The reclaim job in progress, if any. All renewers of a handle share it: each would find the
/// same.
#[derive(Default)]
pub(crate) struct Reaper(Mutex<Option<mpsc::Receiver<Vec<Reclaimed>>>>);

/// A renewal waits for the reclaim job for at most this fraction of the lease.
const WAIT_FRACTION: u32 = 8;
const MAX_WAIT: Duration = Duration::from_secs(2);

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

    fn suspend_unlocked(&self, suspend: &mut dyn FnMut()) {
        let _lock = self.shared.notifier.block_local_writers();
        suspend();
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
            has_renewed: false,
        }
    }

    /// Starts to reclaim from lost workers if that is `due`, and returns what is known to be
    /// reclaimed by now.
    fn reclaim_lost(&self, due: bool) -> Vec<Reclaimed> {
        let mut running_job = match self.shared.reaper.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another renewer of this process waits for the job.
            Err(TryLockError::WouldBlock) => return Vec::new(),
        };
        if running_job.is_none()
            && due
            && let Some(writer) = self.writer.upgrade()
        {
            let (sender, receiver) = mpsc::channel();
            writer.write_detached(reclaim, move |reclaimed| drop(sender.send(reclaimed)));
            *running_job = Some(receiver);
        }
        let Some(receiver) = &*running_job else {
            return Vec::new();
        };
        match receiver.recv_timeout((self.ttl / WAIT_FRACTION).min(MAX_WAIT)) {
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            outcome => {
                *running_job = None;
                outcome.unwrap_or_default()
            }
        }
    }

    /// Registers a worker in the state file again after its slot was lost, if the database knows
    /// the worker.
    fn register_again(&self, heartbeat: Heartbeat) -> Result<bool> {
        let shared = &self.shared;
        let entered = open::connection(&shared.location)?
            .query_row(
                "SELECT tid, boot, alive_until FROM workers WHERE tid = ?1",
                [self.worker.as_i64()],
                |row| worker_row_at(row, 0),
            )
            .optional()
            .map_err(|e| shared.error(&e))?;
        let Some(end) = entered.map(|entered| shared.leases.get(entered).until) else {
            return Ok(false);
        };
        let now = clock::machine();
        if now > end {
            return Ok(false);
        }
        tracing::warn!(worker = %self.worker, "the state file lost the lease: registering it again");
        shared
            .leases
            .register(self.worker, end_of(now, self.ttl), heartbeat)?;
        // As with any renewal: the old end has not passed, so no other process has acted on it.
        Ok(clock::machine() <= end)
    }
}

impl LeaseRenewer for SqliteLeaseRenewer {
    fn renew(&mut self, heartbeat: Heartbeat) -> Result<LeaseStatus> {
        self.shared.check_not_replaced()?;
        let leases = &self.shared.leases;
        leases.refresh();
        let is_alive = match leases.renew(self.worker, self.ttl, heartbeat) {
            RenewalOutcome::Renewed => true,
            RenewalOutcome::Late => false,
            RenewalOutcome::Missing => self.register_again(heartbeat)?,
        };
        if !is_alive {
            leases.release_liveness_lock(self.worker);
        } else if !self.has_renewed {
            // `LeaseTable::renew` never shortens a lease. The first renewal does: the lease may be
            // long, for example that of a worker that was suspended.
            leases.shorten(self.worker, self.ttl);
        }
        self.has_renewed |= is_alive;
        let reclaimed = self.reclaim_lost(!is_alive || leases.may_reclaim());
        Ok(if is_alive {
            LeaseStatus::Alive(reclaimed)
        } else {
            LeaseStatus::Expired
        })
    }
}
