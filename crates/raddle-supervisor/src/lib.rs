//! The decision core that keeps processes alive: which children are started, replaced, recycled and
//! stopped, and when.
//!
//! A *group* has one *slot* per replica, and a slot has at most one *child*. [`Supervisor::on`]
//! takes an event and returns the effects to carry out. It must not start processes, read a clock
//! or talk to a broker, so every component that keeps processes alive uses it: groups, spawners
//! (including the root manager's) and pools of workers that take calls.
//!
//! | file | contents |
//! | --- | --- |
//! | `policy.rs` | how the children of a group are treated |
//! | `event.rs` | events, effects and notices |
//! | `child.rs` | state of one child |
//! | `group.rs` | state of one group: slots and backoff |
//! | `crash_loop.rs` | the backoff of children that keep crashing |
//! | `core.rs` | applies events |
//! | `transitions.rs` | derives what follows |

mod child;
mod core;
mod crash_loop;
mod event;
mod group;
mod policy;
mod transitions;

pub use core::Supervisor;
pub use event::{
    ChildExit, HangKind, StopReason, SupervisorEffect, SupervisorEvent, SupervisorNotice,
};
pub use group::GroupCounts;
pub use policy::{BackoffScope, GroupPolicy, PARALLEL, RecyclePolicy, RestartPolicy};

/// A group, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub usize);

/// A child. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChildId(pub u64);

impl std::fmt::Display for ChildId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A slot for one child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaSlot {
    /// Its group.
    pub group: GroupId,
    /// Index within the group, from 0.
    pub number: usize,
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
