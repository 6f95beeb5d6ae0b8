//! Timeouts, stop, kill, pause, and signals to the runner itself.

use std::time::{Duration, Instant};

use raddle_model::ExitStatus;
use raddle_runner::{ExecRequest, RunnerCommand};

use crate::support::{Rig, code, state, until, within};

const STUBBORN: &str = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
const POLITE: &str = "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.02; done";

fn signal(pid: u32, signal: &str) {
    let pid = pid.to_string();
    assert!(
        std::process::Command::new("kill")
            .args([signal, &pid])
            .status()
            .unwrap()
            .success()
    );
}

fn short_grace(mut request: ExecRequest) -> ExecRequest {
    request.grace = Duration::from_millis(200);
    request
}

#[tokio::test]
async fn timeout_kills_a_command_that_ignores_sigterm() {
    let mut rig = Rig::new().await;
    let mut request = rig.sh(STUBBORN);
    // The timeout has its own grace, which is shorter here than that of a stop.
    request.timeout_grace = Duration::from_millis(200);
    request.timeout = Some(Duration::from_millis(300));
    let begin = Instant::now();
    assert_eq!(rig.run(&request).await.done.exit, ExitStatus::Timeout);
    assert!(
        (500..5000).contains(&begin.elapsed().as_millis()),
        "{:?}",
        begin.elapsed()
    );
    rig.finish().await;
}

#[tokio::test]
async fn timeout_lets_a_command_clean_up() {
    let mut rig = Rig::new().await;
    let mut request = rig.sh(POLITE);
    request.timeout = Some(Duration::from_millis(300));
    let outcome = rig.run(&request).await;
    assert_eq!(
        (outcome.done.exit, outcome.stdout),
        (ExitStatus::Timeout, b"ready\nbye\n".to_vec())
    );
    rig.finish().await;
}

#[tokio::test]
async fn stop_does_not_shorten_the_grace_after_a_timeout() {
    let mut rig = Rig::new().await;
    let script =
        "trap 'echo told; while ! test -e go; do sleep 0.02; done; echo cleaned; exit 7' TERM
                  while :; do sleep 0.02; done";
    let directory = tempfile::tempdir().unwrap();
    let mut request = rig.sh(script);
    request.cwd = Some(directory.path().to_string_lossy().into_owned());
    request.timeout = Some(Duration::from_millis(100));
    request.timeout_grace = Duration::from_secs(60);
    rig.start_until_output(&request).await;
    rig.runner.send(RunnerCommand::Stop).await.unwrap();
    rig.runner.send(RunnerCommand::Stop).await.unwrap();
    std::fs::write(directory.path().join("go"), "").unwrap();
    let outcome = rig.end().await;
    assert_eq!(
        (outcome.done.exit, outcome.done.killed),
        (ExitStatus::Timeout, false)
    );
    assert!(
        outcome.stdout.ends_with(b"cleaned\n"),
        "{:?}",
        String::from_utf8_lossy(&outcome.stdout)
    );
    rig.finish().await;
}

#[tokio::test]
async fn reports_a_stop_as_cancelled_and_a_kill_as_killed() {
    let mut rig = Rig::new().await;
    for (order, script, expected) in [
        (RunnerCommand::Stop, POLITE, ExitStatus::Cancelled),
        (
            RunnerCommand::Stop,
            "echo ready; sleep 60",
            ExitStatus::Cancelled,
        ),
        (RunnerCommand::Kill, STUBBORN, ExitStatus::Killed),
        (
            RunnerCommand::Kill,
            "echo ready; sleep 60",
            ExitStatus::Killed,
        ),
    ] {
        rig.start_until_output(&rig.sh(script)).await;
        rig.runner.send(order).await.unwrap();
        assert_eq!(rig.end().await.done.exit, expected);
    }
    rig.finish().await;
}

