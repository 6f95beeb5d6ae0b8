//! Limits of waits.

use std::time::Duration;

/// The interval after which a wait checks again without a wake-up. It only bounds the delay after a
/// lost wake-up, for example when a process is killed between its commit and its notification, or
/// between being woken and claiming.
pub const SAFETY_INTERVAL: Duration = Duration::from_secs(2);
/// Longer than any intended wait, and short enough to be added to a clock without overflow.
pub const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);
