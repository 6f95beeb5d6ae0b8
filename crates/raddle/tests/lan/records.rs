//! Workers are added, updated and dropped.

use std::time::Duration;

use raddle::pool::WorkerMetadata;
use raddle_testnet::Lan;
use serde_json::json;

use crate::{QUIET, SOON, command, metadata_at, program::Program, seen_at};

#[test]
fn other_hosts_see_added_updated_and_dropped_workers() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, there) = (lan.host(), lan.host());
    let mut watcher = Program::watch(&there, "math");
    let mut beside = Program::watch(&here, "math");
    let mut publisher = Program::publisher(&here, "math");
    let worker = metadata_at("0.0.0.0:7000");
    let seen = seen_at(&worker, format!("{}:7000", here.ipv4()));
    publisher.run(&command("added", &worker));
    watcher.expect("added", &seen, SOON);
    beside.expect("added", &seen, SOON);

    // A late subscriber queries, and need not wait for the next announcement.
    let mut late = Program::watch(&there, "math");
    late.expect("added", &seen, Duration::from_secs(3));

    let changed = WorkerMetadata {
        tags: ["gpu".into(), "big".into()].into(),
        pid: 4712,
        ..worker
    };
    publisher.run(&command("updated", &changed));
    let seen = seen_at(&changed, &seen.address);
    for watcher in [&mut watcher, &mut beside, &mut late] {
        watcher.expect("updated", &seen, SOON);
    }
    // Repeated announcements are no events.
    assert_eq!(watcher.next_event(Duration::from_secs(6)), None);

    publisher.run(&command("dropped", &changed));
    for watcher in [&mut watcher, &mut beside, &mut late] {
        watcher.expect("dropped", &seen, SOON);
    }

    // A program that exits unpublishes its workers.
    let worker = metadata_at("0.0.0.0:7001");
    publisher.run(&command("added", &worker));
    let seen = seen_at(&worker, format!("{}:7001", here.ipv4()));
    watcher.expect("added", &seen, SOON);
    publisher.quit();
    watcher.expect("dropped", &seen, SOON);
}

#[test]
fn publishes_ipv4_and_ipv6_addresses() {
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
        let worker = metadata_at(&bound);
        publisher.run(&command("added", &worker));
        watcher.expect("added", &seen_at(&worker, &seen), SOON);
        publisher.run(&command("dropped", &worker));
        watcher.expect_dropped(&worker, SOON);
    }
    // An advertised address is published unchanged.
    let settings = json!({"namespace": "math", "advertise": "192.0.2.9:80"});
    let mut elsewhere = Program::start(&here, settings);
    let worker = metadata_at("0.0.0.0:7000");
    elsewhere.run(&command("added", &worker));
    watcher.expect("added", &seen_at(&worker, "192.0.2.9:80"), SOON);
}

#[test]
fn filters_workers_by_namespace_and_tag() {
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
    other.run(&command("added", &metadata_at("0.0.0.0:7000")));
    let plain = WorkerMetadata {
        tags: [].into(),
        ..metadata_at("0.0.0.0:7001")
    };
    publisher.run(&command("added", &plain));
    assert_eq!(watcher.next_event(QUIET), None);
    let tagged = WorkerMetadata {
        tags: ["gpu".into()].into(),
        ..plain.clone()
    };
    let seen = seen_at(&tagged, format!("{}:7001", here.ipv4()));
    publisher.run(&command("updated", &tagged));
    watcher.expect("added", &seen, SOON);
    publisher.run(&command("updated", &plain));
    watcher.expect("dropped", &seen, SOON);
}

#[test]
fn explains_workers_that_cannot_be_published() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let here = lan.host();
    let mut publisher = Program::publisher(&here, "math");
    let large = WorkerMetadata {
        tags: ["x".repeat(300)].into(),
        ..metadata_at("0.0.0.0:7000")
    };
    for (worker, reason) in [
        (&large, "tags: longer than 128 bytes"),
        (
            &metadata_at("unix:/run/x.sock"),
            "it listens on unix:/run/x.sock, which other machines cannot reach",
        ),
        (
            &metadata_at("127.0.0.1:7000"),
            "it listens on 127.0.0.1:7000, which other machines cannot reach",
        ),
        (
            &metadata_at("10.9.9.9:7000"),
            "no selected interface has that address",
        ),
        (
            &metadata_at("host.example:7000"),
            "only an IP address can be published",
        ),
    ] {
        let error = publisher.run_refused(&command("added", worker));
        assert!(
            error.starts_with(&format!(
                "cannot publish worker {} on the network",
                worker.uid
            )),
            "{error}"
        );
        assert!(error.contains(reason), "{error}, and not {reason}");
    }
}
