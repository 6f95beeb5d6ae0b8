//! A task that hangs: how long after its limit another has its place.

use std::{
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use raddle_broker::{Broker, NewTask};
use raddle_model::{TaskSpec, TaskState, Tid};

use crate::{
    bed::Bed,
    groups::{LOOK, PATIENCE, until, up},
};

const LIMIT: Duration = Duration::from_secs(1);
const FILE: &str = "[process.a]\nshutdown_timeout = '300ms'\n[[process.a.worker]]\nslug = 'a'\nexecution_timeout = '1s'\n";

/// One that does not heed SIGTERM: until the task behind it is done, in the same process.
pub(crate) fn deaf() -> Duration {
    let bed = Bed::new();
    let broker = bed.broker();
    let manager = up(&bed, FILE);
    let before = until(&bed, &*broker, |pids| pids.len() == 1);
    let hung = submit(
        &bed,
        &broker,
        &[
            "/bin/sh",
            "-c",
            "trap '' TERM; while :; do sleep 0.05; done",
        ],
    );
    let began = reaches(&bed, &broker, hung, TaskState::Running);
    let next = submit(&bed, &broker, &["/bin/true"]);
    let took = reaches(&bed, &broker, next, TaskState::Completed) - began;
    assert_eq!(until(&bed, &*broker, |_| true), before, "the process stays");
    manager.kill();
    took.saturating_sub(LIMIT)
}

/// One whose runner stands still, so that nobody ends it in time: until its process is replaced.
pub(crate) fn stuck() -> Duration {
    let bed = Bed::new();
    let broker = bed.broker();
    let manager = up(&bed, FILE);
    let before = until(&bed, &*broker, |pids| pids.len() == 1);
    let hung = submit(&bed, &broker, &["/bin/sleep", "1000"]);
    let began = reaches(&bed, &broker, hung, TaskState::Running);
    let process = *before.first().expect("there is one");
    let runner = children(process)
        .into_iter()
        .find(|child| !children(*child).is_empty())
        .expect("it runs something");
    // SAFETY: a process of the group that was just seen; the signal has no memory effects here.
    unsafe { libc::kill(runner as i32, libc::SIGSTOP) };
    until(&bed, &*broker, |pids| {
        pids.difference(&before).next().is_some()
    });
    let took = began.elapsed();
    manager.kill();
    took.saturating_sub(LIMIT)
}

fn submit(bed: &Bed, broker: &Arc<dyn Broker>, argv: &[&str]) -> Tid {
    let spec = TaskSpec {
        queue: "a".into(),
        ..TaskSpec::command(argv.iter().copied())
    };
    bed.wait(broker.submit(vec![NewTask::new(spec)]))
        .expect("there is room")[0]
        .tid()
}

/// When a task was seen in a state.
fn reaches(bed: &Bed, broker: &Arc<dyn Broker>, tid: Tid, state: TaskState) -> Instant {
    let began = Instant::now();
    loop {
        let task = bed
            .wait(broker.task(tid))
            .expect("the broker answers")
            .expect("it is stored");
        if task.state == state {
            return Instant::now();
        }
        assert!(began.elapsed() < PATIENCE, "in vain: it is {}", task.state);
        thread::sleep(LOOK);
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
