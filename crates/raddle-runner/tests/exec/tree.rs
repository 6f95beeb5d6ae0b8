//! No process is left behind: children, grandchildren, daemons.

use std::time::{Duration, Instant};

use raddle_model::ExitStatus;
use raddle_runner::RunnerCommand;

use crate::support::{Rig, code};

/// Forks twice with a new session in between, as daemons do, and exits.
const DAEMON: &str =
    "setsid sh -c 'setsid sleep 300 & setsid sh -c \"sleep 300 & sleep 300\" &' & wait; exit 6";

#[tokio::test]
async fn kills_daemons_with_their_command() {
    let mut rig = Rig::new().await;
    for _ in 0..5 {
        let outcome = rig.run(&rig.sh(DAEMON)).await;
        assert_eq!(
            outcome.done.exit,
            code(6),
            "daemons do not change its exit code"
        );
    }
    rig.finish().await;
}

#[tokio::test]
async fn background_child_with_open_output_does_not_delay_the_end() {
    let mut rig = Rig::new().await;
    let begin = Instant::now();
    let outcome = rig.run(&rig.sh("sleep 300 & echo done")).await;
    assert_eq!(
        (outcome.done.exit, outcome.stdout),
        (code(0), b"done\n".to_vec())
    );
    assert!(begin.elapsed() < Duration::from_secs(10));
    rig.finish().await;
}

#[tokio::test]
async fn kills_a_whole_tree_that_ignores_sigterm() {
    let mut rig = Rig::new().await;
    let script = "trap '' TERM; setsid sh -c 'sleep 300 & sleep 300' & (sleep 300 &) ; echo ready; while :; do sleep 0.1; done";
    rig.start_until_output(&rig.sh(script)).await;
    rig.runner.send(RunnerCommand::Stop).await.unwrap();
    rig.runner.send(RunnerCommand::Stop).await.unwrap();
    assert_eq!(rig.end().await.done.exit, ExitStatus::Cancelled);
    rig.finish().await;
}

#[tokio::test]
async fn reaps_orphans_while_the_command_runs() {
    let mut rig = Rig::new().await;
    // Each subshell leaves a grandchild that the runner adopts.
    let script = "for i in 1 2 3 4 5 6 7 8; do (sleep 0.02 &); done; sleep 0.3; ps -o stat= --ppid $PPID | grep -c Z; exit 0";
    let outcome = rig.run(&rig.sh(script)).await;
    assert_eq!(String::from_utf8_lossy(&outcome.stdout).trim(), "0");
    rig.finish().await;
}
