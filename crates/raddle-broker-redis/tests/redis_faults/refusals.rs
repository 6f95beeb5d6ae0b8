//! Servers that are not fit to keep tasks: each is refused in words that say what to do.

use std::{
    io::Write,
    net::TcpListener,
    time::{Duration, Instant},
};

use raddle_broker::{CompletionOutcome, Error, LeaseStatus, TaskFilter};
use raddle_model::{TaskState, worker::Heartbeat};

use super::{
    redis_server::{Server, until},
    support::*,
};

#[tokio::test]
async fn a_server_that_is_not_there_is_said_at_once() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let began = Instant::now();
    let error = refusal(&format!("redis://me:secret@127.0.0.1:{port}")).await;
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.is_retryable() && began.elapsed() < Duration::from_secs(5));
    assert!(
        error.to_string().contains(&port.to_string()) && !error.to_string().contains("secret"),
        "{error}"
    );
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_not_repeated() {
    let server = Server::with(&["--requirepass", "right", "--appendonly", "yes"]);
    for user in ["", ":secret@", "nobody:secret@"] {
        let error = refusal(&format!("redis://{user}127.0.0.1:{}", server.port)).await;
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

/// And the command that the message gives is enough.
#[tokio::test]
async fn a_user_who_may_not_do_enough_is_told_what_is_missing() {
    let server = Server::start();
    server.ask(&["ACL", "SETUSER", "me", "on", ">geheim", "~other:*", "+@all"]);
    let url = format!("redis://me:geheim@127.0.0.1:{}?namespace=x", server.port);
    let error = refusal(&url).await.to_string();
    assert!(
        error.contains("denies this user") && !error.contains("geheim"),
        "{error}"
    );
    let words: Vec<&str> = error
        .split('\'')
        .nth(1)
        .unwrap()
        .split(' ')
        .map(|word| word.replace("NAME", "me").leak() as &str)
        .collect();
    assert!(server.ask(&words).starts_with("+OK"), "{words:?}");
    let broker = open(&url).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    broker.submit(vec![task("one")]).await.unwrap();
    let attempt_id = broker.claim(request(worker, 1)).await.unwrap()[0].attempt_id;
    assert_eq!(
        broker.complete(vec![success(attempt_id)]).await.unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
}

/// Scripts alone would let it claim, but not wait for tasks.
#[tokio::test]
async fn a_worker_that_may_not_block_is_refused_instead_of_waiting_in_vain() {
    let server = Server::start();
    server.ask(&[
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
async fn a_foreign_key_in_the_way_of_a_waiting_worker_is_an_error() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    server.ask(&["SET", &format!("raddle:{{x}}:wake:{worker}"), "theirs"]);
    let error = broker.claim(request(worker, 1)).await.unwrap_err();
    assert!(matches!(error, Error::Taken { .. }), "{error}");
}

/// Without the scripts the claim behind a `BLPOP` fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_worker_outlives_the_loss_of_scripts() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    let waiting = tokio::spawn({
        let broker = broker.clone();
        async move { broker.claim(request(worker, 1)).await }
    });
    until("it waits", || {
        server
            .ask(&["INFO", "clients"])
            .contains("blocked_clients:1")
    });
    server.ask(&["SCRIPT", "FLUSH"]);
    let tid = broker.submit(vec![task("one")]).await.unwrap()[0].tid();
    assert_eq!(waiting.await.unwrap().unwrap()[0].attempt_id.tid, tid);
}

/// A master that is made a replica under our hands takes nothing, and says why.
#[tokio::test]
async fn a_master_that_becomes_a_replica_is_refused() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    broker.submit(vec![task("one")]).await.unwrap();
    let attempt_id = broker.claim(request(worker, 1)).await.unwrap()[0].attempt_id;
    server.ask(&["REPLICAOF", "127.0.0.1", "1"]);
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
    server.ask(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(
        broker.complete(vec![success(attempt_id)]).await.unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
    assert_eq!(broker.tasks(TaskFilter::default()).await.unwrap().len(), 1);
}

/// The server keeps what it has in memory, and refuses more, when it could not write it down.
#[tokio::test]
async fn a_server_that_cannot_write_to_its_disk_is_said_so() {
    let server = Server::with(&["--appendonly", "no"]);
    let broker = open(&server.url("x")).await.unwrap();
    broker.submit(vec![task("kept")]).await.unwrap();
    // In the way of its file.
    std::fs::create_dir(server.directory().join("dump.rdb")).unwrap();
    server.ask(&["CONFIG", "SET", "save", "3600 1"]);
    server.ask(&["BGSAVE"]);
    until("it could not save", || {
        server
            .ask(&["INFO", "persistence"])
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
        "a new namespace has to be written"
    );
    server.ask(&["CONFIG", "SET", "save", ""]);
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
async fn a_server_that_evicts_is_refused_with_the_command_that_helps() {
    let server = Server::with(&["--maxmemory-policy", "allkeys-lru", "--appendonly", "yes"]);
    let url = format!("redis://127.0.0.1:{}", server.port);
    let error = refusal(&url).await.to_string();
    assert!(
        error.contains("allkeys-lru") && error.contains("CONFIG SET maxmemory-policy noeviction"),
        "{error}"
    );
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    open(&url).await.unwrap();
}

#[tokio::test]
async fn a_replica_is_refused_with_the_name_of_its_master() {
    let server = Server::with(&["--replicaof", "127.0.0.1 1", "--appendonly", "yes"]);
    let error = refusal(&format!("redis://127.0.0.1:{}", server.port))
        .await
        .to_string();
    assert!(
        error.contains("replica") && error.contains("127.0.0.1:1"),
        "{error}"
    );
}

#[tokio::test]
async fn a_server_that_keeps_nothing_is_refused_unless_that_is_wanted() {
    let server = Server::with(&["--appendonly", "no"]);
    let url = format!("redis://127.0.0.1:{}", server.port);
    let error = refusal(&url).await.to_string();
    assert!(
        error.contains("appendonly yes") && error.contains("volatile=yes"),
        "{error}"
    );
    let broker = open(&format!("{url}?volatile=yes")).await.unwrap();
    let health = broker.health().await.unwrap();
    assert!(
        health.durability.contains("gone with the server"),
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
async fn waiting_for_the_disk_needs_a_server_that_can() {
    let server = Server::start();
    let version = server.ask(&["INFO", "server"]);
    let url = format!("{}&wait_aof=yes", server.url("x"));
    if version.contains("redis_version:7.0") || version.contains("redis_version:6") {
        let error = refusal(&url).await.to_string();
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
async fn a_namespace_of_another_program_is_left_alone() {
    let server = Server::start();
    server.ask(&["SET", "raddle:{x}:spec", "theirs"]);
    let error = refusal(&server.url("x")).await;
    assert!(matches!(error, Error::Taken { .. }), "{error}");
    assert!(error.to_string().contains("?namespace="), "{error}");
    assert!(server.ask(&["GET", "raddle:{x}:spec"]).ends_with("theirs"));
    let broker = open(&server.url("y")).await.unwrap();
    server.ask(&["SET", "raddle:{y}:ready:5|default|", "theirs"]);
    let error = broker.submit(vec![task("one")]).await.unwrap_err();
    assert!(matches!(error, Error::Taken { .. }), "{error}");
    server.ask(&["DEL", "raddle:{y}:ready:5|default|"]);
}

/// What another version stored is neither read nor changed.
#[tokio::test]
async fn a_namespace_in_another_layout_is_refused() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    broker.submit(vec![task("one")]).await.unwrap();
    let meta = "raddle:{x}:meta";
    assert!(server.ask(&["HGET", meta, "layout"]).ends_with('2'));
    // The second time after a restart of the server.
    for run in ["", "another"] {
        if !run.is_empty() {
            server.ask(&["HSET", meta, "run", run]);
        }
        server.ask(&["HDEL", meta, "layout"]);
        let error = refusal(&server.url("x")).await;
        assert!(
            matches!(error, Error::Refused { .. }) && !error.is_retryable(),
            "{error}"
        );
        assert!(
            error.to_string().contains("layout 1") && error.to_string().contains("?namespace="),
            "{error}"
        );
        server.ask(&["HSET", meta, "layout", "3"]);
        let error = refusal(&server.url("x")).await.to_string();
        assert!(
            error.contains("layout 3") && error.contains("upgrade"),
            "{error}"
        );
    }
    server.ask(&["HSET", meta, "layout", "2"]);
    let tasks = open(&server.url("x"))
        .await
        .unwrap()
        .tasks(TaskFilter::default())
        .await
        .unwrap();
    assert_eq!(tasks.len(), 1);
}

#[tokio::test]
async fn a_server_without_memory_takes_nothing_new_and_ends_what_it_has() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    let kept = broker.submit(vec![task("kept")]).await.unwrap()[0].tid();
    let attempt_id = broker.claim(request(worker, 1)).await.unwrap()[0].attempt_id;
    server.ask(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let error = broker
        .submit(vec![task("one"), task("two")])
        .await
        .unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert!(
        error.is_retryable() && error.to_string().contains("maxmemory"),
        "{error}"
    );
    // Also by a process that connects only now.
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
    let pulse = broker
        .lease_renewer(worker, SOON)
        .renew(Heartbeat::default())
        .unwrap();
    assert!(matches!(pulse, LeaseStatus::Alive(_)), "{pulse:?}");
    assert_eq!(
        broker.complete(vec![success(attempt_id)]).await.unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
    broker.submit(vec![task("one")]).await.unwrap_err();
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    let later = broker.submit(vec![task("later")]).await.unwrap()[0].tid();
    let there: Vec<_> = broker
        .tasks(TaskFilter::default())
        .await
        .unwrap()
        .iter()
        .map(|task| task.tid)
        .collect();
    assert_eq!(there, [later, kept]);
}

/// A server that answers everything with the same line.
fn parrot(answer: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let port = listener.local_addr().expect("it is bound").port();
    // It ends with the process: nobody else knows of it.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || speak(stream, answer));
        }
    });
    port
}

fn speak(mut stream: std::net::TcpStream, answer: &str) {
    let mut text = vec![0; 64 * 1024];
    while let Ok(read) = std::io::Read::read(&mut stream, &mut text) {
        // Commands are arrays, which begin with a star at the beginning of a line.
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

/// Nodes that name each other are not followed for ever.
#[tokio::test]
async fn nodes_that_disagree_are_given_up() {
    let port = parrot("-MOVED 3999 :1\r\n");
    let error = refusal(&format!("redis://127.0.0.1:{port}")).await;
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn an_old_server_is_refused() {
    let port = parrot("$21\r\nredis_version:6.0.16\n\r\n");
    let error = refusal(&format!("redis://127.0.0.1:{port}"))
        .await
        .to_string();
    assert!(error.contains("6.0.16") && error.contains("6.2"), "{error}");
}
