//! How soon the tasks of a killed host run again.

use std::{collections::BTreeMap, fs, path::Path, thread, time::Duration};

use raddle_broker::NewTask;
use raddle_model::{Target, TaskSpec};
use serde_json::json;

use super::{
    super::{
        Engine,
        engine_project::{EngineProject, clock},
    },
    tree,
};
use crate::{
    Plan,
    stats::{Requirement, print_rounds},
};

/// Tasks that run when a host is killed, in two hosts.
const TASKS: usize = 20;
/// How long each holds its place: longer than a kill takes to be noticed.
const HOLD_MILLIS: u64 = 1500;

pub(super) fn bench(plan: &Plan) -> Requirement {
    let rounds = if plan.quick { 3 } else { 20 };
    let project = EngineProject::new(Engine::Sqlite);
    let worker = project.worker(&["--hosts", "2", "--host-concurrency", "50"]);
    let mut times = Vec::new();
    for round in 0..rounds {
        times.extend(kill_one(&project, worker.pid(), round));
        project.wait_until_completed((round + 1) * TASKS);
    }
    times.sort_by(f64::total_cmp);
    let p99 = times[(times.len() * 99 / 100).min(times.len() - 1)];
    print_rounds(
        &format!("a task of a killed host runs again, {} tasks", times.len()),
        "ms",
        &[times[times.len() / 2]],
    );
    Requirement::at_most(
        "ms from the kill of a host until its tasks run again, p99",
        p99,
        100.0,
    )
}

/// Kills a host with tasks in it. Returns how many milliseconds later each of them ran again.
fn kill_one(project: &EngineProject, worker: u32, round: usize) -> Vec<f64> {
    let path = project.dir.path().join(format!("held-{round}"));
    let tasks = (0..TASKS)
        .map(|number| {
            let mut spec = TaskSpec::new(Target::Routine("hold".into()));
            spec.args = vec![
                json!(path.display().to_string()),
                json!(number),
                json!(HOLD_MILLIS),
            ];
            NewTask::new(spec)
        })
        .collect();
    project
        .dir
        .wait(project.broker.submit(tasks))
        .expect("there is room");
    let first = wait_for(&path, |lines| lines.len() == TASKS);
    let victim = first[0].host;
    let held: Vec<u32> = first
        .iter()
        .filter(|line| line.host == victim)
        .map(|line| line.number)
        .collect();
    assert!(tree(worker).contains(&victim), "the host is a descendant");
    let killed_at = clock();
    // SAFETY: the host was started by a worker of this program and runs a task.
    unsafe { libc::kill(victim as i32, libc::SIGKILL) };
    let all = wait_for(&path, |lines| lines.len() >= TASKS + held.len());
    let again: BTreeMap<u32, u64> = all[TASKS..]
        .iter()
        .map(|line| (line.number, line.at))
        .collect();
    assert_eq!(again.len(), held.len(), "each runs again once");
    again
        .values()
        .map(|at| at.saturating_sub(killed_at) as f64 / 1e6)
        .collect()
}

struct Line {
    number: u32,
    host: u32,
    at: u64,
}

fn wait_for(path: &Path, is_done: impl Fn(&[Line]) -> bool) -> Vec<Line> {
    for _ in 0..30_000 {
        let text = fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<Line> = text.lines().map(parse).collect();
        if is_done(&lines) {
            return lines;
        }
        thread::sleep(Duration::from_millis(2));
    }
    panic!("the tasks run in time");
}

fn parse(line: &str) -> Line {
    let numbers: Vec<u64> = line
        .split(' ')
        .map(|word| word.parse().expect("a number"))
        .collect();
    Line {
        number: numbers[0] as u32,
        host: numbers[1] as u32,
        at: numbers[2],
    }
}
