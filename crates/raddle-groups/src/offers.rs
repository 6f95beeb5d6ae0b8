//! Whether a program offers the routines of group workers. Without one, their tasks would wait
//! without limit.

use raddle_model::{WorkerEntry, spec::routine_tag};

use super::{GroupConfigError, GroupWorker, Process};
use raddle_model::routine::Routines;

/// The error of the first worker whose routine no program offers: neither this program, which the
/// processes run, nor one of these workers that serves its queue.
pub fn find_unoffered_routine(
    processes: &[Process],
    workers: &[WorkerEntry],
) -> Option<GroupConfigError> {
    // A program with duplicate routines does not start.
    let own: Vec<&str> = Routines::of_this_program()
        .unwrap_or_default()
        .names()
        .collect();
    // The routines of a host are known only when it runs: the process reports missing ones.
    let without_host = processes.iter().filter(|process| process.host.is_empty());
    let mut all = without_host.flat_map(|process| {
        process
            .workers
            .iter()
            .enumerate()
            .map(move |at| (process, at))
    });
    all.find_map(|(process, (number, worker))| {
        let name = worker.routine.as_deref().filter(|name| !own.contains(name) && !is_served(worker, name, workers))?;
        let reason = format!(
            "no program offers the routine '{name}': {}. Start its program instead, as in './myapp up', or fix the name",
            match own[..] {
                [] => "this one has no routines".to_owned(),
                _ => format!("this one has {}", own.join(", ")),
            }
        );
        Some(GroupConfigError { path: format!("process.{}.worker[{number}].routine", process.name), reason })
    })
}

fn is_served(worker: &GroupWorker, name: &str, workers: &[WorkerEntry]) -> bool {
    let tag = routine_tag(name);
    let serves = |entry: &WorkerEntry| {
        entry.info.serves(&worker.slug)
            && entry.info.capabilities.iter().any(|offered| offered == tag)
    };
    workers.iter().any(serves)
}
