//! A host that is far away: all is late, also what its system acknowledges, and nothing is lost for that.

use std::time::Duration;

use raddle_testnet::Lan;

use crate::{Load, Machine, Settings, load::failed, pause};

/// Calls a host that is so far away, in either direction, and one that is near.
fn called_from_afar(delay: u64) {
    let lan = Lan::new();
    let [mut near, mut far, caller] = [(); 3].map(|()| Machine::new(&lan));
    let workers = [
        near.serve(&["--workers", "1"]),
        far.serve(&["--workers", "1"]),
    ]
    .concat();
    let cable = far.host.cable();
    cable.delay_to_host(Duration::from_millis(delay));
    cable.delay_from_host(Duration::from_millis(delay));
    // A routine that takes longer than it takes to doubt that its worker is there.
    let settings = Settings {
        workers: Some(workers),
        callers: 4,
        linger: 400,
        ..Settings::default()
    };
    let load = Load::start(&caller, &settings);
    load.settle(&[near.name(), far.name()]);
    pause(6_000);
    let calls = load.stop();
    assert!(failed(&calls).is_empty(), "{:#?}", failed(&calls));
    let from_far: Vec<_> = calls
        .iter()
        .filter(|call| call.host.as_deref() == Some(far.name()))
        .collect();
    // There and back, and what the routine takes.
    let least = 2 * delay + 399;
    assert!(
        from_far.len() > 5 && from_far.iter().all(|call| call.ended - call.began >= least),
        "{from_far:#?}"
    );
}

#[test]
fn calls_to_a_host_far_away_are_late_and_not_lost() {
    if raddle_testnet::can_create_hosts() {
        called_from_afar(150);
    }
}

/// A machine has 0.7 s to acknowledge what it is sent.
#[test]
fn nor_are_they_where_it_takes_nearly_as_long_as_it_may() {
    if raddle_testnet::can_create_hosts() {
        called_from_afar(250);
    }
}
