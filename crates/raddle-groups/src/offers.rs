//! Whether a program offers the routines of group workers. Without one, their tasks would wait
//! without limit.

use raddle_model::{WorkerEntry, spec::routine_tag};

use super::{GroupConfigError, GroupWorker, Process};
use raddle_model::routine::Routines;
use raddle_worker::host::{HostOptions, HostProgram, probe};

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
    // The routines of a host are known only when it runs: see `check_hosts`.
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

/// Starts the host program of each process, and checks that it offers the routines of the process:
/// their tasks would wait without limit.
pub(super) async fn check_hosts(processes: &[Process]) -> Result<(), GroupConfigError> {
    for process in processes {
        let has_routines = process
            .workers
            .iter()
            .any(|worker| worker.routine.is_some());
        if process.host.is_empty() || !has_routines {
            continue;
        }
        let program = HostProgram::Command(process.host.clone());
        let hello = probe(&HostOptions::new(&process.name, program, 1)).await;
        let command = process.host.join(" ");
        let hello = hello.map_err(|reason| GroupConfigError {
            path: format!("process.{}.host", process.name),
            reason: format!("the host '{command}' does not start: {reason}"),
        })?;
        for (number, worker) in process.workers.iter().enumerate() {
            let missing = worker
                .routine
                .as_ref()
                .filter(|name| !hello.routines.contains_key(*name));
            if let Some(name) = missing {
                let offered: Vec<&str> = hello.routines.keys().map(String::as_str).collect();
                return Err(GroupConfigError {
                    path: format!("process.{}.worker[{number}].routine", process.name),
                    reason: format!(
                        "the host '{command}' has no routine '{name}': it has {}. Add it there, or fix the name",
                        offered.join(", ")
                    ),
                });
            }
        }
    }
    Ok(())
}

fn is_served(worker: &GroupWorker, name: &str, workers: &[WorkerEntry]) -> bool {
    let tag = routine_tag(name);
    let serves = |entry: &WorkerEntry| {
        entry.info.serves(&worker.slug)
            && entry.info.capabilities.iter().any(|offered| offered == tag)
    };
    workers.iter().any(serves)
}
