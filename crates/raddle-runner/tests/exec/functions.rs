//! Functions of the runner's own program, each in a process of its own.

use std::time::Duration;

use raddle_model::ExitStatus;
use raddle_runner::RunnerCommand;

use crate::support::{Rig, code};

#[tokio::test]
async fn a_function_prints_and_answers_apart() {
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
async fn each_call_has_a_process_of_its_own() {
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
async fn a_function_finds_its_directory_and_its_environment_and_nothing_of_the_runner() {
    let mut rig = Rig::new().await;
    let mut request = rig.function("look", "");
    request.cwd = Some("/usr".into());
    request.env.push(("TASK".into(), "t1".into()));
    // Its standard descriptors, the answer's, and the one that lists them.
    assert_eq!(rig.run(&request).await.reply, "/usr t1 5");
    request.cwd = Some("/no/such/directory".into());
    let done = rig.run(&request).await.done;
    assert!(
        matches!(&done.exit, ExitStatus::SpawnFailed { message } if message.contains("/no/such/directory")),
        "{done:?}"
    );
}

/// A runner passes on what its tasks say; a function is no fork of it.
#[tokio::test]
async fn nothing_of_a_task_is_in_the_memory_of_the_next() {
    let mut rig = Rig::new().await;
    let secret = "correct-horse-battery-staple";
    let turned: String = secret.chars().rev().collect();
    let mut request = rig.function("echo", secret);
    request.env.push(("PASSWORD".into(), secret.into()));
    rig.run(&request).await;
    assert_eq!(rig.run(&rig.function("search", &turned)).await.reply, "0");
    // That it would find it.
    let mut request = rig.function("search", &turned);
    request.env.push(("PASSWORD".into(), secret.into()));
    assert_ne!(rig.run(&request).await.reply, "0");
}

/// Its worker gets another runner, and the task another attempt: that the task was not to blame is said.
#[tokio::test]
async fn a_runner_leaves_that_can_fork_no_functions_any_more() {
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
async fn a_function_may_have_threads() {
    let mut rig = Rig::new().await;
    assert_eq!(rig.run(&rig.function("threads", "")).await.reply, "42");
}

#[tokio::test]
async fn a_long_answer_arrives_whole() {
    let mut rig = Rig::new().await;
    assert_eq!(
        rig.run(&rig.function("flood", "0123456789")).await.reply,
        "0123456789".repeat(1 << 20)
    );
}

#[tokio::test]
async fn a_function_is_stopped_and_timed_like_a_command() {
    let mut rig = Rig::new().await;
    let mut request = rig.function("sleep", "");
    rig.start_until_output(&request).await;
    rig.runner.send(RunnerCommand::Stop).await.unwrap();
    assert_eq!(rig.end().await.done.exit, ExitStatus::Cancelled);
    request.timeout = Some(Duration::from_millis(50));
    assert_eq!(rig.run(&request).await.done.exit, ExitStatus::Timeout);
}

#[tokio::test]
async fn a_function_that_fails_takes_nobody_along() {
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
