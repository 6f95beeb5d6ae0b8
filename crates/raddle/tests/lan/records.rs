//! Workers that come, change and go.

use std::time::Duration;

use raddle::pool::WorkerMetadata;
use raddle_testnet::Lan;
use serde_json::json;

use crate::{QUIET, SOON, at, program::Program, seen_at, word};

#[test]
fn workers_that_come_change_and_go_are_heard_of_on_other_hosts() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, there) = (lan.host(), lan.host());
    let mut watcher = Program::watch(&there, "math");
    let mut beside = Program::watch(&here, "math");
    let mut publisher = Program::publisher(&here, "math");
    let worker = at("0.0.0.0:7000");
    let seen = seen_at(&worker, format!("{}:7000", here.ipv4()));
    publisher.tell(&word("added", &worker));
    watcher.expect("added", &seen, SOON);
    beside.expect("added", &seen, SOON);

    // Who comes later asks, and need not wait for the next sign of life.
    let mut late = Program::watch(&there, "math");
    late.expect("added", &seen, Duration::from_secs(3));

    let changed = WorkerMetadata {
        tags: ["gpu".into(), "big".into()].into(),
        pid: 4712,
        ..worker
    };
    publisher.tell(&word("updated", &changed));
    let seen = seen_at(&changed, &seen.address);
    for watcher in [&mut watcher, &mut beside, &mut late] {
        watcher.expect("updated", &seen, SOON);
    }
    // Signs of life are nothing to tell.
    assert_eq!(watcher.hears(Duration::from_secs(6)), None);

    publisher.tell(&word("dropped", &changed));
    for watcher in [&mut watcher, &mut beside, &mut late] {
        watcher.expect("dropped", &seen, SOON);
    }

    // A program that comes to its end takes back what it has published.
    let worker = at("0.0.0.0:7001");
    publisher.tell(&word("added", &worker));
    let seen = seen_at(&worker, format!("{}:7001", here.ipv4()));
    watcher.expect("added", &seen, SOON);
    publisher.quit();
    watcher.expect("dropped", &seen, SOON);
}

#[test]
fn workers_are_found_at_addresses_of_either_kind() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, there) = (lan.host(), lan.host());
    let mut watcher = Program::watch(&there, "math");
    let mut publisher = Program::publisher(&here, "math");
    for (bound, seen) in [
        (
            format!("{}:7000", here.ipv4()),
            format!("{}:7000", here.ipv4()),
        ),
        (
            format!("[{}]:7000", here.ipv6()),
            format!("[{}]:7000", here.ipv6()),
        ),
        ("[::]:7000".to_owned(), format!("{}:7000", here.ipv4())),
    ] {
        let worker = at(&bound);
        publisher.tell(&word("added", &worker));
        watcher.expect("added", &seen_at(&worker, &seen), SOON);
        publisher.tell(&word("dropped", &worker));
        watcher.expect_dropped(&worker, SOON);
    }
    // One that is said, wherever it is.
    let settings = json!({"namespace": "math", "advertise": "192.0.2.9:80"});
    let mut elsewhere = Program::start(&here, settings);
    let worker = at("0.0.0.0:7000");
    elsewhere.tell(&word("added", &worker));
    watcher.expect("added", &seen_at(&worker, "192.0.2.9:80"), SOON);
}

#[test]
fn only_workers_of_the_same_name_that_are_wanted_are_heard_of() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, there) = (lan.host(), lan.host());
    let settings = json!({"namespace": "math", "watch": true, "tag": "gpu"});
    let mut watcher = Program::start(&there, settings);
    let (mut publisher, mut other) = (
        Program::publisher(&here, "math"),
        Program::publisher(&here, "mathematics"),
    );
    other.tell(&word("added", &at("0.0.0.0:7000")));
    let plain = WorkerMetadata {
        tags: [].into(),
        ..at("0.0.0.0:7001")
    };
    publisher.tell(&word("added", &plain));
    assert_eq!(watcher.hears(QUIET), None);
    let tagged = WorkerMetadata {
        tags: ["gpu".into()].into(),
        ..plain.clone()
    };
    let seen = seen_at(&tagged, format!("{}:7001", here.ipv4()));
    publisher.tell(&word("updated", &tagged));
    watcher.expect("added", &seen, SOON);
    publisher.tell(&word("updated", &plain));
    watcher.expect("dropped", &seen, SOON);
}

#[test]
fn what_cannot_be_published_is_said_and_why() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let here = lan.host();
    let mut publisher = Program::publisher(&here, "math");
    let large = WorkerMetadata {
        tags: ["x".repeat(300)].into(),
        ..at("0.0.0.0:7000")
    };
    for (worker, reason) in [
        (&large, "tags: longer than 128 bytes"),
        (
            &at("unix:/run/x.sock"),
            "it serves at unix:/run/x.sock, which other machines cannot reach",
        ),
        (
            &at("127.0.0.1:7000"),
            "it serves at 127.0.0.1:7000, which other machines cannot reach",
        ),
        (
            &at("10.9.9.9:7000"),
            "no interface that was chosen has that address",
        ),
        (
            &at("host.example:7000"),
            "only an IP address can be published",
        ),
    ] {
        let error = publisher.refused(&word("added", worker));
        assert!(
            error.starts_with(&format!(
                "worker {} cannot be published on the network",
                worker.uid
            )),
            "{error}"
        );
        assert!(error.contains(reason), "{error}, and not {reason}");
    }
}
