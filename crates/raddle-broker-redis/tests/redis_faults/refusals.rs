//! Servers that cannot keep tasks: each is refused with an error that names the fix.

use std::{
    io::Write,
    net::TcpListener,
    time::{Duration, Instant},
};

use raddle_broker::{CompletionOutcome, Error, LeaseStatus, TaskFilter};
use raddle_model::{TaskState, worker::Heartbeat};

use super::{
    redis_server::{Server, wait_until},
    support::*,
};

#[tokio::test]
async fn reports_an_unreachable_server_at_once() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let began = Instant::now();
    let error = open_error(&format!("redis://me:secret@127.0.0.1:{port}")).await;
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.is_retryable() && began.elapsed() < Duration::from_secs(5));
    assert!(
        error.to_string().contains(&port.to_string()) && !error.to_string().contains("secret"),
        "{error}"
    );
}

#[tokio::test]
async fn reports_a_wrong_password_without_printing_it() {
    let server = Server::with(&["--requirepass", "right", "--appendonly", "yes"]);
    for user in ["", ":secret@", "nobody:secret@"] {
        let error = open_error(&format!("redis://{user}127.0.0.1:{}", server.port)).await;
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        let text = format!("{error} {error:?}");
        assert!(
            text.contains("password") && !text.contains("secret"),
            "{text}"
        );
    }
    let broker = open(&format!("redis://:right@127.0.0.1:{}", server.port))
        .await
        .unwrap();
    broker.submit(vec![task("one")]).await.unwrap();
    let health = broker.health().await.unwrap();
    assert!(!format!("{health:?}").contains("right"), "{health:?}");
}

/// The command in the message is enough.
#[tokio::test]
async fn explains_missing_rights_of_a_user() {
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "me", "on", ">geheim", "~other:*", "+@all"]);
    let url = format!("redis://me:geheim@127.0.0.1:{}?namespace=x", server.port);
    let error = open_error(&url).await.to_string();
    assert!(
        error.contains("denies this user") && !error.contains("geheim"),
        "{error}"
    );
    let command: Vec<&str> = error
        .split('\'')
        .nth(1)
        .unwrap()
        .split(' ')
        .map(|word| word.replace("NAME", "me").leak() as &str)
        .collect();
    assert!(server.command(&command).starts_with("+OK"), "{command:?}");
    let broker = open(&url).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    broker.submit(vec![task("one")]).await.unwrap();
    let attempt_id = broker.claim(request(worker, 1)).await.unwrap()[0].attempt_id;
    assert_eq!(
        broker.complete(vec![success(attempt_id)]).await.unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
}

/// The rights allow scripts, and not `BLPOP`.
#[tokio::test]
async fn refuses_a_claim_of_a_user_without_blpop() {
    let server = Server::start();
    server.command(&[
        "ACL",
        "SETUSER",
        "me",
        "on",
        ">pass",
        "~raddle:*",
        "&raddle:*",
        "+@all",
        "-blpop",
    ]);
    let broker = open(&format!(
        "redis://me:pass@127.0.0.1:{}?namespace=x",
        server.port
    ))
    .await
    .unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    let error = broker.claim(request(worker, 1)).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    broker.submit(vec![task("one")]).await.unwrap();
    assert_eq!(broker.claim(request(worker, 1)).await.unwrap().len(), 1);
}

#[tokio::test]
async fn reports_a_foreign_key_in_place_of_a_wake_up_list() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    server.command(&[
        "SET",
        &format!("raddle:{{x}}:wake:worker:{worker}"),
        "theirs",
    ]);
    let error = broker.claim(request(worker, 1)).await.unwrap_err();
    assert!(matches!(error, Error::Taken { .. }), "{error}");
}

/// Without the scripts the claim after a `BLPOP` fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_claim_survives_a_script_flush() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    let waiting = tokio::spawn({
        let broker = broker.clone();
        async move { broker.claim(request(worker, 1)).await }
    });
    wait_until("the claim waits", || {
        server
            .command(&["INFO", "clients"])
            .contains("blocked_clients:1")
    });
    server.command(&["SCRIPT", "FLUSH"]);
    let tid = broker.submit(vec![task("one")]).await.unwrap()[0].tid();
    assert_eq!(waiting.await.unwrap().unwrap()[0].attempt_id.tid, tid);
}

