//! One write transaction: new ids, events, and moves between the tables of task states.

use std::sync::LazyLock;

use raddle_model::{
    AttemptCounters, CapSet, ControlCommand, ControlMessage, QueueName, TaskEventKind, TaskState,
    Tid, TidClock, queue_name::TaskQueue,
};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::{
    bulk_insert::BulkStatement,
    clock,
    counts::{CountChanges, Counter},
    lease::LeaseTable,
    notify::{Topic, Topics},
    rollups::{self, ClaimedNames, RollupBuffer},
};
use raddle_broker::{
    AttemptId, Error,
    rollups::{OutcomeEvent, PendingRollups},
};

/// The key in `meta` of the last id that was handed out.
const LAST_ID: &str = "last_id";

/// Why a job failed.
pub(super) enum TxError {
    /// The database failed: the whole transaction is rolled back.
    Store(rusqlite::Error),
    /// The request is invalid. The job has written nothing; the transaction goes on.
    Caller(Error),
}

/// State that a writer keeps between transactions.
#[derive(Default)]
pub(super) struct TxCache {
    pub(super) partitions: Vec<Partition>,
    pub(super) claimed_names: ClaimedNames,
}

/// The tasks of one queue that need the same capabilities.
pub(super) struct Partition {
    pub(super) id: i64,
    pub(super) queue: String,
    pub(super) needs: CapSet,
}

/// A task between attempts.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingTask {
    pub(super) location: WaitingLocation,
    pub(super) partition_id: i64,
    pub(super) counters: AttemptCounters,
    pub(super) run_at: Option<i64>,
}

/// The table of a waiting task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitingLocation {
    Ready,
    Delayed,
    Paused,
}

/// A claimed task.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActiveTask {
    pub(super) tid: Tid,
    pub(super) owner: Tid,
    pub(super) counters: AttemptCounters,
    pub(super) state: TaskState,
    pub(super) claimed_at: i64,
    pub(super) pid: Option<u32>,
    pub(super) partition_id: i64,
    /// The retention of the record in nanoseconds, so that a completion need not read the spec.
    pub(super) ttl: i64,
    /// Whether the task holds a unique key.
    pub(super) has_unique_key: bool,
    /// Whether the attempt is paused.
    pub(super) paused: bool,
    /// Whether the worker is ephemeral: it leaves with this task.
    pub(super) ephemeral: bool,
    /// Whether the attempt has chained tasks.
    pub(super) chained: bool,
    /// The command to end the task that the worker has received.
    pub(super) pending_command: Option<ControlCommand>,
}

impl ActiveTask {
    /// Whether this is the attempt that a write names.
    pub(super) fn is(&self, attempt_id: AttemptId) -> bool {
        (self.counters.attempt, self.owner) == (attempt_id.attempt, attempt_id.owner)
    }
}

/// One entry of the event log.
struct LogEntry {
    id: i64,
    tid: i64,
    kind: u8,
    attempt: u32,
    worker: Option<i64>,
    detail: Option<String>,
}

static INSERT_EVENTS: LazyLock<BulkStatement> =
    LazyLock::new(|| BulkStatement::insert("events (id, tid, kind, attempt, worker, detail)", 6));

pub(super) struct Tx<'c> {
    inner: Transaction<'c>,
    pub(super) cache: &'c mut TxCache,
    clock: TidClock,
    first_id: u64,
    topics: Topics,
    /// Events, inserted together at commit: no statement in a transaction reads them.
    events: Vec<LogEntry>,
    counts: CountChanges,
    /// Outcomes that this transaction has counted, and those of earlier ones.
    outcomes: PendingRollups,
    pub(super) rollups: &'c mut RollupBuffer,
    /// Whether any control message was stored when the transaction began, which is rare. `None`
    /// before the first check.
    has_control: Option<bool>,
    /// The wall-clock time of the transaction, in nanoseconds.
    pub(super) now: i64,
    /// The monotonic time of the transaction, for leases.
    pub(super) machine: i64,
    pub(super) leases: &'c LeaseTable,
    /// Workers removed from the registry. Their lease slots are cleared after the commit.
    removed_workers: Vec<Tid>,
}

