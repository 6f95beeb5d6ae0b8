//! Keeping processes alive: who is started, replaced, recycled and stopped, and when. Decisions only.
//!
//! A *group* has as many *seats* as it has replicas, and a seat has one *child* at most. [`Core::on`] is told what has happened, and says what to
//! do about it. It starts nothing, reads no clock, and knows neither processes nor brokers: whoever keeps others alive can ask it. Groups do, and
//! spawners, the prime among them, and pools of workers that take calls. There is no second engine.
//!
//! | file | what |
//! | --- | --- |
//! | `policy.rs` | how the children of a group are treated |
//! | `event.rs` | what happens to a core, and what it wants done |
//! | `child.rs` | one child: starting, ready, stopping |
//! | `group.rs` | one group: its seats, who is held back |
//! | `core.rs` | what has happened |
//! | `follow.rs` | what follows from it |

mod child;
mod core;
mod event;
mod follow;
mod group;
mod policy;

pub use core::Core;
pub use event::{Effect, End, Event, Hang, Notice, Why};
pub use group::Census;
pub use policy::{Braking, PARALLEL, Policy, Recycle, Restart};

/// A group, by its place among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub usize);

/// A child. No two ever have the same, also one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChildId(pub u64);

impl std::fmt::Display for ChildId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A place for one child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seat {
    /// Its group.
    pub group: GroupId,
    /// Which of the group's, from 0.
    pub number: usize,
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
