//! Runners and workers that are killed.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use raddle_runner::{RunnerCommand, become_subreaper, reap_orphans};

use crate::support::{Rig, alive, mark, options, state, until, within};

/// A command with a child in its group, one outside, and a double-forked one.
const FAMILY: &str = "sleep 300 & setsid sleep 300 & (setsid sh -c 'sleep 300 & sleep 300' &); sleep 0.1; echo ready; sleep 300";

/// `reap_orphans` finds every child of the process, including those of other tests in the same
/// process.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn kill_9(pid: u32) {
    assert!(
        Command::new("kill")
            .args(["-9", &pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
}

#[tokio::test]
async fn worker_reaps_orphans_of_a_killed_runner() {
    let _alone = ALONE.lock().await;
    become_subreaper().unwrap();
    let mut other = Rig::new().await;
    other
        .start_until_output(&other.sh("echo ready; sleep 300"))
        .await;
    let mut rig = Rig::new().await;
    let command = rig.start_until_output(&rig.sh(FAMILY)).await;
    kill_9(rig.runner.pid());
    let gone = rig.next().await.unwrap_err();
    assert!(gone.to_string().contains(&rig.runner.pid().to_string()));
    until("the command dies with its runner", || {
        matches!(state(command), None | Some('Z'))
    })
    .await;
    assert!(!rig.leftover_processes().is_empty(), "its children do not");
    assert!(reap_orphans(&[]) >= 4);
    assert_eq!(rig.leftover_processes(), Vec::<String>::new());
    assert_eq!(reap_orphans(&[]), 0);
    // A runner is not an orphan.
    other.runner.send(RunnerCommand::Kill).await.unwrap();
    other.end().await;
    other.finish().await;
    rig.finish().await;
}

#[tokio::test]
async fn dropping_the_handle_kills_runner_and_tree() {
    let mut rig = Rig::new().await;
    rig.start_until_output(&rig.sh(FAMILY)).await;
    let (runner, mark) = (rig.runner.pid(), rig.mark().to_owned());
    assert!(rig.leftover_processes().len() >= 5);
    drop(rig);
    until("the tree is gone", || alive(&mark).is_empty()).await;
    until("the runner is gone", || state(runner).is_none()).await;
}

#[tokio::test]
async fn closing_the_handle_ends_a_stopped_runner() {
    let mut rig = Rig::new().await;
    rig.start_until_output(&rig.sh(FAMILY)).await;
    assert!(
        Command::new("kill")
            .args(["-STOP", &rig.runner.pid().to_string()])
            .status()
            .unwrap()
            .success()
    );
    rig.finish().await;
}

#[tokio::test]
async fn runner_and_tree_die_with_a_killed_worker() {
    let _alone = ALONE.lock().await;
    let mark = mark();
    let mut worker = Command::new(options().program)
        .args(["worker", FAMILY])
        .env("RADDLE_TEST_MARK", &mark)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(worker.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let pids: Vec<u32> = line
        .split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect();
    until("the family is there", || alive(&mark).len() >= 7).await;
    worker.kill().unwrap();
    worker.wait().unwrap();
    until("the tree is gone", || alive(&mark).is_empty()).await;
    for pid in pids {
        until("runner and command are gone", || {
            matches!(state(pid), None | Some('Z'))
        })
        .await;
    }
}

#[tokio::test]
async fn unreadable_message_ends_runner_and_task() {
    use std::{io::Write, os::fd::OwnedFd, os::unix::net::UnixStream};
    for nonsense in [
        &b"\xff\xff\xff\xff\xff\xff"[..],
        b"\x01\xff\xff\xff\xff",
        b"\x01\x00\x00\x00\x09",
    ] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut runner = Command::new(options().program)
            .args(["__runner", "free"])
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        ours.write_all(nonsense).unwrap();
        let ended = within(tokio::task::spawn_blocking(move || runner.wait().unwrap()))
            .await
            .unwrap();
        assert_eq!(ended.code(), Some(125));
    }
}

#[tokio::test]
async fn unexpected_start_ends_runner_and_task() {
    let mut rig = Rig::new().await;
    rig.start_until_output(&rig.sh(FAMILY)).await;
    rig.start(&rig.sh("true")).await;
    assert!(rig.next().await.is_err());
    until("the tree is gone", || rig.leftover_processes().is_empty()).await;
    rig.finish().await;
}

#[tokio::test]
async fn runner_started_by_hand_reports_it() {
    let started = Command::new(options().program)
        .arg("__runner")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(started.status.code(), Some(71));
    assert!(String::from_utf8_lossy(&started.stderr).contains("only a worker"));
}

#[tokio::test]
async fn dropping_next_loses_no_event() {
    let mut rig = Rig::new().await;
    rig.start(&rig.sh("for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.03; done"))
        .await;
    let mut stdout = Vec::new();
    let done = loop {
        match tokio::time::timeout(Duration::from_millis(1), rig.runner.next()).await {
            Err(_) => {}
            Ok(Ok(raddle_runner::RunnerEvent::Output { bytes, .. })) => stdout.extend(bytes),
            Ok(Ok(raddle_runner::RunnerEvent::Done(done))) => break done,
            Ok(Ok(_)) => {}
            Ok(Err(gone)) => panic!("{gone}"),
        }
    };
    stdout.extend_from_slice(&done.stdout);
    assert_eq!(stdout, b"1\n2\n3\n4\n5\n6\n7\n8\n9\n");
    rig.finish().await;
}
