//! The tables.

/// Marks a file as ours: `RDDL`.
pub(super) const APPLICATION_ID: i32 = 0x5244_444c;
/// The format of the tables. A file with a higher number was made by a later version.
pub(super) const VERSION: u32 = 3;

/// What a new database holds.
///
/// A task's id is in `tasks`, and in exactly one of `ready`, `delayed`, `held`, `active` and `done`. What the attempt of an active one has chained is in
/// `chained`, and is no task yet. `rank` is 9 minus the priority, so that
/// the primary key of `ready` is the order of claiming. Times are nanoseconds: of the wall clock, but for `alive_until`, which is the
/// machine's: the end of the lease that a worker was entered with. What it says of itself later is in the shared page. `next` is when a schedule is due, and nothing while it is paused. Of those in `expiring`, some may have been taken, or be over, by now. `batches` has the tasks of batches, but for those that were submitted again.
pub(super) const STATEMENTS: [&str; 23] = [
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE parts (id INTEGER PRIMARY KEY, queue TEXT NOT NULL, needs TEXT NOT NULL)",
    "CREATE UNIQUE INDEX parts_by_name ON parts (queue, needs)",
    "CREATE TABLE tasks (
    tid INTEGER PRIMARY KEY, part INTEGER NOT NULL, rank INTEGER NOT NULL, service INTEGER NOT NULL, parent INTEGER,
    ttl INTEGER NOT NULL, keyed INTEGER NOT NULL, spec TEXT NOT NULL
)",
    "CREATE INDEX services ON tasks (tid) WHERE service = 1",
    "CREATE TABLE ready (
    part INTEGER NOT NULL, rank INTEGER NOT NULL, tid INTEGER NOT NULL,
    attempt INTEGER NOT NULL, failures INTEGER NOT NULL, losses INTEGER NOT NULL,
    ttl INTEGER NOT NULL, keyed INTEGER NOT NULL, PRIMARY KEY (part, rank, tid)
) WITHOUT ROWID",
    "CREATE TABLE delayed (
    tid INTEGER PRIMARY KEY, run_at INTEGER NOT NULL,
    attempt INTEGER NOT NULL, failures INTEGER NOT NULL, losses INTEGER NOT NULL
)",
    "CREATE INDEX delayed_by_time ON delayed (run_at)",
    "CREATE TABLE held (
    tid INTEGER PRIMARY KEY, run_at INTEGER,
    attempt INTEGER NOT NULL, failures INTEGER NOT NULL, losses INTEGER NOT NULL
)",
    "CREATE TABLE active (
    tid INTEGER PRIMARY KEY, owner INTEGER NOT NULL, state INTEGER NOT NULL, claimed_at INTEGER NOT NULL, pid INTEGER,
    ttl INTEGER NOT NULL, keyed INTEGER NOT NULL, paused INTEGER NOT NULL DEFAULT 0, own INTEGER NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL, failures INTEGER NOT NULL, losses INTEGER NOT NULL, progress TEXT, chained TEXT, told TEXT
)",
    "CREATE TABLE chained (tid INTEGER NOT NULL, n INTEGER NOT NULL, spec TEXT NOT NULL, PRIMARY KEY (tid, n)) WITHOUT ROWID",
    "CREATE TABLE done (
    tid INTEGER PRIMARY KEY, state INTEGER NOT NULL, dead INTEGER NOT NULL, owner INTEGER,
    finished_at INTEGER NOT NULL, expires_at INTEGER NOT NULL,
    attempt INTEGER NOT NULL, failures INTEGER NOT NULL, losses INTEGER NOT NULL,
    exit TEXT, started_at INTEGER, ended_at INTEGER NOT NULL, peak_rss INTEGER NOT NULL, user_us INTEGER NOT NULL,
    system_us INTEGER NOT NULL, stdout_bytes INTEGER NOT NULL, stderr_bytes INTEGER NOT NULL, value TEXT
)",
    "CREATE INDEX done_dead ON done (tid) WHERE dead = 1",
    "CREATE TABLE uniques (tid INTEGER PRIMARY KEY, key TEXT NOT NULL)",
    "CREATE UNIQUE INDEX uniques_by_key ON uniques (key)",
    "CREATE TABLE events (
    id INTEGER PRIMARY KEY, tid INTEGER NOT NULL, kind INTEGER NOT NULL, attempt INTEGER NOT NULL, worker INTEGER, detail TEXT
)",
    "CREATE TABLE messages (queue TEXT NOT NULL, id INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (queue, id)) WITHOUT ROWID",
    "CREATE TABLE outputs (
    tid INTEGER NOT NULL, attempt INTEGER NOT NULL, stream INTEGER NOT NULL, bytes BLOB NOT NULL,
    PRIMARY KEY (tid, attempt, stream)
) WITHOUT ROWID",
    "CREATE TABLE workers (
    tid INTEGER PRIMARY KEY, info TEXT NOT NULL, boot INTEGER NOT NULL, alive_until INTEGER NOT NULL, own INTEGER NOT NULL
)",
    "CREATE TABLE schedules (
    name TEXT PRIMARY KEY, version INTEGER NOT NULL, next INTEGER, task INTEGER, entry TEXT NOT NULL
) WITHOUT ROWID",
    "CREATE INDEX schedules_by_next ON schedules (next) WHERE next IS NOT NULL",
    "CREATE TABLE expiring (expires_at INTEGER NOT NULL, tid INTEGER NOT NULL, PRIMARY KEY (expires_at, tid)) WITHOUT ROWID",
    "CREATE TABLE batches (batch TEXT NOT NULL, tid INTEGER NOT NULL, PRIMARY KEY (batch, tid)) WITHOUT ROWID",
];
