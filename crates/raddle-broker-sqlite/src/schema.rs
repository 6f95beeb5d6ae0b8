//! The tables.

/// Identifies the file as a Raddle database: `RDDL`.
pub(super) const APPLICATION_ID: i32 = 0x5244_444c;
/// The format of the tables. A file with a higher number was written by a newer version.
pub(super) const VERSION: u32 = 7;

/// The statements that create a new database.
///
/// - The id of a task is in `tasks`, and in exactly one of `ready`, `delayed`, `paused`, `active`
///   and `finished`.
/// - `counts` is how many tasks of a partition are in each of these and in each state.
/// - `chained` holds tasks that running attempts have chained. They are no tasks yet.
/// - `rank` is 9 minus the priority, so the primary key of `ready` is the claim order.
/// - Times are wall-clock nanoseconds, except `alive_until`: the monotonic end of the lease with
///   which a worker registered. Later heartbeats are in the state file.
/// - `next` is when a schedule is due; NULL while it is paused.
/// - `expiries` may still list tasks that were claimed or finished.
/// - `rollups` counts outcomes by minute since the epoch and name, as JSON.
/// - `batches` lists the tasks of batches, except those that were resubmitted.
pub(super) const STATEMENTS: [&str; 28] = [
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE partitions (id INTEGER PRIMARY KEY, queue TEXT NOT NULL, needs TEXT NOT NULL)",
    "CREATE UNIQUE INDEX partitions_by_name ON partitions (queue, needs)",
    "CREATE TABLE counts (
    partition_id INTEGER PRIMARY KEY, ready INTEGER NOT NULL DEFAULT 0, delayed INTEGER NOT NULL DEFAULT 0,
    paused INTEGER NOT NULL DEFAULT 0, spawning INTEGER NOT NULL DEFAULT 0, running INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0, timeout INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0, killed INTEGER NOT NULL DEFAULT 0, dead INTEGER NOT NULL DEFAULT 0
)",
    "CREATE TABLE tasks (
    tid INTEGER PRIMARY KEY, partition_id INTEGER NOT NULL, rank INTEGER NOT NULL, service INTEGER NOT NULL, parent INTEGER,
    ttl INTEGER NOT NULL, has_unique_key INTEGER NOT NULL, spec TEXT NOT NULL
)",
    "CREATE INDEX services ON tasks (tid) WHERE service = 1",
    "CREATE TABLE ready (
    partition_id INTEGER NOT NULL, rank INTEGER NOT NULL, tid INTEGER NOT NULL,
    attempt INTEGER NOT NULL, failures INTEGER NOT NULL, losses INTEGER NOT NULL,
    ttl INTEGER NOT NULL, has_unique_key INTEGER NOT NULL, PRIMARY KEY (partition_id, rank, tid)
) WITHOUT ROWID",
    "CREATE TABLE delayed (
    tid INTEGER PRIMARY KEY, run_at INTEGER NOT NULL,
    attempt INTEGER NOT NULL, failures INTEGER NOT NULL, losses INTEGER NOT NULL
)",
    "CREATE INDEX delayed_by_time ON delayed (run_at)",
    "CREATE TABLE paused (
    tid INTEGER PRIMARY KEY, run_at INTEGER,
    attempt INTEGER NOT NULL, failures INTEGER NOT NULL, losses INTEGER NOT NULL
)",
    "CREATE TABLE active (
    tid INTEGER PRIMARY KEY, owner INTEGER NOT NULL, state INTEGER NOT NULL, claimed_at INTEGER NOT NULL, pid INTEGER,
    partition_id INTEGER NOT NULL, ttl INTEGER NOT NULL, has_unique_key INTEGER NOT NULL, paused INTEGER NOT NULL DEFAULT 0, ephemeral INTEGER NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL, failures INTEGER NOT NULL, losses INTEGER NOT NULL, progress TEXT, chained TEXT, pending_command TEXT
)",
    "CREATE TABLE chained (tid INTEGER NOT NULL, n INTEGER NOT NULL, spec TEXT NOT NULL, PRIMARY KEY (tid, n)) WITHOUT ROWID",
    "CREATE TABLE finished (
    tid INTEGER PRIMARY KEY, state INTEGER NOT NULL, dead_letter INTEGER NOT NULL, owner INTEGER,
    finished_at INTEGER NOT NULL, expires_at INTEGER NOT NULL,
    attempt INTEGER NOT NULL, failures INTEGER NOT NULL, losses INTEGER NOT NULL,
    exit TEXT, started_at INTEGER, ended_at INTEGER NOT NULL, peak_rss INTEGER NOT NULL, user_us INTEGER NOT NULL,
    system_us INTEGER NOT NULL, stdout_bytes INTEGER NOT NULL, stderr_bytes INTEGER NOT NULL, value TEXT
)",
    "CREATE INDEX finished_dead_letters ON finished (tid) WHERE dead_letter = 1",
    "CREATE TABLE unique_keys (tid INTEGER PRIMARY KEY, key TEXT NOT NULL)",
    "CREATE UNIQUE INDEX unique_keys_by_key ON unique_keys (key)",
    "CREATE TABLE events (
    id INTEGER PRIMARY KEY, tid INTEGER NOT NULL, kind INTEGER NOT NULL, attempt INTEGER NOT NULL, worker INTEGER, detail TEXT
)",
    "CREATE INDEX events_by_task ON events (tid)",
    "CREATE TABLE messages (queue TEXT NOT NULL, id INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (queue, id)) WITHOUT ROWID",
    "CREATE TABLE outputs (
    tid INTEGER NOT NULL, attempt INTEGER NOT NULL, stream INTEGER NOT NULL, bytes BLOB NOT NULL,
    PRIMARY KEY (tid, attempt, stream)
) WITHOUT ROWID",
    "CREATE TABLE workers (
    tid INTEGER PRIMARY KEY, info TEXT NOT NULL, boot INTEGER NOT NULL, alive_until INTEGER NOT NULL, ephemeral INTEGER NOT NULL
)",
    "CREATE TABLE schedules (
    name TEXT PRIMARY KEY, version INTEGER NOT NULL, next INTEGER, task INTEGER, entry TEXT NOT NULL
) WITHOUT ROWID",
    "CREATE INDEX schedules_by_next ON schedules (next) WHERE next IS NOT NULL",
    "CREATE TABLE expiries (expires_at INTEGER NOT NULL, tid INTEGER NOT NULL, PRIMARY KEY (expires_at, tid)) WITHOUT ROWID",
    "CREATE TABLE paused_queues (queue TEXT PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE rollups (minute INTEGER NOT NULL, name TEXT NOT NULL, outcomes TEXT NOT NULL, PRIMARY KEY (minute, name)) WITHOUT ROWID",
    "CREATE TABLE operations (id INTEGER PRIMARY KEY, is_running INTEGER NOT NULL, record TEXT NOT NULL)",
    "CREATE TABLE batches (batch TEXT NOT NULL, tid INTEGER NOT NULL, PRIMARY KEY (batch, tid)) WITHOUT ROWID",
];