/// A master that becomes a replica refuses writes, and the error says why.
#[tokio::test]
async fn refuses_a_master_that_becomes_a_replica() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    broker.submit(vec![task("one")]).await.unwrap();
    let attempt_id = broker.claim(request(worker, 1)).await.unwrap()[0].attempt_id;
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    for error in [
        broker.submit(vec![task("two")]).await.err(),
        broker.complete(vec![success(attempt_id)]).await.err(),
    ] {
        let error = error.unwrap().to_string();
        assert!(
            error.contains("read-only replica") && error.contains("127.0.0.1:1"),
            "{error}"
        );
    }
    server.command(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(
        broker.complete(vec![success(attempt_id)]).await.unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
    assert_eq!(broker.tasks(TaskFilter::default()).await.unwrap().len(), 1);
}

/// A server that failed to save refuses writes.
#[tokio::test]
async fn reports_a_server_that_cannot_write_to_its_disk() {
    let server = Server::with(&["--appendonly", "no"]);
    let broker = open(&server.url("x")).await.unwrap();
    broker.submit(vec![task("kept")]).await.unwrap();
    // A directory in place of its file.
    std::fs::create_dir(server.directory().join("dump.rdb")).unwrap();
    server.command(&["CONFIG", "SET", "save", "3600 1"]);
    server.command(&["BGSAVE"]);
    wait_until("the save fails", || {
        server
            .command(&["INFO", "persistence"])
            .contains("rdb_last_bgsave_status:err")
    });
    let error = broker.submit(vec![task("refused")]).await.unwrap_err();
    assert!(
        matches!(error, Error::Unwritable { .. }) && error.is_retryable(),
        "{error}"
    );
    assert!(
        error.to_string().contains("cannot write to its disk"),
        "{error}"
    );
    let health = open(&server.url("y")).await;
    assert!(
        matches!(health, Err(Error::Unwritable { .. })),
        "a new namespace needs a write"
    );
    server.command(&["CONFIG", "SET", "save", ""]);
    broker.submit(vec![task("later")]).await.unwrap();
    assert_eq!(broker.tasks(TaskFilter::default()).await.unwrap().len(), 2);
    let health = open(&server.url("x"))
        .await
        .unwrap()
        .health()
        .await
        .unwrap();
    let writes = health
        .checks
        .iter()
        .find(|check| check.name == "writes to disk")
        .unwrap();
    assert!(
        !writes.ok && writes.detail.contains("rdb_last_bgsave_status failed"),
        "{writes:?}"
    );
}

#[tokio::test]
async fn refuses_a_server_that_evicts_and_names_the_fix() {
    let server = Server::with(&["--maxmemory-policy", "allkeys-lru", "--appendonly", "yes"]);
    let url = format!("redis://127.0.0.1:{}", server.port);
    let error = open_error(&url).await.to_string();
    assert!(
        error.contains("allkeys-lru") && error.contains("CONFIG SET maxmemory-policy noeviction"),
        "{error}"
    );
    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    open(&url).await.unwrap();
}

#[tokio::test]
async fn refuses_a_replica_and_names_its_master() {
    let server = Server::with(&["--replicaof", "127.0.0.1 1", "--appendonly", "yes"]);
    let error = open_error(&format!("redis://127.0.0.1:{}", server.port))
        .await
        .to_string();
    assert!(
        error.contains("replica") && error.contains("127.0.0.1:1"),
        "{error}"
    );
}

#[tokio::test]
async fn refuses_a_volatile_server_unless_allowed() {
    let server = Server::with(&["--appendonly", "no"]);
    let url = format!("redis://127.0.0.1:{}", server.port);
    let error = open_error(&url).await.to_string();
    assert!(
        error.contains("appendonly yes") && error.contains("volatile=yes"),
        "{error}"
    );
    let broker = open(&format!("{url}?volatile=yes")).await.unwrap();
    let health = broker.health().await.unwrap();
    assert!(
        health.durability.contains("lost with the server"),
        "{}",
        health.durability
    );
    assert!(
        health
            .checks
            .iter()
            .any(|check| !check.ok && check.fix.is_some())
    );
}

#[tokio::test]
async fn wait_aof_needs_redis_7_2() {
    let server = Server::start();
    let version = server.command(&["INFO", "server"]);
    let url = format!("{}&wait_aof=yes", server.url("x"));
    if version.contains("redis_version:7.0") || version.contains("redis_version:6") {
        let error = open_error(&url).await.to_string();
        assert!(
            error.contains("7.2") && error.contains("appendfsync always"),
            "{error}"
        );
    } else {
        open(&url)
            .await
            .unwrap()
            .submit(vec![task("one")])
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn refuses_a_namespace_of_another_program() {
    let server = Server::start();
    server.command(&["SET", "raddle:{x}:specs", "theirs"]);
    let error = open_error(&server.url("x")).await;
    assert!(matches!(error, Error::Taken { .. }), "{error}");
    assert!(error.to_string().contains("?namespace="), "{error}");
    assert!(
        server
            .command(&["GET", "raddle:{x}:specs"])
            .ends_with("theirs")
    );
    let broker = open(&server.url("y")).await.unwrap();
    server.command(&["SET", "raddle:{y}:wake:partition:5|default|", "theirs"]);
    let error = broker.submit(vec![task("one")]).await.unwrap_err();
    assert!(matches!(error, Error::Taken { .. }), "{error}");
    server.command(&["DEL", "raddle:{y}:wake:partition:5|default|"]);
}

/// Data of another layout is neither read nor changed.
#[tokio::test]
async fn refuses_a_namespace_in_another_layout() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    broker.submit(vec![task("one")]).await.unwrap();
    let meta = "raddle:{x}:meta";
    assert!(server.command(&["HGET", meta, "layout"]).ends_with('4'));
    // The second time as after a restart of the server.
    for run in ["", "another"] {
        if !run.is_empty() {
            server.command(&["HSET", meta, "run", run]);
        }
        server.command(&["HDEL", meta, "layout"]);
        let error = open_error(&server.url("x")).await;
        assert!(
            matches!(error, Error::Refused { .. }) && !error.is_retryable(),
            "{error}"
        );
        assert!(
            error.to_string().contains("layout 1") && error.to_string().contains("?namespace="),
            "{error}"
        );
        server.command(&["HSET", meta, "layout", "5"]);
        let error = open_error(&server.url("x")).await.to_string();
        assert!(
            error.contains("layout 5") && error.contains("upgrade"),
            "{error}"
        );
    }
    server.command(&["HSET", meta, "layout", "4"]);
    let tasks = open(&server.url("x"))
        .await
        .unwrap()
        .tasks(TaskFilter::default())
        .await
        .unwrap();
    assert_eq!(tasks.len(), 1);
}

#[tokio::test]
async fn a_full_server_refuses_submits_and_accepts_completions() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    let kept = broker.submit(vec![task("kept")]).await.unwrap()[0].tid();
    let attempt_id = broker.claim(request(worker, 1)).await.unwrap()[0].attempt_id;
    server.command(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let error = broker
        .submit(vec![task("one"), task("two")])
        .await
        .unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert!(
        error.is_retryable() && error.to_string().contains("maxmemory"),
        "{error}"
    );
    // A process that connects now can do so too.
    for broker in [&broker, &open(&server.url("x")).await.unwrap()] {
        let health = broker.health().await.unwrap();
        assert_eq!(health.engine.split(' ').next(), Some("redis"));
        assert_eq!(broker.tasks(TaskFilter::default()).await.unwrap().len(), 1);
        assert_eq!(
            broker.summary().await.unwrap().states[&TaskState::Spawning],
            1
        );
        assert_eq!(broker.workers().await.unwrap().len(), 1);
        assert!(
            !broker
                .events(None, Some(kept), 10, Duration::ZERO)
                .await
                .unwrap()
                .is_empty()
        );
    }
    let status = broker
        .lease_renewer(worker, SOON)
        .renew(Heartbeat::default())
        .unwrap();
    assert!(matches!(status, LeaseStatus::Alive(_)), "{status:?}");
    assert_eq!(
        broker.complete(vec![success(attempt_id)]).await.unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
    broker.submit(vec![task("one")]).await.unwrap_err();
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    let later = broker.submit(vec![task("later")]).await.unwrap()[0].tid();
    let tids: Vec<_> = broker
        .tasks(TaskFilter::default())
        .await
        .unwrap()
        .iter()
        .map(|task| task.tid)
        .collect();
    assert_eq!(tids, [later, kept]);
}

/// A server that answers every command with the same reply.
fn fixed_reply_server(answer: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let port = listener.local_addr().expect("it is bound").port();
    // The thread ends with the process.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || reply_to_commands(stream, answer));
        }
    });
    port
}

fn reply_to_commands(mut stream: std::net::TcpStream, answer: &str) {
    let mut text = vec![0; 64 * 1024];
    while let Ok(read) = std::io::Read::read(&mut stream, &mut text) {
        // Commands are arrays, which begin with `*` at the start of a line.
        let commands = text[..read]
            .windows(2)
            .filter(|pair| *pair == b"\n*")
            .count()
            + usize::from(read > 0);
        if read == 0 || (0..commands).any(|_| stream.write_all(answer.as_bytes()).is_err()) {
            return;
        }
    }
}

/// Nodes that redirect to each other are not followed for ever.
#[tokio::test]
async fn gives_up_nodes_that_redirect_in_circles() {
    let port = fixed_reply_server("-MOVED 3999 :1\r\n");
    let error = open_error(&format!("redis://127.0.0.1:{port}")).await;
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn refuses_an_old_server() {
    let port = fixed_reply_server("$21\r\nredis_version:6.0.16\n\r\n");
    let error = open_error(&format!("redis://127.0.0.1:{port}"))
        .await
        .to_string();
    assert!(error.contains("6.0.16") && error.contains("6.2"), "{error}");
}
