//! Schedules: storing, pausing, removing and running them.
//!
//! [`raddle_model::schedule`] computes due times and tasks. Any number of schedulers
//! (`raddle_worker::scheduler`) may run: the one that changes a schedule first fires its due time.
//! Residents, spawners, managers and schedulers run one. While none of them is alive, nothing is
//! fired, and due times are missed.

mod store;
mod zone;

pub use store::{Error, PutOutcome, pause, put, remove, resume, run_now};
pub use store::{put_owned, remove_owned};
pub use zone::zone;

use raddle_model::worker::{WorkerInfo, kind};

/// Whether a worker of this kind fires schedules.
pub fn fires(worker: &WorkerInfo) -> bool {
    [kind::RESIDENT, kind::SCHEDULER, kind::SPAWNER, kind::GROUP].contains(&worker.kind.as_str())
        || worker.is_manager()
}

#[cfg(test)]
mod tests {
    use raddle_model::{manager::PRIME, queue_name::requests};

    use super::*;

    #[test]
    fn managers_fire_schedules_and_workers_for_one_task_do_not() {
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
