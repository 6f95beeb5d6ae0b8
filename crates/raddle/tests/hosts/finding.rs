//! Hosts that find each other on their network, come and go.

use raddle_testnet::Lan;

use crate::{Load, Machine, Settings, load::failed_after, now, until};

const LAN: [&str; 4] = ["--workers", "1", "--discovery", "lan"];

#[test]
fn hosts_join_and_leave_without_a_call_that_fails() {
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
    // Who comes to a network is heard of when it has made sure that nobody else has its name.
    load.settle(&[first]);
    let began = now();
    two.serve(&LAN);
    until("who joins is called", 30, || load.ran(began, second) > 0);
    load.settle(&[first, second]);
    one.leave();
    let left = now();
    load.settle(&[second]);
    one.serve(&["--workers", "2", "--discovery", "lan", "--name", "others"]);
    crate::pause(1_500);
    assert_eq!(
        load.ran(left, first),
        0,
        "what has another name is not called"
    );
    one.serve(&LAN);
    let back = now();
    until("who is back is called", 30, || load.ran(back, first) > 0);
    let calls = load.stop();
    assert!(
        failed_after(&calls, began).is_empty(),
        "{:#?}",
        failed_after(&calls, began)
    );
}

#[test]
fn a_host_that_is_cut_off_is_found_again() {
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
    load.settle(&[first, second]);
    one.host.cable().pull();
    // Long enough to be forgotten.
    let cut = now();
    crate::pause(8_000);
    one.host.cable().plug();
    let healed = now();
    until("it is called again", 30, || load.ran(healed, first) > 0);
    let calls = load.stop();
    let late = failed_after(&calls, cut + 2_000);
    assert!(late.is_empty(), "{late:#?}");
}
