//! A Rust program with a group manager of its own processes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

/// The output of a scenario of the program.
fn run(scenario: &str) -> (String, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_raddle-test-groups"));
    let url = format!("sqlite:{}", directory.path().join("work.db").display());
    let output = command
        .arg(scenario)
        .env("QUEUE_URL", url)
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    // A process leaves its working directory shortly after the files that were waited for.
    let began = Instant::now();
    while !processes_in(directory.path()).is_empty() {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "{:?}",
            processes_in(directory.path())
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    (String::from_utf8(output.stdout).unwrap(), directory)
}

/// Processes with this working directory.
fn processes_in(directory: &Path) -> Vec<String> {
    let directory = directory.canonicalize().unwrap();
    let works_there =
        |process: &Path| std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == directory);
    let processes = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    let processes_there = processes.filter(|process| works_there(process));
    processes_there
        .map(|process| {
            String::from_utf8_lossy(&std::fs::read(process.join("cmdline")).unwrap_or_default())
                .into_owned()
        })
        .collect()
}

#[test]
fn routines_run_events_and_clean_up_when_cancelled() {
    let (stdout, _directory) = run("run");
    assert_eq!(
        stdout,
        "\"1 × loom\", \"2 × loom\", \"3 × loom\"\n4 processes, cleaned up: asked\n"
    );
}

/// A task that runs past its `execution_timeout` is cancelled, and cleans up.
#[test]
fn a_program_runs_the_groups_of_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = "[process.a]\nshutdown_timeout = '20s'\n[[process.a.worker]]\nslug = 'a'\nroutine = 'endless'\n\
                execution_timeout = '500ms'\ntrigger = { every = '200ms' }\n";
    std::fs::write(directory.path().join("raddle.toml"), file).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_raddle-test-groups"));
    let url = format!("sqlite:{}", directory.path().join("work.db").display());
    let mut manager = command
        .arg("up")
        .env("QUEUE_URL", url)
        .current_dir(directory.path())
        .spawn()
        .unwrap();
    let wait_until = |condition: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !condition() && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(10));
        }
        condition()
    };
    let has_cleaned_up = wait_until(&|| {
        std::fs::read_to_string(directory.path().join("cleaned")).is_ok_and(|how| how == "asked")
    });
    // SAFETY: the child was not waited for; the signal has no memory effects here.
    unsafe { libc::kill(manager.id() as i32, libc::SIGTERM) };
    let status = manager.wait().unwrap();
    assert!(has_cleaned_up && status.success(), "{status}");
    assert!(
        wait_until(&|| processes_in(directory.path()).is_empty()),
        "{:?}",
        processes_in(directory.path())
    );
}

#[test]
fn a_trigger_fires_periodically() {
    let (stdout, _directory) = run("every");
    assert_eq!(stdout, "ticked, by its trigger: true\n");
}

/// The program needs no signal handlers: running tasks end, and the manager leaves the registry.
#[test]
fn a_manager_in_a_program_stops_on_sigterm_and_sigint() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_raddle-test-groups"));
        let url = format!("sqlite:{}", directory.path().join("work.db").display());
        command
            .arg("signalled")
            .env("QUEUE_URL", url)
            .current_dir(directory.path())
            .stdout(std::process::Stdio::piped());
        let manager = command.spawn().unwrap();
        let began = Instant::now();
        while !directory.path().join("ready").exists() {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "the manager is not ready in time"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        // SAFETY: the child was not waited for; the signal has no memory effects here.
        unsafe { libc::kill(manager.id() as i32, signal) };
        let output = manager.wait_with_output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(
            (stdout.as_str(), output.status.code()),
            ("4 processes, ended: true\n0 are left\n", Some(0))
        );
    }
}

#[test]
fn group_processes_finish_when_their_manager_is_dropped() {
    let (stdout, _directory) = run("dropped");
    assert_eq!(stdout, "4 processes are gone, ended: true\n");
}

#[test]
fn group_processes_are_killed_when_the_runtime_ends() {
    let (stdout, _directory) = run("without-runtime");
    assert_eq!(stdout, "4 processes are gone\n");
}
