//! Routines and handlers of a program, run as tasks by workers of the same program.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    path::Path,
    process::{Child, Command, Output, Stdio},
};

const APP: &str = env!("CARGO_BIN_EXE_raddle-test-app");

/// A database and a worker on it, which ends with the test.
struct Project {
    directory: tempfile::TempDir,
    worker: Child,
}

impl Project {
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

    fn run(&self, name: &str) -> String {
        let output = self.call(name);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn run_failing(&self, name: &str) -> String {
        let output = self.call(name);
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        // SAFETY: the worker is a child that was not waited for.
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
fn runs_routines_as_tasks() {
    let project = Project::new(&[]);
    assert_eq!(project.run("add"), "3");
    assert_eq!(project.run("mirror"), "2 1");
    assert_eq!(project.run("name"), "raddle_test_app::add");
}

#[test]
fn schedules_a_routine() {
    let project = Project::new(&[]);
    let text = project.run("schedule");
    let text: Vec<_> = text.lines().collect();
    assert_eq!(text[..2], ["0 true", "3"]);
    assert!(
        text[2].contains("at 'cron': cron 'soon': has 1 fields"),
        "{text:?}"
    );
}

#[test]
fn runs_streams_and_methods_as_tasks() {
    let project = Project::new(&[]);
    assert_eq!(project.run("countdown"), "[3, 2, 1]");
    let text = project.run("methods");
    let text: Vec<_> = text.lines().collect();
    assert_eq!(text[..2], ["3 6 false", "true"]);
    assert_eq!(
        text[2],
        r#"Routine("raddle_test_app::Point::scale") Routine("origin")"#
    );
}

#[test]
fn runs_a_routine_in_this_process() {
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
fn runs_each_task_in_a_fresh_process() {
    let project = Project::new(&["--concurrency", "1"]);
    let pids = project.run("pids");
    let mut pids: Vec<_> = pids.lines().collect();
    pids.dedup();
    assert_eq!(pids.len(), 3);
}

/// In a sandbox pids begin with the shim.
fn are_in_sandbox(pids: &str) -> bool {
    pids.lines().count() == 3
        && pids
            .lines()
            .all(|pid| pid.parse::<u32>().is_ok_and(|pid| pid < 10))
}

#[test]
fn routines_run_in_a_sandbox() {
    let project = Project::new(&["--min-isolation", "sandbox"]);
    assert_eq!(project.run("mirror"), "2 1");
    assert!(
        are_in_sandbox(&project.run("pids")),
        "{}",
        project.run("pids")
    );
    assert!(project.run_failing("explode").contains("bang"));
}

/// Each step is submitted by the success of the one before.
#[test]
fn a_routine_chains_tasks() {
    let project = Project::new(&[]);
    assert_eq!(
        project.run("relay"),
        "3\n[Number(3), Number(2), Number(1), Number(0)]"
    );
}

#[test]
fn a_rust_handler_chains_tasks() {
    let project = Project::new(&["--caps", "cpu,maths"]);
    assert_eq!(
        project.run("handler relay"),
        "[Number(42), Number(1), Number(0)]"
    );
}

#[test]
fn one_shot_workers_chain_tasks() {
    let project = Project::with(&["spawner", "run", "--warm-pool", "1", "--quiet"]);
    assert_eq!(
        project.run("relay"),
        "3\n[Number(3), Number(2), Number(1), Number(0)]"
    );
}

#[test]
fn a_failed_routine_chains_nothing() {
    let project = Project::new(&[]);
    let text = project.run("regret");
    assert!(
        text.contains("on second thoughts") && text.ends_with(" 1"),
        "{text}"
    );
}

#[test]
fn explains_invalid_chains() {
    let project = Project::new(&[]);
    assert!(
        project
            .run_failing("misname")
            .contains("the task cannot be chained, at 'queue'"),
        "{}",
        project.run_failing("misname")
    );
    let outside = "only a task can chain others, and this process runs none: submit it instead";
    assert_eq!(project.run("outside"), outside);
}

/// A chained task would run outside of the sandbox.
#[test]
fn a_sandboxed_routine_cannot_chain() {
    let project = Project::new(&["--min-isolation", "sandbox"]);
    let text = project.run_failing("relay");
    assert!(text.contains("a task in a sandbox cannot chain"), "{text}");
}

#[test]
fn a_spawner_runs_routines_in_a_sandbox() {
    let project = Project::with(&[
        "spawner",
        "run",
        "--warm-pool",
        "1",
        "--min-isolation",
        "sandbox",
        "--quiet",
    ]);
    assert!(
        are_in_sandbox(&project.run("pids")),
        "{}",
        project.run("pids")
    );
}

#[test]
fn a_spawner_starts_workers_of_the_program() {
    let project = Project::with(&["spawner", "run", "--warm-pool", "1", "--quiet"]);
    assert_eq!(project.run("add"), "3");
    let pids = project.run("pids");
    let mut pids: Vec<_> = pids.lines().collect();
    pids.dedup();
    assert_eq!(pids.len(), 3);
    assert!(project.run_failing("explode").contains("bang"));
}

#[test]
fn reports_errors_panics_and_timeouts() {
    let project = Project::new(&[]);
    assert!(project.run_failing("sorry").contains("failed: sorry, you"));
    assert!(
        project.run_failing("read").contains("No such file"),
        "errors that cannot be serialized are reported"
    );
    let text = project.run("divide");
    assert!(
        text.contains("1 cannot be divided by 0") && text.contains(r#"{"by":0,"number":1}"#),
        "{text}"
    );
    let panicked = project.run_failing("explode");
    assert!(
        panicked.contains("panicked at")
            && panicked.contains("app.rs:")
            && panicked.contains("bang"),
        "{panicked}"
    );
    assert!(
        project
            .run_failing("sleep")
            .contains("ran past its timeout")
    );
    assert_eq!(project.run("add"), "3", "the worker still runs tasks");
}

#[test]
fn refuses_duplicate_routine_names() {
    let output = Command::new(env!("CARGO_BIN_EXE_raddle-test-clash"))
        .output()
        .unwrap();
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(125), &b""[..])
    );
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("two routines are called 'twice'") && text.contains("clash.rs:3"),
        "{text}"
    );
}
