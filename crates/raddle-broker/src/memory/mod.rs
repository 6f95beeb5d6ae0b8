//! The memory engine: a broker that lives in one process and is gone with it. For tests, and for programs that need no more.
//!
//! All of it is one `State` behind a mutex. What happens to it is decided by methods that are given the
//! time and neither wait nor do I/O; each file adds those of one concern, under the name that the other engines use for it.
//! Waiting happens outside, in `shared`: a call that finds nothing sleeps until a change rings its topic. The only timer
//! is the one for the next task that becomes due.

mod chain;
mod claim;
mod control;
mod finish;
mod log;
mod messages;
mod output;
mod own;
mod purge;
mod ready;
mod reclaim;
mod registry;
mod release;
mod resubmit;
mod schedules;
mod shared;
mod state;
mod submit;
mod tasks;
mod view;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use shared::Shared;

/// A broker in memory. Clones share what they hold.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    shared: Arc<Shared>,
}

impl Memory {
    /// An empty broker.
    pub fn new() -> Self {
        Self::default()
    }

    /// The most tasks that anybody was given at once.
    #[cfg(test)]
    pub(crate) fn longest_list(&self) -> usize {
        self.shared.longest_list.load(std::sync::atomic::Ordering::Relaxed)
    }
}
