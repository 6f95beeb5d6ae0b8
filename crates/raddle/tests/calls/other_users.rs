//! Other users of the machine, who see the names of abstract sockets.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

use raddle::{CallError, WorkerProxy};

use crate::{CALLEE, routines, start_pool, within};

const UNPRIVILEGED_ID: u32 = 65534;

/// The test program as another user, which only root can start.
#[expect(
    clippy::disallowed_methods,
    reason = "a test may take its time to fork"
)]
fn other_user_command(arguments: [&str; 2]) -> Option<Command> {
    if !raddle_testnet::is_root("be another user") {
        println!("skipped: only root can be another user");
        return None;
    }
    let mut command = Command::new(CALLEE);
    command
        .args(arguments)
        .uid(UNPRIVILEGED_ID)
        .gid(UNPRIVILEGED_ID)
        .stdout(Stdio::piped());
    Some(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_connections_of_other_users() {
    within(120, async {
        let pool = start_pool(1).await;
        let name = pool.workers()[0]
            .address
            .strip_prefix("unix-abstract:")
            .unwrap()
            .to_owned();
        let Some(mut other_user) = other_user_command(["knock", &name]) else {
            return;
        };
        let output = tokio::task::spawn_blocking(move || other_user.output().unwrap())
            .await
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "refused\n");
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn does_not_call_a_socket_of_another_user() {
    within(120, async {
        let pool = start_pool(1).await;
        let mut worker = pool.workers()[0].clone();
        pool.stop().await;
        let name = format!("raddle-test-{}", std::process::id());
        worker.address = format!("unix-abstract:{name}");
        let Some(mut other_user) = other_user_command(["squat", &name]) else {
            return;
        };
        let mut other_user = other_user.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(other_user.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        let proxy = WorkerProxy::of_workers([worker]).start().await.unwrap();
        let error = routines::add(1, 2).on(&proxy).await.unwrap_err();
        other_user.kill().unwrap();
        other_user.wait().unwrap();
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