#[tokio::test]
async fn kills_after_the_grace_or_on_a_second_stop() {
    let mut rig = Rig::new().await;
    rig.start_until_output(&short_grace(rig.sh(STUBBORN))).await;
    let begin = Instant::now();
    rig.runner.send(RunnerCommand::Stop).await.unwrap();
    assert_eq!(rig.end().await.done.exit, ExitStatus::Cancelled);
    assert!(begin.elapsed() >= Duration::from_millis(200));

    rig.start_until_output(&rig.sh(STUBBORN)).await;
    let begin = Instant::now();
    rig.runner.send(RunnerCommand::Stop).await.unwrap();
    rig.runner.send(RunnerCommand::Stop).await.unwrap();
    assert_eq!(rig.end().await.done.exit, ExitStatus::Cancelled);
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "the grace is 20 s"
    );

    rig.start_until_output(&rig.sh(STUBBORN)).await;
    rig.runner.send(RunnerCommand::Stop).await.unwrap();
    rig.runner.send(RunnerCommand::Kill).await.unwrap();
    assert_eq!(rig.end().await.done.exit, ExitStatus::Killed);
    rig.finish().await;
}

#[tokio::test]
async fn ignores_commands_that_cross_the_end() {
    let mut rig = Rig::new().await;
    rig.start(&rig.sh("exit 3")).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    for order in [
        RunnerCommand::Stop,
        RunnerCommand::Kill,
        RunnerCommand::Pause,
        RunnerCommand::Resume,
    ] {
        rig.runner.send(order).await.unwrap();
    }
    assert_eq!(rig.end().await.done.exit, code(3), "it had ended by itself");
    assert_eq!(rig.run(&rig.sh("exit 4")).await.done.exit, code(4));
    rig.finish().await;
}

#[tokio::test]
async fn pause_stops_the_tree_and_its_timeout() {
    let mut rig = Rig::new().await;
    let mut request = rig.sh("sh -c 'echo ready; while :; do :; done' & wait");
    request.timeout = Some(Duration::from_millis(600));
    let begin = Instant::now();
    let pid = rig.start_until_output(&request).await;
    rig.runner.send(RunnerCommand::Pause).await.unwrap();
    let all_stopped = |rig: &Rig| {
        let leftover_processes = rig.leftover_processes();
        leftover_processes.len() == 2
            && leftover_processes
                .iter()
                .all(|p| state(p.split(' ').next().unwrap().parse().unwrap()) == Some('T'))
    };
    until("all stopped", || all_stopped(&rig)).await;
    tokio::time::sleep(Duration::from_millis(1000)).await;
    assert!(all_stopped(&rig), "it would have timed out by now");
    rig.runner.send(RunnerCommand::Resume).await.unwrap();
    until("running again", || state(pid) != Some('T')).await;
    assert_eq!(rig.end().await.done.exit, ExitStatus::Timeout);
    assert!(begin.elapsed() >= Duration::from_millis(1600));
    rig.finish().await;
}

#[tokio::test]
async fn stops_a_paused_command() {
    let mut rig = Rig::new().await;
    let pid = rig.start_until_output(&rig.sh(POLITE)).await;
    rig.runner.send(RunnerCommand::Pause).await.unwrap();
    // A shell whose `vfork` child is stopped before its `exec` waits for that child in state D.
    until("stopped", || matches!(state(pid), Some('T' | 'D'))).await;
    rig.runner.send(RunnerCommand::Stop).await.unwrap();
    let outcome = rig.end().await;
    assert_eq!(
        (outcome.done.exit, outcome.stdout),
        (ExitStatus::Cancelled, b"bye\n".to_vec())
    );
    rig.finish().await;
}

#[tokio::test]
async fn sigterm_to_the_runner_stops_only_its_task() {
    let mut rig = Rig::new().await;
    for name in ["-TERM", "-INT", "-HUP"] {
        rig.start_until_output(&rig.sh(POLITE)).await;
        signal(rig.runner.pid(), name);
        let outcome = rig.end().await;
        assert_eq!(
            (outcome.done.exit, outcome.stdout),
            (ExitStatus::Killed, b"bye\n".to_vec())
        );
    }
    assert_eq!(
        rig.run(&rig.sh("exit 0")).await.done.exit,
        code(0),
        "the runner goes on"
    );
    signal(rig.runner.pid(), "-TERM");
    assert!(
        within(rig.runner.next()).await.is_err(),
        "with nothing to run it ends"
    );
    rig.finish().await;
}
