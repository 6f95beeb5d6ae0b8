//! Output: complete, in order, live, and in bounded memory.

use std::time::{Duration, Instant};

use raddle_runner::{OutputChannel, RunnerCommand, RunnerEvent};

use crate::support::{Rig, code, within};

#[tokio::test]
async fn delivers_any_bytes_unchanged() {
    let mut rig = Rig::new().await;
    let outcome = rig
        .run(&rig.sh("printf '\\377\\000\\200a'; printf '\\303\\050' >&2"))
        .await;
    assert_eq!(
        (&*outcome.stdout, &*outcome.stderr),
        (&b"\xff\x00\x80a"[..], &b"\xc3\x28"[..])
    );
    rig.finish().await;
}

#[tokio::test]
async fn keeps_the_order_within_each_stream() {
    let mut rig = Rig::new().await;
    let script = "i=0; while [ $i -lt 20000 ]; do echo out$i; echo err$i >&2; i=$((i+1)); done";
    let outcome = rig.run(&rig.sh(script)).await;
    let expected = |name: &str| {
        (0..20000)
            .map(|i| format!("{name}{i}\n"))
            .collect::<String>()
            .into_bytes()
    };
    assert!(outcome.stdout == expected("out") && outcome.stderr == expected("err"));
    assert_eq!(outcome.done.stdout_bytes, outcome.stdout.len() as u64);
    rig.finish().await;
}

#[tokio::test]
async fn forwards_output_while_the_command_runs() {
    let mut rig = Rig::new().await;
    let begin = Instant::now();
    rig.start(&rig.sh("echo first; sleep 60; echo last")).await;
    rig.started().await;
    match rig.next().await.unwrap() {
        RunnerEvent::Output {
            stream: OutputChannel::Stdout,
            bytes,
        } => assert_eq!(bytes, b"first\n"),
        other => panic!("{other:?}"),
    }
    assert!(begin.elapsed() < Duration::from_secs(10));
    rig.runner.send(RunnerCommand::Kill).await.unwrap();
    rig.end().await;
    rig.finish().await;
}

#[tokio::test]
async fn forwards_large_output_in_bounded_memory() {
    let mut rig = Rig::new().await;
    let total = 200u64 << 20;
    rig.start(&rig.sh(&format!("head -c {total} /dev/zero")))
        .await;
    let (mut seen, mut peak) = (0, 0);
    let done = loop {
        match rig.next().await.unwrap() {
            RunnerEvent::Output { bytes, .. } => {
                seen += bytes.len() as u64;
                peak = peak.max(anonymous_kib(rig.runner.pid()));
            }
            RunnerEvent::Done(done) => break done,
            _ => {}
        }
    };
    assert_eq!(
        (seen + done.stdout.len() as u64, done.stdout_bytes),
        (total, total)
    );
    assert_eq!(done.exit, code(0));
    assert!(peak < 4 << 10, "the runner grew to {peak} KiB");
    rig.finish().await;
}

#[tokio::test]
async fn applies_backpressure_and_still_obeys_a_worker_that_does_not_read() {
    let mut rig = Rig::new().await;
    rig.start(&rig.command(&["cat", "/dev/zero"])).await;
    let pid = rig.started().await;
    // The worker does not read for a while: pipe, runner and socket fill up, and no further.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(anonymous_kib(rig.runner.pid()) < 4 << 10);
    assert!(crate::support::state(pid).is_some());
    within(rig.runner.send(RunnerCommand::Kill)).await.unwrap();
    crate::support::until("the command dies without a reader", || {
        crate::support::state(pid).is_none()
    })
    .await;
    assert_eq!(rig.end().await.done.exit, raddle_model::ExitStatus::Killed);
    rig.finish().await;
}

/// Anonymous memory of a process: how much of its program is resident depends on the build.
fn anonymous_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
