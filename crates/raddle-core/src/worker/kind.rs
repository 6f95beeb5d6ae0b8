//! What sorts of workers there are, as the registry and the metrics name them. A manager's is its type, which can be any other word.

/// Takes tasks as they come.
pub const RESIDENT: &str = "resident";
/// Takes one task as it comes, and leaves after it.
pub const ONE_SHOT: &str = "one-shot";
/// There for one task that it was given.
pub const INLINE: &str = "inline";
/// Fires schedules, and takes no tasks.
pub const SCHEDULER: &str = "scheduler";
/// Launches workers for one task each.
pub const SPAWNER: &str = "spawner";
/// Keeps the processes of groups alive.
pub const GROUP: &str = "group";
/// Takes calls, and no tasks.
pub const POOL: &str = "pool";

/// All of them.
pub const ALL: [&str; 7] = [RESIDENT, ONE_SHOT, INLINE, SCHEDULER, SPAWNER, GROUP, POOL];