/// The last id that was handed out; 0 in a new database.
fn last_id(db: &Connection) -> rusqlite::Result<u64> {
    let mut find = db.prepare_cached("SELECT value FROM meta WHERE key = ?1")?;
    let last: Option<i64> = find.query_row([LAST_ID], |row| row.get(0)).optional()?;
    Ok(last.unwrap_or(0) as u64)
}

impl<'c> Tx<'c> {
    pub(super) fn begin(
        connection: &'c Connection,
        cache: &'c mut TxCache,
        rollups: &'c mut RollupBuffer,
        leases: &'c LeaseTable,
    ) -> rusqlite::Result<Self> {
        let inner = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
        let last = last_id(&inner)?;
        Ok(Self {
            inner,
            cache,
            clock: TidClock::resume(last),
            first_id: last,
            topics: Topics::default(),
            events: Vec::new(),
            counts: CountChanges::default(),
            outcomes: PendingRollups::default(),
            rollups,
            has_control: None,
            now: clock::wall() as i64,
            machine: clock::machine(),
            leases,
            removed_workers: Vec::new(),
        })
    }

    pub(super) fn commit(mut self) -> rusqlite::Result<Topics> {
        self.write_events()?;
        self.counts.write(self.db())?;
        let has_counts = !self.outcomes.is_empty() || !self.rollups.is_empty();
        if has_counts && let Some(mut due) = self.rollups.take_if_due() {
            due.merge(std::mem::take(&mut self.outcomes));
            rollups::store(self.db(), &mut due)?;
        }
        if self.clock.last() != self.first_id {
            let set = "INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)";
            self.db()
                .prepare_cached(set)?
                .execute(params![LAST_ID, self.clock.last() as i64])?;
        }
        self.inner.commit()?;
        self.rollups.add(self.outcomes);
        self.removed_workers
            .iter()
            .for_each(|worker| self.leases.remove(*worker));
        Ok(self.topics)
    }

    pub(super) fn db(&self) -> &Connection {
        &self.inner
    }

    pub(super) fn next_id(&mut self) -> Tid {
        self.clock.next(self.now as u64)
    }

    pub(super) fn notify(&mut self, topic: Topic) {
        self.topics.add(topic);
    }

    /// Changes a counter of the tasks of a partition.
    pub(super) fn count(&mut self, partition_id: i64, counter: Counter, by: i64) {
        self.counts.add(partition_id, counter, by);
    }

    /// Counts an outcome of a task called `name`.
    pub(super) fn count_outcome(&mut self, name: &str, event: OutcomeEvent) {
        self.outcomes.count(self.now, name, event);
    }

    /// Appends an event and returns its id.
    pub(super) fn event(
        &mut self,
        tid: Tid,
        kind: TaskEventKind,
        attempt: u32,
        worker: Option<Tid>,
        detail: Option<&str>,
    ) -> u64 {
        let entry = self.next_id();
        let id = entry.as_i64();
        self.notify(Topic::Log);
        let (worker, detail) = (worker.map(Tid::as_i64), detail.map(str::to_owned));
        self.events.push(LogEntry {
            id,
            tid: tid.as_i64(),
            kind: kind as u8,
            attempt,
            worker,
            detail,
        });
        entry.as_u64()
    }

    fn write_events(&self) -> rusqlite::Result<()> {
        INSERT_EVENTS.write(self.db(), &self.events, |row, entry| {
            row.bind(entry.id)?;
            row.bind(entry.tid)?;
            row.bind(entry.kind)?;
            row.bind(entry.attempt)?;
            row.bind(entry.worker)?;
            row.bind(entry.detail.as_deref())
        })
    }

    /// Removes a worker from the registry.
    pub(super) fn remove_worker(&mut self, worker: Tid) -> rusqlite::Result<()> {
        self.db()
            .prepare_cached("DELETE FROM workers WHERE tid = ?1")?
            .execute([worker.as_i64()])?;
        self.removed_workers.push(worker);
        Ok(())
    }

    /// Keeps the lease of a worker that was removed and has registered again.
    pub(super) fn keep_worker(&mut self, worker: Tid) {
        self.removed_workers.retain(|removed| *removed != worker);
    }

    /// Increments one of the broker's counters.
    pub(super) fn increment_counter(&self, key: &str) -> rusqlite::Result<()> {
        self.db()
            .prepare_cached("INSERT INTO meta (key, value) VALUES (?1, 1) ON CONFLICT DO UPDATE SET value = value + 1")?
            .execute([key])?;
        Ok(())
    }

