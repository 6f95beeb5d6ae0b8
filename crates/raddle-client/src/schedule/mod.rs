//! Schedules: who fires them, and what people do to them.
//!
//! Which due times there are, and what is made of them, is said in [`raddle_model::schedule`]. [`RunningScheduler`] waits for the broker's agenda, takes what is due,
//! and ends tasks that have expired. Any number may do so at once: each due time is fired by who changes the schedule first. Residents, spawners, managers
//! and schedulers have one; where none of them lives nothing is fired, and what was due meanwhile is missed.

mod store;
mod zone;

pub use store::{Error, PutOutcome, pause, put, remove, resume, run_now};
pub use store::{put_of, remove_of};
pub use zone::zone;

use raddle_model::worker::{WorkerInfo, kind};

/// Whether a worker like this fires schedules.
pub fn fires(worker: &WorkerInfo) -> bool {
    [kind::RESIDENT, kind::SCHEDULER, kind::SPAWNER, kind::GROUP].contains(&worker.kind.as_str())
        || worker.is_manager()
}

#[cfg(test)]
mod tests {
    use raddle_model::{manager::PRIME, queue_name::requests};

    use super::*;

    #[test]
    fn managers_fire_and_who_is_there_for_one_task_does_not() {
        for kind in kind::ALL {
            let is_one = !matches!(kind, kind::ONE_SHOT | kind::INLINE | kind::POOL);
            assert_eq!(fires(&WorkerInfo::new("w", kind)), is_one, "{kind}");
        }
        for kind in [PRIME, "unix"] {
            let manager = WorkerInfo {
                queues: vec![requests(kind)],
                ..WorkerInfo::new("m", kind)
            };
            assert!(fires(&manager), "{kind}");
            let worker = WorkerInfo {
                kind: kind::ONE_SHOT.into(),
                concurrency: 1,
                ..manager
            };
            assert!(!fires(&worker), "a worker of the manager '{kind}'");
        }
    }
}
