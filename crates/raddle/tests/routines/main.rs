//! Routines and handlers of a real program, run by workers that are this program again.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    path::Path,
    process::{Child, Command, Output, Stdio},
};

const APP: &str = env!("CARGO_BIN_EXE_raddle-test-app");

/// A database and a worker on it, which ends with the test.
struct World {
    directory: tempfile::TempDir,
    worker: Child,
}

impl World {
    fn new(flags: &[&str]) -> Self {
        Self::with(&[&["worker", "start", "--no-detach", "--quiet"], flags].concat())
    }

    fn with(command: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let worker = app(directory.path())
            .args(command)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { directory, worker }
    }

    fn call(&self, name: &str) -> Output {
        app(self.directory.path())
            .args(["call", name])
            .output()
            .unwrap()
    }

    fn says(&self, name: &str) -> String {
        let output = self.call(name);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn fails(&self, name: &str) -> String {
        let output = self.call(name);
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: the worker is our child and has not been waited for.
        unsafe { libc::kill(self.worker.id() as i32, libc::SIGTERM) };
        let _ = self.worker.wait();
    }
}

fn app(directory: &Path) -> Command {
    let mut command = Command::new(APP);
    command
        .env(
            "QUEUE_URL",
            format!("sqlite:{}", directory.join("work.db").display()),
        )
        .current_dir(directory);
    command
}

#[test]
fn a_routine_is_called_and_answers_with_its_type() {
    let world = World::new(&[]);
    assert_eq!(world.says("add"), "3");
    assert_eq!(world.says("mirror"), "2 1");
    assert_eq!(world.says("name"), "raddle_test_app::add");
}

#[test]
fn a_routine_is_scheduled_as_it_is_called() {
    let world = World::new(&[]);
    let said = world.says("schedule");
    let said: Vec<_> = said.lines().collect();
    assert_eq!(said[..2], ["0 true", "3"]);
    assert!(
        said[2].contains("at 'cron': cron 'soon': has 1 fields"),
        "{said:?}"
    );
}

#[test]
fn a_stream_and_methods_are_tasks_as_well() {
    let world = World::new(&[]);
    assert_eq!(world.says("countdown"), "[3, 2, 1]");
    let said = world.says("methods");
    let said: Vec<_> = said.lines().collect();
    assert_eq!(said[..2], ["3 6 false", "true"]);
    assert_eq!(
        said[2],
        r#"Routine("raddle_test_app::Point::scale") Routine("origin")"#
    );
}

#[test]
fn a_routine_can_be_run_without_a_worker() {
    let directory = tempfile::tempdir().unwrap();
    let output = app(directory.path())
        .args(["call", "here"])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap().trim(),
        "3 Point { x: 0, y: 0 } true"
    );
}

#[test]
fn each_call_runs_in_a_process_of_its_own() {
    let world = World::new(&["--concurrency", "1"]);
    let pids = world.says("pids");
    let mut pids: Vec<_> = pids.lines().collect();
    pids.dedup();
    assert_eq!(pids.len(), 3);
}

/// In a sandbox the first process is the shim, and numbers begin with it.
fn is_inside(pids: &str) -> bool {
    pids.lines().count() == 3
        && pids
            .lines()
            .all(|pid| pid.parse::<u32>().is_ok_and(|pid| pid < 10))
}

#[test]
fn routines_run_in_a_sandbox() {
    let world = World::new(&["--min-isolation", "sandbox"]);
    assert_eq!(world.says("mirror"), "2 1");
    assert!(is_inside(&world.says("pids")), "{}", world.says("pids"));
    assert!(world.fails("explode").contains("bang"));
}

/// Each step is submitted with the success of the one before.
#[test]
fn a_routine_says_what_follows_it() {
    let world = World::new(&[]);
    assert_eq!(
        world.says("relay"),
        "3\n[Number(3), Number(2), Number(1), Number(0)]"
    );
}

#[test]
fn a_handler_in_rust_says_what_follows_it() {
    let world = World::new(&["--caps", "cpu,maths"]);
    assert_eq!(
        world.says("handler relay"),
        "[Number(42), Number(1), Number(0)]"
    );
}

#[test]
fn one_shot_workers_chain_as_well() {
    let world = World::with(&["spawner", "run", "--warm-pool", "1", "--quiet"]);
    assert_eq!(
        world.says("relay"),
        "3\n[Number(3), Number(2), Number(1), Number(0)]"
    );
}

#[test]
fn a_routine_that_fails_is_followed_by_nothing() {
    let world = World::new(&[]);
    let said = world.says("regret");
    assert!(
        said.contains("on second thoughts") && said.ends_with(" 1"),
        "{said}"
    );
}

#[test]
fn what_cannot_be_chained_is_named() {
    let world = World::new(&[]);
    assert!(
        world
            .fails("misname")
            .contains("the task cannot be chained, at 'queue'"),
        "{}",
        world.fails("misname")
    );
    let outside = "only a task can chain others, and this process runs none: submit it instead";
    assert_eq!(world.says("outside"), outside);
}

/// What it chained would run outside.
#[test]
fn a_routine_in_a_sandbox_chains_nothing() {
    let world = World::new(&["--min-isolation", "sandbox"]);
    let said = world.fails("relay");
    assert!(said.contains("a task in a sandbox cannot chain"), "{said}");
}

#[test]
fn a_spawner_of_the_program_keeps_them_in_a_sandbox() {
    let world = World::with(&[
        "spawner",
        "run",
        "--warm-pool",
        "1",
        "--min-isolation",
        "sandbox",
        "--quiet",
    ]);
    assert!(is_inside(&world.says("pids")), "{}", world.says("pids"));
}

#[test]
fn a_spawner_of_the_program_keeps_workers_of_the_program() {
    let world = World::with(&["spawner", "run", "--warm-pool", "1", "--quiet"]);
    assert_eq!(world.says("add"), "3");
    let pids = world.says("pids");
    let mut pids: Vec<_> = pids.lines().collect();
    pids.dedup();
    assert_eq!(pids.len(), 3);
    assert!(world.fails("explode").contains("bang"));
}

#[test]
fn what_goes_wrong_is_told() {
    let world = World::new(&[]);
    assert!(world.fails("sorry").contains("failed: sorry, you"));
    assert!(
        world.fails("read").contains("No such file"),
        "an error that cannot be written down is told"
    );
    let said = world.says("divide");
    assert!(
        said.contains("1 cannot be divided by 0") && said.contains(r#"{"by":0,"number":1}"#),
        "{said}"
    );
    let panicked = world.fails("explode");
    assert!(
        panicked.contains("panicked at")
            && panicked.contains("app.rs:")
            && panicked.contains("bang"),
        "{panicked}"
    );
    assert!(world.fails("sleep").contains("ran past its timeout"));
    assert_eq!(world.says("add"), "3", "the worker is as it was");
}

#[test]
fn two_routines_of_one_name_do_not_start() {
    let output = Command::new(env!("CARGO_BIN_EXE_raddle-test-clash"))
        .output()
        .unwrap();
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(125), &b""[..])
    );
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("two routines are called 'twice'") && said.contains("clash.rs:3"),
        "{said}"
    );
}
