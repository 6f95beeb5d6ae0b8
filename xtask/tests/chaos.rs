//! The helper commands of `raddle-chaos`: `exec-with-parent` and `task`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_raddle-chaos");

/// Runs a task of this class with this attempt number. Returns its exit code, its output and its
/// lines of the side file.
fn run(class: &str, attempt: &str) -> (Option<i32>, String, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command
        .args(["task", class])
        .env("RADDLE_TID", "1794785197224973287")
        .env("RADDLE_ATTEMPT", attempt);
    let output = command
        .env("RADDLE_CHAOS", directory.path())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let lines = fs::read_to_string(directory.path().join("attempts.log")).unwrap();
    let lines = lines
        .lines()
        .map(|line| {
            line.split(' ')
                .skip(1)
                .take(3)
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
        lines,
    )
}

fn is_alive(pid: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat"));
    state.is_ok_and(|stat| !stat.contains(") Z"))
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_task_records_its_start_and_end() {
    assert_eq!(
        run("quick", "4"),
        (
            Some(0),
            String::new(),
            vec!["4 quick begin".into(), "4 quick end".into()]
        )
    );
    assert_eq!(
        run("always-fails", "1").2,
        ["1 always-fails begin", "1 always-fails fail"]
    );
    assert_eq!(
        (run("flaky", "2").0, run("flaky", "3").0),
        (Some(7), Some(0))
    );
    assert_eq!(
        run("chains", "1").2,
        ["1 chains begin", "1 chains fail"],
        "no raddle binary to chain with"
    );
    let (code, output, _) = run("small-output", "1");
    assert_eq!((code, output.lines().count()), (Some(0), 100));
    let lines = run("short", "1").2;
    assert!(lines.len() > 3 && lines[1] == "1 short tick", "{lines:?}");
}

#[test]
fn a_task_without_its_environment_fails() {
    let bare = Command::new(PROGRAM)
        .args(["task", "quick"])
        .env_remove("RADDLE_TID")
        .output()
        .unwrap();
    assert_eq!(bare.status.code(), Some(99));
}

#[test]
fn a_process_dies_with_its_parent() {
    // A shell that starts the process, prints its pid, and is killed.
    let script = format!("{PROGRAM} exec-with-parent $$ sleep 60 & echo $!; wait");
    let mut shell = Command::new("sh")
        .args(["-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = shell.stdout.take().unwrap();
    let mut line = String::new();
    while !line.ends_with('\n') {
        let mut byte = [0];
        std::io::Read::read_exact(&mut stdout, &mut byte).unwrap();
        line.push(char::from(byte[0]));
    }
    let pid: u32 = line.trim().parse().unwrap();
    let runs_sleep =
        || fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe != Path::new(PROGRAM));
    wait_until("the process has executed sleep", || {
        runs_sleep() && !command_of(pid).contains("exec-with-parent")
    });
    shell.kill().unwrap();
    shell.wait().unwrap();
    wait_until("the process has ended", || !is_alive(pid));
}

#[test]
fn a_process_with_another_parent_does_not_start() {
    let stray = Command::new(PROGRAM)
        .args(["exec-with-parent", "1", "sh", "-c", "echo started"])
        .output()
        .unwrap();
    assert_eq!((stray.status.code(), stray.stdout), (Some(137), Vec::new()));
}

fn command_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}
