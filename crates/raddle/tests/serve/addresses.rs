//! Addresses of workers.

use std::net::TcpListener;

use crate::{
    routines,
    server::{PoolServer, ServerDir, signal},
    wait_until, within,
};

/// The first of so many consecutive free ports.
fn free_ports(number: u16) -> u16 {
    let first = 20_000 + (std::process::id() % 500) as u16 * 20;
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    (first..first + 1000)
        .find(|first| (*first..first + number).all(is_free))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_get_consecutive_ports_and_keep_them() {
    within(120, async {
        let first = free_ports(3);
        let served =
            PoolServer::start(&["--workers", "3", "--bind", &format!("127.0.0.1:{first}")]).await;
        let addresses = || {
            let mut addresses: Vec<_> = served
                .workers()
                .into_iter()
                .map(|worker| worker.address)
                .collect();
            addresses.sort();
            addresses
        };
        let expected: Vec<_> = (first..first + 3)
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        assert_eq!(addresses(), expected);
        let second = served
            .workers()
            .into_iter()
            .find(|worker| worker.address == expected[1])
            .unwrap();
        signal(second.pid, libc::SIGKILL);
        wait_until("a replacement serves on the port", async || {
            served
                .workers()
                .iter()
                .any(|worker| worker.address == expected[1] && worker.uid != second.uid)
        })
        .await;
        assert_eq!(addresses(), expected);
        let pool = served.pool().start().await.unwrap();
        for _ in 0..6 {
            assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wildcard_addresses_are_published_as_advertised() {
    within(120, async {
        let served =
            PoolServer::start(&["--workers", "2", "--bind", "0.0.0.0:0", "--insecure"]).await;
        assert!(
            served
                .workers()
                .iter()
                .all(|worker| worker.address.starts_with("127.0.0.1:"))
        );
        let advertise = [
            "--workers",
            "1",
            "--bind",
            "0.0.0.0:0",
            "--insecure",
            "--advertise",
            "localhost",
        ];
        let served = PoolServer::start(&advertise).await;
        assert!(
            served.workers()[0].address.starts_with("localhost:"),
            "{:?}",
            served.workers()
        );
        let pool = served.pool().start().await.unwrap();
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
    })
    .await;
}

#[test]
fn refuses_invalid_options_and_leaves_no_process() {
    let world = ServerDir::new();
    let open = world.run_refused(&["--bind", "0.0.0.0:0"], 2);
    assert!(
        open.contains("'0.0.0.0:0' can be reached from other machines")
            && open.contains("--insecure"),
        "{open}"
    );
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let message = world.run_refused(&["--workers", "1", "--bind", &address], 125);
    assert!(
        message.contains(&format!("{address} is in use")) && message.contains("1 of 1 workers"),
        "{message}"
    );
    let message = world.run_refused(
        &["--workers", "1", "--bind", "203.0.113.9:7070", "--insecure"],
        125,
    );
    assert!(
        message.contains("this machine has no address 203.0.113.9:7070"),
        "{message}"
    );
    let message = world.run_refused(&["--workers", "1", "--program", "/bin/true"], 125);
    assert!(
        message.contains("is /bin/true a program with #[raddle::main]?"),
        "{message}"
    );
    std::fs::write(world.path().join("a-file"), "").unwrap();
    let message = world.run_refused(&["--metrics-addr", &address], 2);
    assert!(message.contains("cannot listen on"), "{message}");
    for (args, expected) in [
        (&["--bind", "nowhere"][..], "is no address"),
        (
            &["--bind", "127.0.0.1:65535", "--workers", "2"],
            "not enough ports",
        ),
        (&["--advertise", "0.0.0.0"], "invalid address"),
        (&["--name", "two words"], "is no name for a pool"),
        (&["--discovery", "rumour"], "expected 'local', 'lan'"),
        (&["--discovery", "file"], "name the file or directory"),
        (
            &["--discovery", "file:a-file"],
            "a-file is a file: name a directory",
        ),
        (
            &["--discovery", "file:nowhere/workers"],
            "there is no directory nowhere to create nowhere/workers in",
        ),
        (
            &["--discovery", "lan"],
            "bind to a network address, such as with --bind 0.0.0.0:0",
        ),
        (
            &["--discovery", "lan", "--bind", "127.0.0.1:0"],
            "would serve at 127.0.0.1:0",
        ),
        (&["--bind", "7070"], "use host:port, as 127.0.0.1:7070"),
        (&["--allow-file", "none"], "the rules in none: No such file"),
        (
            &["--allow", "10.0.0.7 = *"],
            "not by address: give a name in the certificate, as web.internal",
        ),
        (&["--allow", "nonsense"], "is not of the form WHO = WHAT"),
        (&["--credentials-cert", "none.pem"], "--credentials-ca"),
        (&["--credentials-ca", "none.pem"], "for mutual TLS"),
    ] {
        let message = world.run_refused(args, 2);
        assert!(message.contains(expected), "{args:?}: {message}");
    }
}