    /// Makes a task wait for its next attempt.
    pub(super) fn enqueue(
        &mut self,
        tid: Tid,
        partition_id: i64,
        counters: AttemptCounters,
        run_at: Option<i64>,
    ) -> rusqlite::Result<()> {
        match run_at.filter(|at| *at > self.now) {
            Some(at) => self.enqueue_delayed(tid, partition_id, counters, at),
            None => self.enqueue_ready(tid, partition_id, counters),
        }
    }

    fn enqueue_ready(
        &mut self,
        tid: Tid,
        partition_id: i64,
        counters: AttemptCounters,
    ) -> rusqlite::Result<()> {
        self.notify(Topic::Ready);
        self.count(partition_id, Counter::Ready, 1);
        self.db()
            .prepare_cached(
                "INSERT INTO ready (partition_id, rank, tid, attempt, failures, losses, ttl, has_unique_key)
                 SELECT partition_id, rank, tid, ?2, ?3, ?4, ttl, has_unique_key FROM tasks WHERE tid = ?1",
            )?
            .execute(params![
                tid.as_i64(),
                counters.attempt,
                counters.failures,
                counters.losses
            ])?;
        Ok(())
    }

    pub(super) fn enqueue_delayed(
        &mut self,
        tid: Tid,
        partition_id: i64,
        counters: AttemptCounters,
        run_at: i64,
    ) -> rusqlite::Result<()> {
        // Claims that wait must learn the new due time.
        self.notify(Topic::Ready);
        self.count(partition_id, Counter::Delayed, 1);
        self.db()
            .prepare_cached("INSERT INTO delayed (tid, run_at, attempt, failures, losses) VALUES (?1, ?2, ?3, ?4, ?5)")?
            .execute(params![tid.as_i64(), run_at, counters.attempt, counters.failures, counters.losses])?;
        Ok(())
    }

    /// Makes a task wait until it is resumed.
    pub(super) fn hold(
        &mut self,
        tid: Tid,
        partition_id: i64,
        counters: AttemptCounters,
        run_at: Option<i64>,
    ) -> rusqlite::Result<()> {
        self.count(partition_id, Counter::Paused, 1);
        self.db()
            .prepare_cached("INSERT INTO paused (tid, run_at, attempt, failures, losses) VALUES (?1, ?2, ?3, ?4, ?5)")?
            .execute(params![tid.as_i64(), run_at, counters.attempt, counters.failures, counters.losses])?;
        Ok(())
    }

    /// Removes a waiting task from its table.
    pub(super) fn dequeue(
        &mut self,
        tid: Tid,
        partition_id: i64,
        location: WaitingLocation,
    ) -> rusqlite::Result<()> {
        let (counter, sql) = match location {
            WaitingLocation::Ready => (
                Counter::Ready,
                "DELETE FROM ready WHERE tid = ?1 AND (partition_id, rank) = (SELECT partition_id, rank FROM tasks WHERE tid = ?1)",
            ),
            WaitingLocation::Delayed => (Counter::Delayed, "DELETE FROM delayed WHERE tid = ?1"),
            WaitingLocation::Paused => (Counter::Paused, "DELETE FROM paused WHERE tid = ?1"),
        };
        self.count(partition_id, counter, -1);
        self.db().prepare_cached(sql)?.execute([tid.as_i64()])?;
        Ok(())
    }

    /// Deletes the control messages of a finished task.
    pub(super) fn delete_control_messages(&mut self, tid: Tid) -> rusqlite::Result<()> {
        let has_control = match self.has_control {
            Some(known) => known,
            None => super::control::any_pending(&self.inner)?,
        };
        self.has_control = Some(has_control);
        if has_control {
            let queue = super::messages::key(&QueueName::Task(tid, TaskQueue::CtrlIn));
            self.db()
                .prepare_cached("DELETE FROM messages WHERE queue = ?1")?
                .execute([queue])?;
        }
        Ok(())
    }

    /// Records that this transaction has stored a control message.
    pub(super) fn mark_control_stored(&mut self) {
        self.has_control = Some(true);
    }
}

impl From<rusqlite::Error> for TxError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error)
    }
}

impl From<Error> for TxError {
    fn from(error: Error) -> Self {
        Self::Caller(error)
    }
}

