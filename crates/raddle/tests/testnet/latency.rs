//! Hosts behind a slow link: packets and their acknowledgements are late, and no call is lost.

use std::time::Duration;

use raddle_testnet::Lan;

use crate::{Load, Machine, Settings, load::failed_calls, pause};

/// Calls a host with this delay in each direction, and one without delay.
fn call_with_delay(delay: u64) {
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
    // The routine takes longer than the time after which liveness of its worker is probed.
    let settings = Settings {
        workers: Some(workers),
        callers: 4,
        linger: 400,
        ..Settings::default()
    };
    let load = Load::start(&caller, &settings);
    load.wait_until_only(&[near.name(), far.name()]);
    pause(6_000);
    let calls = load.stop();
    assert!(
        failed_calls(&calls).is_empty(),
        "{:#?}",
        failed_calls(&calls)
    );
    let from_far: Vec<_> = calls
        .iter()
        .filter(|call| call.host.as_deref() == Some(far.name()))
        .collect();
    // The round trip and the duration of the routine.
    let least = 2 * delay + 399;
    assert!(
        from_far.len() > 5 && from_far.iter().all(|call| call.ended - call.began >= least),
        "{from_far:#?}"
    );
}

#[test]
fn calls_over_a_slow_link_succeed() {
    if raddle_testnet::can_create_hosts() {
        call_with_delay(150);
    }
}

/// The limit for an acknowledgement is 0.7 s.
#[test]
fn calls_just_below_the_ack_timeout_succeed() {
    if raddle_testnet::can_create_hosts() {
        call_with_delay(250);
    }
}
