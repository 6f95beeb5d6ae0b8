//! Clients and servers that are killed, and clients of other users.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use raddle_broker::{Error, LeaseStatus};
use raddle_model::{TaskState, worker::Heartbeat};

use crate::{helper::Other, support::*};

#[tokio::test]
async fn what_a_killed_client_waited_for_goes_to_another() {
    for engine in Engine::ALL {
        let served = Served::start(engine);
        let broker = remote(served.path()).await;
        let owner = broker.register(info(), TTL).await.unwrap();
        let mut other = Other::start("wait", &served.path());
        assert_eq!(other.hear().unwrap(), "waiting");
        other.kill();
        // The dead one's worker is still registered, with a lease longer than this test: only its call can have ended.
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
async fn what_a_killed_client_held_comes_back_with_its_lease() {
    let served = Served::start(Engine::Sqlite);
    let broker = remote(served.path()).await;
    let tid = submit(&*broker).await;
    let mut other = Other::start("hold", &served.path());
    assert_eq!(other.hear().unwrap(), "holding");
    other.kill();
    assert_eq!(state(&*broker, tid).await, TaskState::Running);
    let owner = broker.register(info(), TTL).await.unwrap();
    let mut renewer = broker.lease_renewer(owner, TTL);
    let reclaimed = until("it is taken back", async || {
        match renewer.renew(Heartbeat::default()).unwrap() {
            LeaseStatus::Alive(reclaimed) => reclaimed.first().copied(),
            pulse => panic!("the lease is long, and the server is there: {pulse:?}"),
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
async fn a_killed_server_is_replaced_and_its_clients_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let mut server = Other::start("serve", &path);
    assert_eq!(server.hear().unwrap(), "serving");
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
        assert!(path.exists(), "it could not tidy up");
        server = Other::start("serve", &path);
        assert_eq!(server.hear().unwrap(), "serving");
        submit(&*broker).await;
        accepted += 1;
        assert_eq!(broker.claim(request(owner, SOON)).await.unwrap().len(), 1);
    }
    assert_eq!(
        broker.summary().await.unwrap().states[&TaskState::Spawning],
        u64::from(accepted)
    );
}

/// As root: the socket's mode keeps others out, and where somebody has changed that, the server does.
#[tokio::test]
async fn clients_of_other_users_are_refused() {
    if !raddle_testnet::is_root("become another user") {
        return;
    }
    let served = Served::start(Engine::Memory);
    fs::set_permissions(served.directory(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = served.directory().join("other");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let nobody = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
    ];
    let ask = || {
        Other::start_as(&nobody, program.as_os_str(), "look", &served.path())
            .hear()
            .unwrap()
    };
    assert!(ask().contains("belongs to another user"), "{}", ask());
    fs::set_permissions(served.path(), fs::Permissions::from_mode(0o666)).unwrap();
    assert!(
        ask().contains("it serves only its own user and root"),
        "{}",
        ask()
    );

    // The other way round: who is asked to trust a server of somebody else does not, unless it is root.
    let theirs = served.directory().join("theirs");
    fs::create_dir(&theirs).unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o777)).unwrap();
    let path = theirs.join("agent.sock");
    let mut server = Other::start_as(&nobody, program.as_os_str(), "serve", &path);
    assert_eq!(server.hear().unwrap(), "serving");
    remote(&path).await.summary().await.unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let somebody = [
        "setpriv",
        "--reuid",
        "65533",
        "--regid",
        "65533",
        "--clear-groups",
    ];
    let said = Other::start_as(&somebody, program.as_os_str(), "look", &path)
        .hear()
        .unwrap();
    assert!(said.contains("it runs as user 65534"), "{said}");
}
