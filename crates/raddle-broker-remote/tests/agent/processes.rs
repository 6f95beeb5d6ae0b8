//! Killed clients and servers, and clients of other users.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use raddle_broker::{Error, LeaseStatus};
use raddle_model::{TaskState, worker::Heartbeat};

use crate::{helper_process::HelperProcess, support::*};

#[tokio::test]
async fn a_task_goes_to_another_client_after_a_waiting_one_was_killed() {
    for engine in Engine::ALL {
        let served = ServedBroker::start(engine);
        let broker = remote(served.path()).await;
        let owner = broker.register(info(), TTL).await.unwrap();
        let mut helper = HelperProcess::start("wait", &served.path());
        assert_eq!(helper.next_line().unwrap(), "waiting");
        helper.kill();
        // The dead client's worker is still registered, with a lease longer than this test: only
        // its call can have ended.
        let tid = submit(&*broker).await;
        let claims = broker.claim(request(owner, SOON)).await.unwrap();
        assert_eq!(
            claims.first().map(|claim| claim.attempt_id.tid),
            Some(tid),
            "{engine:?}"
        );
    }
}

#[tokio::test]
async fn reclaims_tasks_of_a_killed_client() {
    let served = ServedBroker::start(Engine::Sqlite);
    let broker = remote(served.path()).await;
    let tid = submit(&*broker).await;
    let mut helper = HelperProcess::start("hold", &served.path());
    assert_eq!(helper.next_line().unwrap(), "holding");
    helper.kill();
    assert_eq!(state(&*broker, tid).await, TaskState::Running);
    let owner = broker.register(info(), TTL).await.unwrap();
    let mut renewer = broker.lease_renewer(owner, TTL);
    let reclaimed = wait_until("the task is reclaimed", async || {
        match renewer.renew(Heartbeat::default()).unwrap() {
            LeaseStatus::Alive(reclaimed) => reclaimed.first().copied(),
            status => panic!("unexpected status: {status:?}"),
        }
    })
    .await;
    assert_eq!(reclaimed.attempt_id.tid, tid);
    assert_eq!(
        broker.claim(request(owner, SOON)).await.unwrap()[0]
            .attempt_id
            .attempt,
        2
    );
}

#[tokio::test]
async fn clients_reconnect_after_a_server_was_killed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let mut server = HelperProcess::start("serve", &path);
    assert_eq!(server.next_line().unwrap(), "serving");
    let broker = remote(&path).await;
    let owner = broker.register(info(), TTL).await.unwrap();
    let mut accepted = 0u32;
    for _ in 0..3 {
        let waiting = {
            let broker = broker.clone();
            tokio::spawn(async move { broker.claim(request(owner, TTL)).await })
        };
        tokio::time::sleep(Duration::from_millis(20)).await;
        server.kill();
        let error = tokio::time::timeout(SOON, waiting)
            .await
            .unwrap()
            .unwrap()
            .unwrap_err();
        assert!(matches!(error, Error::AgentGone { .. }), "{error}");
        assert!(path.exists(), "a killed server leaves its socket");
        server = HelperProcess::start("serve", &path);
        assert_eq!(server.next_line().unwrap(), "serving");
        submit(&*broker).await;
        accepted += 1;
        assert_eq!(broker.claim(request(owner, SOON)).await.unwrap().len(), 1);
    }
    assert_eq!(
        broker.summary().await.unwrap().states[&TaskState::Spawning],
        u64::from(accepted)
    );
}

/// As root: the mode of the socket keeps other users out, and where it was changed, the server
/// does.
#[tokio::test]
async fn clients_of_other_users_are_refused() {
    if !raddle_testnet::is_root("become another user") {
        return;
    }
    let served = ServedBroker::start(Engine::Memory);
    fs::set_permissions(served.directory(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = served.directory().join("other");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let as_user_65534 = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
    ];
    let connect_error = || {
        HelperProcess::start_as(&as_user_65534, program.as_os_str(), "look", &served.path())
            .next_line()
            .unwrap()
    };
    assert!(
        connect_error().contains("belongs to another user"),
        "{}",
        connect_error()
    );
    fs::set_permissions(served.path(), fs::Permissions::from_mode(0o666)).unwrap();
    assert!(
        connect_error().contains("it serves only its own user and root"),
        "{}",
        connect_error()
    );

    // The reverse: a client does not trust a server of another user, unless the client is root.
    let foreign_dir = served.directory().join("theirs");
    fs::create_dir(&foreign_dir).unwrap();
    fs::set_permissions(&foreign_dir, fs::Permissions::from_mode(0o777)).unwrap();
    let path = foreign_dir.join("agent.sock");
    let mut server = HelperProcess::start_as(&as_user_65534, program.as_os_str(), "serve", &path);
    assert_eq!(server.next_line().unwrap(), "serving");
    remote(&path).await.summary().await.unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let as_user_65533 = [
        "setpriv",
        "--reuid",
        "65533",
        "--regid",
        "65533",
        "--clear-groups",
    ];
    let message = HelperProcess::start_as(&as_user_65533, program.as_os_str(), "look", &path)
        .next_line()
        .unwrap();
    assert!(message.contains("it runs as user 65534"), "{message}");
}
