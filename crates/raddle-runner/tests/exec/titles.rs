//! Process titles, as `ps` and `pgrep -f` show them.

use std::time::Duration;

use raddle_runner::RunnerCommand;

use crate::support::{Rig, cmdline, until};

async fn wait_for_title(rig: &Rig, title: &str) {
    let pid = rig.runner.pid().to_string();
    until(
        &format!("the title {title}, last seen {:?}", cmdline(&pid)),
        || cmdline(&pid) == format!("{title}\0"),
    )
    .await;
}

#[tokio::test]
async fn title_follows_the_state_of_the_task() {
    let mut rig = Rig::new().await;
    wait_for_title(&rig, "raddle-test:idle").await;
    let mut request = rig.sh("trap '' TERM; echo ready; while :; do sleep 0.05; done");
    request.name = "nightly".into();
    request.grace = Duration::from_secs(20);
    rig.start_until_output(&request).await;
    let pid = rig.runner.pid().to_string();
    wait_for_title(&rig, "raddle-3456789012:nightly:running").await;
    assert_eq!(
        std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap(),
        "raddle-34567890\n"
    );
    rig.runner.send(RunnerCommand::Pause).await.unwrap();
    wait_for_title(&rig, "raddle-3456789012:nightly:paused").await;
    rig.runner.send(RunnerCommand::Resume).await.unwrap();
    wait_for_title(&rig, "raddle-3456789012:nightly:running").await;
    rig.runner.send(RunnerCommand::Stop).await.unwrap();
    wait_for_title(&rig, "raddle-3456789012:nightly:stopping").await;
    rig.runner.send(RunnerCommand::Kill).await.unwrap();
    rig.end().await;
    assert_eq!(
        cmdline(&pid),
        "raddle-test:idle\0",
        "before the end is reported"
    );

    request.timeout = Some(Duration::from_millis(100));
    rig.start(&request).await;
    wait_for_title(&rig, "raddle-3456789012:nightly:timeout").await;
    rig.runner.send(RunnerCommand::Kill).await.unwrap();
    assert_eq!(
        rig.end().await.done.exit,
        raddle_model::ExitStatus::Timeout,
        "which came first"
    );
    rig.finish().await;
}

#[tokio::test]
async fn replaces_shell_characters_in_titles() {
    let mut rig = Rig::new().await;
    let mut request = rig.sh("echo ready; sleep 300");
    request.name = "a b;rm -rf $(x)'\"\n|&é".into();
    rig.start_until_output(&request).await;
    wait_for_title(&rig, "raddle-3456789012:a_b_rm_-rf___x_______:running").await;
    let found = std::process::Command::new("pgrep")
        .args(["-f", "^raddle-3456789012:a_b.*:running$"])
        .output()
        .unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    assert!(
        found.lines().any(|pid| pid == rig.runner.pid().to_string()),
        "{found}"
    );
    rig.runner.send(RunnerCommand::Kill).await.unwrap();
    rig.end().await;
    rig.finish().await;
}

#[tokio::test]
async fn keeps_the_arguments_of_a_command() {
    let mut rig = Rig::new().await;
    let pid = rig
        .start_until_output(&rig.sh("echo ready; exec sleep 300"))
        .await;
    until("exec", || cmdline(&pid.to_string()) == "sleep\x00300\0").await;
    rig.runner.send(RunnerCommand::Kill).await.unwrap();
    rig.end().await;
    rig.finish().await;
}
