//! Schedules: who fires them, and what people do to them.
//!
//! Which due times there are, and what is made of them, is said in [`raddle_core::schedule`]. A [`Service`] waits for the broker's agenda, takes what is due,
//! and ends tasks that have expired. Any number may do so at once: each due time is fired by who changes the schedule first. Residents, spawners and
//! schedulers have one; where none of them lives nothing is fired, and what was due meanwhile is missed.

mod book;
mod service;
mod zone;

pub use book::{Error, Put, pause, put, remove, resume, run_now};
pub(crate) use book::{put_of, remove_of};
pub use service::{Handle, Running, Service, Snapshot};
pub use zone::zone;

use raddle_core::worker::WorkerInfo;

use crate::{group, spawner, worker};

/// Whether a worker like this fires schedules.
pub fn fires(worker: &WorkerInfo) -> bool {
    [worker::RESIDENT, worker::SCHEDULER, spawner::KIND, group::KIND].contains(&worker.kind.as_str())
}
