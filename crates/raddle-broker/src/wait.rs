//! How long calls wait.

use std::time::Duration;

/// Waits end at least this often and look again. Wake-ups do not depend on it: it bounds the harm of one that was lost, as when a
/// process is killed between its commit and its ring, or between being woken and claiming.
pub const SAFETY_INTERVAL: Duration = Duration::from_secs(2);
/// Longer than any wait that is meant, and short enough to be added to a clock.
pub const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);
