//! Functions of the runner's own program, each in a process of its own.

use std::time::Duration;

use raddle_model::ExitStatus;
use raddle_runner::RunnerCommand;

use crate::support::{Rig, code};

#[tokio::test]
async fn separates_the_reply_of_a_function_from_its_output() {
    let mut rig = Rig::new().await;
    let ran = rig.run(&rig.function("echo", "x")).await;
    assert_eq!(
        (ran.reply.as_str(), &ran.done.exit),
        ("answered x", &code(0))
    );
    assert_eq!(
        (ran.stdout.as_slice(), ran.stderr.as_slice()),
        (&b"printed x"[..], &b"complained\n"[..])
    );
    assert_eq!(
        (ran.done.stdout_bytes, ran.done.stderr_bytes),
        (9, 11),
        "an answer is not output"
    );
}

#[tokio::test]
async fn runs_each_function_in_a_new_process() {
    let mut rig = Rig::new().await;
    for _ in 0..3 {
        assert_eq!(rig.run(&rig.function("count", "")).await.reply, "0");
    }
    assert_eq!(
        rig.run(&rig.sh("echo still a command")).await.stdout,
        b"still a command\n"
    );
}

#[tokio::test]
async fn gives_a_function_its_directory_and_environment_only() {
    let mut rig = Rig::new().await;
    let mut request = rig.function("look", "");
    request.cwd = Some("/usr".into());
    request.env.push(("TASK".into(), "t1".into()));
    // The standard descriptors, the reply channel, and the one that lists them.
    assert_eq!(rig.run(&request).await.reply, "/usr t1 5");
    request.cwd = Some("/no/such/directory".into());
    let done = rig.run(&request).await.done;
    assert!(
        matches!(&done.exit, ExitStatus::SpawnFailed { message } if message.contains("/no/such/directory")),
        "{done:?}"
    );
}

/// Output of earlier tasks may be in the runner's memory; a function is no fork of the runner.
#[tokio::test]
async fn no_data_of_a_task_is_in_the_memory_of_the_next() {
    let mut rig = Rig::new().await;
    let secret = "correct-horse-battery-staple";
    let turned: String = secret.chars().rev().collect();
    let mut request = rig.function("echo", secret);
    request.env.push(("PASSWORD".into(), secret.into()));
    rig.run(&request).await;
    assert_eq!(rig.run(&rig.function("search", &turned)).await.reply, "0");
    // Check that the search works.
    let mut request = rig.function("search", &turned);
    request.env.push(("PASSWORD".into(), secret.into()));
    assert_ne!(rig.run(&request).await.reply, "0");
}

/// The worker gets another runner, and the task another attempt that is not charged.
#[tokio::test]
async fn runner_exits_when_its_fork_server_is_gone() {
    let mut rig = Rig::new().await;
    assert_eq!(rig.run(&rig.function("count", "")).await.reply, "0");
    let pid = rig.runner.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let fork_server: i32 = children.trim().parse().unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(fork_server).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    let done = rig.run(&rig.function("count", "")).await.done;
    assert!(
        matches!(done.exit, ExitStatus::ResourceExhausted { .. }),
        "{done:?}"
    );
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while rig.runner.is_alive() {
        assert!(std::time::Instant::now() < until, "it leaves");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn runs_a_function_with_threads() {
    let mut rig = Rig::new().await;
    assert_eq!(rig.run(&rig.function("threads", "")).await.reply, "42");
}

#[tokio::test]
async fn delivers_a_long_reply_completely() {
    let mut rig = Rig::new().await;
    assert_eq!(
        rig.run(&rig.function("flood", "0123456789")).await.reply,
        "0123456789".repeat(1 << 20)
    );
}

#[tokio::test]
async fn stops_and_times_out_functions() {
    let mut rig = Rig::new().await;
    let mut request = rig.function("sleep", "");
    rig.start_until_output(&request).await;
    rig.runner.send(RunnerCommand::Stop).await.unwrap();
    assert_eq!(rig.end().await.done.exit, ExitStatus::Cancelled);
    request.timeout = Some(Duration::from_millis(50));
    assert_eq!(rig.run(&request).await.done.exit, ExitStatus::Timeout);
}

#[tokio::test]
async fn survives_a_function_that_fails() {
    let mut rig = Rig::new().await;
    assert_eq!(
        rig.run(&rig.function("abort", "")).await.done.exit,
        ExitStatus::Signal {
            signal: libc::SIGABRT
        }
    );
    assert_eq!(
        rig.run(&rig.function("unheard of", "")).await.done.exit,
        code(3)
    );
}
