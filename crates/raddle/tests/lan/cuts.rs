//! Workers that are gone without a word, and those that come back.

use std::time::{Duration, Instant};

use raddle_testnet::Lan;

use crate::{SOON, at, program::Program, seen_at, word};

/// How long a worker may be silent, and how long it may take until that is seen.
pub(crate) const SILENCE: Duration = Duration::from_secs(15 + 20);

#[test]
fn who_dies_without_a_word_is_missed_and_sooner_if_somebody_cannot_reach_it() {
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
    let (worker, other) = (at("0.0.0.0:7000"), at("0.0.0.0:7001"));
    publisher.tell(&word("added", &worker));
    let seen = seen_at(&worker, format!("{}:7000", here.ipv4()));
    watcher.expect("added", &seen, SOON);
    idle.expect("added", &seen, SOON);
    alive.tell(&word("added", &other));
    let seen_other = seen_at(&other, format!("{}:7001", here.ipv4()));
    watcher.expect("added", &seen_other, SOON);
    idle.expect("added", &seen_other, SOON);
    publisher.kill();
    let killed = Instant::now();
    // Somebody could not call them: who is there says so, and who is not cannot.
    watcher.tell(&word("recheck", &seen));
    watcher.tell(&word("recheck", &seen_other));
    let took = watcher.expect("dropped", &seen, SOON);
    assert!(took < Duration::from_secs(5), "{took:?}");
    idle.expect("dropped", &seen, SILENCE);
    let took = killed.elapsed();
    assert!(
        took > Duration::from_secs(10),
        "it had time to be heard again: {took:?}"
    );
    assert_eq!(watcher.hears(Duration::ZERO), None, "the other is there");
}

#[test]
fn who_was_cut_off_is_back_soon_after_it_is_not() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, there) = (lan.host(), lan.host());
    let mut watcher = Program::watch(&there, "math");
    let mut publisher = Program::publisher(&here, "math");
    let worker = at("0.0.0.0:7000");
    publisher.tell(&word("added", &worker));
    let seen = seen_at(&worker, format!("{}:7000", here.ipv4()));
    watcher.expect("added", &seen, SOON);
    // It can hear, but not be heard.
    here.cable().lose_from_host(100);
    watcher.expect("dropped", &seen, SILENCE);
    here.cable().lose_from_host(0);
    watcher.expect("added", &seen, SOON);
    // Its cable is pulled.
    here.cable().pull();
    watcher.expect("dropped", &seen, SILENCE);
    here.cable().plug();
    watcher.expect("added", &seen, SOON);
    // The other's is: then nobody is there.
    there.cable().pull();
    watcher.expect("dropped", &seen, SILENCE);
    there.cable().plug();
    watcher.expect("added", &seen, SOON);
}

#[test]
fn a_worker_is_not_missed_on_a_bad_line() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, there) = (lan.host(), lan.host());
    let mut watcher = Program::watch(&there, "math");
    let mut publisher = Program::publisher(&here, "math");
    let worker = at("0.0.0.0:7000");
    here.cable().lose_from_host(20);
    publisher.tell(&word("added", &worker));
    let seen = seen_at(&worker, format!("{}:7000", here.ipv4()));
    watcher.expect("added", &seen, 2 * SOON);
    assert_eq!(watcher.hears(Duration::from_secs(20)), None);
}
