//! Commands that wait say why.

use crate::world::{World, wait_until};

const NO_WORKER: &str = "waits: no worker is alive; start one with 'raddle worker start'";

#[test]
fn commands_explain_that_a_task_has_no_worker() {
    let world = World::new();
    let tid = world.submit(&["--", "echo", "done"]);
    let waiting: Vec<_> = [&["wait"][..], &["result", "--wait"], &["logs", "-f"]]
        .into_iter()
        .map(|command| world.start([command, &[&tid]].concat()))
        .collect();
    for started in &waiting {
        wait_until("it says what is missing", || {
            started.stderr().contains(NO_WORKER)
        });
    }
    world.worker(&[]);
    let shown: Vec<String> = waiting
        .into_iter()
        .map(|started| started.finish().ok().text().to_owned())
        .collect();
    assert_eq!(shown, [&format!("{tid} completed\n"), "done\n", "done\n"]);
}

#[test]
fn a_run_explains_that_its_worker_is_busy() {
    let world = World::new();
    world.worker(&["--concurrency", "1"]);
    let first = world.start([
        "run",
        "--no-inline",
        "--",
        "sh",
        "-c",
        "echo begun; until test -e go; do sleep 0.05; done",
    ]);
    wait_until("the only slot is taken", || first.stdout() == "begun\n");
    let second = world.start(["run", "--no-inline", "--", "echo", "second"]);
    wait_until("it says why", || {
        second
            .stderr()
            .contains("(echo) is next: the one able worker is busy\n")
    });
    world.file("go", "");
    assert_eq!(second.finish().ok().text(), "second\n");
    assert_eq!(first.finish().ok().stderr, "", "its task runs");
}

#[test]
fn a_run_of_a_handler_that_no_worker_has_names_it() {
    let world = World::new();
    let started = world.start(["run", "--handler", "nope", "--", "x"]);
    wait_until("it says what is missing", || {
        started
            .stderr()
            .contains("waits: it needs @handler:nope, and no live worker has that; start a worker")
    });
    started.signal(libc::SIGINT);
    started.finish().code(130);
}

#[test]
fn explains_how_to_resume_a_paused_task() {
    let world = World::new();
    let tid = world.submit(&["--", "true"]);
    world.raddle(["task", "pause", &tid]).ok();
    let started = world.start(["wait", &tid]);
    let hint = format!("is created and paused; resume it with 'raddle task resume {tid}'");
    wait_until("it says so", || started.stderr().contains(&hint));
    world.raddle(["task", "kill", &tid]).ok();
    started.finish().code(1);
}

#[test]
fn a_run_is_silent_while_its_task_runs() {
    let world = World::new();
    let ran = world
        .raddle(["run", "--", "sh", "-c", "sleep 2.5; echo done"])
        .ok();
    assert_eq!((ran.text(), ran.stderr.as_str()), ("done\n", ""));
}
