//! Hung tasks: the time from the limit of a task until its place is free.

use std::{
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use raddle_broker::{Broker, NewTask};
use raddle_model::{TaskSpec, TaskState, Tid};

use crate::{
    groups::{POLL_INTERVAL, TIMEOUT, start_manager, wait_until_pids},
    project_dir::ProjectDir,
};

const LIMIT: Duration = Duration::from_secs(1);
const FILE: &str = "[process.a]\nshutdown_timeout = '300ms'\n[[process.a.worker]]\nslug = 'a'\nexecution_timeout = '1s'\n";

/// A command that ignores `SIGTERM`: until the next task in the same process is done.
pub(crate) fn task_ignoring_sigterm() -> Duration {
    let project = ProjectDir::new();
    let broker = project.broker();
    let manager = start_manager(&project, FILE);
    let before = wait_until_pids(&project, &*broker, |pids| pids.len() == 1);
    let hung = submit(
        &project,
        &broker,
        &[
            "/bin/sh",
            "-c",
            "trap '' TERM; while :; do sleep 0.05; done",
        ],
    );
    let began = wait_for_state(&project, &broker, hung, TaskState::Running);
    let next = submit(&project, &broker, &["/bin/true"]);
    let took = wait_for_state(&project, &broker, next, TaskState::Completed) - began;
    assert_eq!(
        wait_until_pids(&project, &*broker, |_| true),
        before,
        "the process stays"
    );
    manager.kill();
    took.saturating_sub(LIMIT)
}

/// A command whose runner is stopped, so that the runner cannot end it: until its process is
/// replaced.
pub(crate) fn task_with_stopped_runner() -> Duration {
    let project = ProjectDir::new();
    let broker = project.broker();
    let manager = start_manager(&project, FILE);
    let before = wait_until_pids(&project, &*broker, |pids| pids.len() == 1);
    let hung = submit(&project, &broker, &["/bin/sleep", "1000"]);
    let began = wait_for_state(&project, &broker, hung, TaskState::Running);
    let process = *before.first().expect("there is one");
    let runner = children(process)
        .into_iter()
        .find(|child| !children(*child).is_empty())
        .expect("it runs something");
    // SAFETY: a process of the group that was just seen; the signal has no memory effects here.
    unsafe { libc::kill(runner as i32, libc::SIGSTOP) };
    wait_until_pids(&project, &*broker, |pids| {
        pids.difference(&before).next().is_some()
    });
    let took = began.elapsed();
    manager.kill();
    took.saturating_sub(LIMIT)
}

fn submit(project: &ProjectDir, broker: &Arc<dyn Broker>, argv: &[&str]) -> Tid {
    let spec = TaskSpec {
        queue: "a".into(),
        ..TaskSpec::command(argv.iter().copied())
    };
    project
        .wait(broker.submit(vec![NewTask::new(spec)]))
        .expect("there is room")[0]
        .tid()
}

/// Waits until a task is in this state. Returns when it was seen.
fn wait_for_state(
    project: &ProjectDir,
    broker: &Arc<dyn Broker>,
    tid: Tid,
    state: TaskState,
) -> Instant {
    let began = Instant::now();
    loop {
        let task = project
            .wait(broker.task(tid))
            .expect("the broker answers")
            .expect("it is stored");
        if task.state == state {
            return Instant::now();
        }
        assert!(
            began.elapsed() < TIMEOUT,
            "timed out: the task is {}",
            task.state
        );
        thread::sleep(POLL_INTERVAL);
    }
}

fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}
