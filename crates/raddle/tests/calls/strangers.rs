//! Other users of the machine, who can see the names of sockets that have no file.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

use raddle::{CallError, WorkerProxy};

use crate::{CALLEE, routines, started, within};

const NOBODY: u32 = 65534;

/// The program of the tests as another user, which only root can start.
#[expect(
    clippy::disallowed_methods,
    reason = "a test may take its time to fork"
)]
fn as_nobody(arguments: [&str; 2]) -> Option<Command> {
    if !raddle_testnet::is_root("be another user") {
        println!("skipped: only root can be another user");
        return None;
    }
    let mut command = Command::new(CALLEE);
    command
        .args(arguments)
        .uid(NOBODY)
        .gid(NOBODY)
        .stdout(Stdio::piped());
    Some(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_not_let_in() {
    within(120, async {
        let pool = started(1).await;
        let name = pool.workers()[0]
            .address
            .strip_prefix("unix-abstract:")
            .unwrap()
            .to_owned();
        let Some(mut stranger) = as_nobody(["knock", &name]) else {
            return;
        };
        let output = tokio::task::spawn_blocking(move || stranger.output().unwrap())
            .await
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "turned away\n");
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_taken_the_name_of_a_worker_gets_no_calls() {
    within(120, async {
        let pool = started(1).await;
        let mut worker = pool.workers()[0].clone();
        pool.stop().await;
        let name = format!("raddle-test-{}", std::process::id());
        worker.address = format!("unix-abstract:{name}");
        let Some(mut stranger) = as_nobody(["squat", &name]) else {
            return;
        };
        let mut stranger = stranger.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(stranger.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        let proxy = WorkerProxy::of_workers([worker]).start().await.unwrap();
        let error = routines::add(1, 2).on(&proxy).await.unwrap_err();
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        assert!(matches!(&error, CallError::NoWorkers(_)), "{error:?}");
        assert!(
            error
                .to_string()
                .contains("another user listens at this address"),
            "{error}"
        );
    })
    .await;
}
