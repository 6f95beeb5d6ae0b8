//! Workers that die without a goodbye, and partitions that heal.

use std::time::{Duration, Instant};

use raddle_testnet::Lan;

use crate::{SOON, command, metadata_at, program::Program, seen_at};

/// How long a worker may be silent, plus the time until that is noticed.
pub(crate) const SILENCE: Duration = Duration::from_secs(15 + 20);

#[test]
fn drops_a_dead_worker_sooner_when_its_address_is_doubted() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, there, third) = (lan.host(), lan.host(), lan.host());
    let (mut watcher, mut idle) = (
        Program::watch(&there, "math"),
        Program::watch(&third, "math"),
    );
    let (mut publisher, mut alive) = (
        Program::publisher(&here, "math"),
        Program::publisher(&here, "math"),
    );
    let (worker, other) = (metadata_at("0.0.0.0:7000"), metadata_at("0.0.0.0:7001"));
    publisher.run(&command("added", &worker));
    let seen = seen_at(&worker, format!("{}:7000", here.ipv4()));
    watcher.expect("added", &seen, SOON);
    idle.expect("added", &seen, SOON);
    alive.run(&command("added", &other));
    let seen_other = seen_at(&other, format!("{}:7001", here.ipv4()));
    watcher.expect("added", &seen_other, SOON);
    idle.expect("added", &seen_other, SOON);
    publisher.kill();
    let killed = Instant::now();
    // A failed call has both workers rechecked: the live one answers, the dead one does not.
    watcher.run(&command("recheck", &seen));
    watcher.run(&command("recheck", &seen_other));
    let took = watcher.expect("dropped", &seen, SOON);
    assert!(took < Duration::from_secs(5), "{took:?}");
    idle.expect("dropped", &seen, SILENCE);
    let took = killed.elapsed();
    assert!(
        took > Duration::from_secs(10),
        "the entry was kept for a while: {took:?}"
    );
    assert_eq!(
        watcher.next_event(Duration::ZERO),
        None,
        "the live worker stays"
    );
}

#[test]
fn finds_a_worker_again_after_a_partition() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, there) = (lan.host(), lan.host());
    let mut watcher = Program::watch(&there, "math");
    let mut publisher = Program::publisher(&here, "math");
    let worker = metadata_at("0.0.0.0:7000");
    publisher.run(&command("added", &worker));
    let seen = seen_at(&worker, format!("{}:7000", here.ipv4()));
    watcher.expect("added", &seen, SOON);
    // It can receive, but not send.
    here.cable().lose_from_host(100);
    watcher.expect("dropped", &seen, SILENCE);
    here.cable().lose_from_host(0);
    watcher.expect("added", &seen, SOON);
    // The cable of the publisher is pulled.
    here.cable().pull();
    watcher.expect("dropped", &seen, SILENCE);
    here.cable().plug();
    watcher.expect("added", &seen, SOON);
    // The cable of the watcher is pulled: it loses all workers.
    there.cable().pull();
    watcher.expect("dropped", &seen, SILENCE);
    there.cable().plug();
    watcher.expect("added", &seen, SOON);
}

#[test]
fn keeps_a_worker_on_a_lossy_link() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, there) = (lan.host(), lan.host());
    let mut watcher = Program::watch(&there, "math");
    let mut publisher = Program::publisher(&here, "math");
    let worker = metadata_at("0.0.0.0:7000");
    here.cable().lose_from_host(20);
    publisher.run(&command("added", &worker));
    let seen = seen_at(&worker, format!("{}:7000", here.ipv4()));
    watcher.expect("added", &seen, 2 * SOON);
    assert_eq!(watcher.next_event(Duration::from_secs(20)), None);
}
