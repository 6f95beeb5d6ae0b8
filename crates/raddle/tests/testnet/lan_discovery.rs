//! Hosts that find each other by mDNS, come and go.

use raddle_testnet::Lan;

use crate::{Load, Machine, Settings, load::failed_calls_after, now, wait_until};

const LAN: [&str; 4] = ["--workers", "1", "--discovery", "lan"];

#[test]
fn hosts_join_and_leave_without_failed_calls() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let [mut one, mut two, caller] = [(); 3].map(|()| Machine::new(&lan));
    one.serve(&LAN);
    let names = [one.name().to_owned(), two.name().to_owned()];
    let [first, second] = [names[0].as_str(), names[1].as_str()];
    let load = Load::start(
        &caller,
        &Settings {
            lan: Some("default".into()),
            linger: 20,
            ..Settings::default()
        },
    );
    // A new mDNS name is published after probing, so the first call may take a while.
    load.wait_until_only(&[first]);
    let began = now();
    two.serve(&LAN);
    wait_until("the new host is called", 30, || {
        load.count_ran(began, second) > 0
    });
    load.wait_until_only(&[first, second]);
    one.stop_first();
    let left = now();
    load.wait_until_only(&[second]);
    one.serve(&["--workers", "2", "--discovery", "lan", "--name", "others"]);
    crate::pause(1_500);
    assert_eq!(
        load.count_ran(left, first),
        0,
        "workers of another namespace are not called"
    );
    one.serve(&LAN);
    let back = now();
    wait_until("the returned host is called", 30, || {
        load.count_ran(back, first) > 0
    });
    let calls = load.stop();
    assert!(
        failed_calls_after(&calls, began).is_empty(),
        "{:#?}",
        failed_calls_after(&calls, began)
    );
}

#[test]
fn finds_a_disconnected_host_again() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let [mut one, mut two, caller] = [(); 3].map(|()| Machine::new(&lan));
    one.serve(&LAN);
    two.serve(&LAN);
    let (first, second) = (one.name(), two.name());
    let load = Load::start(
        &caller,
        &Settings {
            lan: Some("default".into()),
            ..Settings::default()
        },
    );
    load.wait_until_only(&[first, second]);
    one.host.cable().pull();
    // Long enough for the entry to expire.
    let cut = now();
    crate::pause(8_000);
    one.host.cable().plug();
    let healed = now();
    wait_until("the host is called again", 30, || {
        load.count_ran(healed, first) > 0
    });
    let calls = load.stop();
    let late = failed_calls_after(&calls, cut + 2_000);
    assert!(late.is_empty(), "{late:#?}");
}
