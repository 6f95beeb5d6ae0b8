//! Kinds of workers, as the registry and the metrics name them. The kind of a manager is its type,
//! which can be any other word.

/// Claims tasks until it stops.
pub const RESIDENT: &str = "resident";
/// Claims one task and exits after it.
pub const ONE_SHOT: &str = "one-shot";
/// Runs one given task.
pub const INLINE: &str = "inline";
/// Fires schedules, and claims no tasks.
pub const SCHEDULER: &str = "scheduler";
/// Launches a worker for each task.
pub const SPAWNER: &str = "spawner";
/// Keeps the processes of groups alive.
pub const GROUP: &str = "group";
/// Takes calls, and no tasks.
pub const POOL: &str = "pool";

/// All kinds.
pub const ALL: [&str; 7] = [RESIDENT, ONE_SHOT, INLINE, SCHEDULER, SPAWNER, GROUP, POOL];
