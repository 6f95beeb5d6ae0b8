//! What happens when a runner or a worker is killed.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use raddle_runner::{RunnerCommand, become_subreaper, reap_orphans};

use crate::support::{Rig, alive, mark, options, state, until, within};

/// A command with a child in its group, one outside, and a double-forked one.
const FAMILY: &str = "sleep 300 & setsid sleep 300 & (setsid sh -c 'sleep 300 & sleep 300' &); sleep 0.1; echo ready; sleep 300";

/// Looking for orphans finds every child of the process, other tests' included, where tests share one.
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
async fn a_killed_runner_leaves_its_orphans_to_the_worker() {
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
    assert!(!rig.left().is_empty(), "its children do not");
    assert!(reap_orphans(&[]) >= 4);
    assert_eq!(rig.left(), Vec::<String>::new());
    assert_eq!(reap_orphans(&[]), 0);
    // A runner is not an orphan.
    other.runner.send(RunnerCommand::Kill).await.unwrap();
    other.end().await;
    other.finish().await;
    rig.finish().await;
}

#[tokio::test]
async fn a_dropped_handle_ends_the_runner_and_the_whole_tree() {
    let mut rig = Rig::new().await;
    rig.start_until_output(&rig.sh(FAMILY)).await;
    let (runner, mark) = (rig.runner.pid(), rig.mark().to_owned());
    assert!(rig.left().len() >= 5);
    drop(rig);
    until("the tree is gone", || alive(&mark).is_empty()).await;
    until("the runner is gone", || state(runner).is_none()).await;
}

#[tokio::test]
async fn a_closed_handle_ends_a_runner_that_is_stopped() {
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
async fn a_killed_worker_takes_runner_and_tree_along() {
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
async fn nonsense_on_the_socket_ends_the_runner_and_its_task() {
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
async fn a_start_out_of_turn_ends_the_runner_and_its_task() {
    let mut rig = Rig::new().await;
    rig.start_until_output(&rig.sh(FAMILY)).await;
    rig.start(&rig.sh("true")).await;
    assert!(rig.next().await.is_err());
    until("the tree is gone", || rig.left().is_empty()).await;
    rig.finish().await;
}

#[tokio::test]
async fn a_runner_started_by_hand_says_so() {
    let started = Command::new(options().program)
        .arg("__runner")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(started.status.code(), Some(71));
    assert!(String::from_utf8_lossy(&started.stderr).contains("only a worker"));
}

#[tokio::test]
async fn news_survive_a_cancelled_wait() {
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