/// A task that waits for an attempt, or `None` if it does not.
pub(super) fn find_waiting(db: &Connection, tid: Tid) -> rusqlite::Result<Option<WaitingTask>> {
    db.prepare_cached(
        "SELECT attempt, failures, losses, NULL, 0, partition_id FROM ready
         WHERE tid = ?1 AND (partition_id, rank) = (SELECT partition_id, rank FROM tasks WHERE tid = ?1)
         UNION ALL SELECT attempt, failures, losses, run_at, 1, tasks.partition_id FROM delayed JOIN tasks USING (tid) WHERE tid = ?1
         UNION ALL SELECT attempt, failures, losses, run_at, 2, tasks.partition_id FROM paused JOIN tasks USING (tid) WHERE tid = ?1",
    )?
    .query_row([tid.as_i64()], |row| {
        let location = match row.get::<_, u8>(4)? {
            0 => WaitingLocation::Ready,
            1 => WaitingLocation::Delayed,
            _ => WaitingLocation::Paused,
        };
        Ok(WaitingTask {
            location,
            partition_id: row.get(5)?,
            counters: counters(row, 0)?,
            run_at: row.get(3)?,
        })
    })
    .optional()
}

/// The current attempt of a task, if it is claimed.
pub(super) fn find_active(db: &Connection, tid: Tid) -> rusqlite::Result<Option<ActiveTask>> {
    let sql = ["SELECT ", ACTIVE_COLUMNS, " FROM active WHERE tid = ?1"].concat();
    db.prepare_cached(&sql)?
        .query_row([tid.as_i64()], active_at)
        .optional()
}

/// The attempt that a write names, if it is the current one.
pub(super) fn find_attempt(
    db: &Connection,
    attempt_id: AttemptId,
) -> rusqlite::Result<Option<ActiveTask>> {
    Ok(find_active(db, attempt_id.tid)?.filter(|active| active.is(attempt_id)))
}

/// The columns that [`active_at`] reads, in order.
pub(super) const ACTIVE_COLUMNS: &str = "attempt, failures, losses, owner, state, claimed_at, pid, ttl, has_unique_key, paused, ephemeral, tid, chained IS NOT NULL, pending_command, partition_id";

pub(super) fn active_at(row: &rusqlite::Row<'_>) -> rusqlite::Result<ActiveTask> {
    Ok(ActiveTask {
        counters: counters(row, 0)?,
        owner: tid_at(row, 3)?,
        state: state_at(row, 4)?,
        claimed_at: row.get(5)?,
        pid: row.get(6)?,
        ttl: row.get(7)?,
        has_unique_key: row.get(8)?,
        paused: row.get(9)?,
        ephemeral: row.get(10)?,
        tid: tid_at(row, 11)?,
        chained: row.get(12)?,
        pending_command: command_at(row, 13)?,
        partition_id: row.get(14)?,
    })
}

/// The final state of a task, if it is finished.
pub(super) fn find_done(db: &Connection, tid: Tid) -> rusqlite::Result<Option<TaskState>> {
    db.prepare_cached("SELECT state FROM finished WHERE tid = ?1")?
        .query_row([tid.as_i64()], |row| state_at(row, 0))
        .optional()
}

pub(super) fn counters(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<AttemptCounters> {
    Ok(AttemptCounters {
        attempt: row.get(first)?,
        failures: row.get(first + 1)?,
        losses: row.get(first + 2)?,
    })
}

pub(super) fn tid_at(row: &rusqlite::Row<'_>, index: usize) -> rusqlite::Result<Tid> {
    let raw: i64 = row.get(index)?;
    Tid::from_u64(raw as u64).ok_or(rusqlite::Error::IntegralValueOutOfRange(index, raw))
}

pub(super) fn command_at(
    row: &rusqlite::Row<'_>,
    index: usize,
) -> rusqlite::Result<Option<ControlCommand>> {
    let text: Option<String> = row.get(index)?;
    Ok(text
        .and_then(|text| text.parse().ok())
        .map(|ControlMessage { command, .. }| command))
}

pub(super) fn state_at(row: &rusqlite::Row<'_>, index: usize) -> rusqlite::Result<TaskState> {
    let raw: u8 = row.get(index)?;
    TaskState::from_u8(raw).ok_or(rusqlite::Error::IntegralValueOutOfRange(
        index,
        i64::from(raw),
    ))
}
