//! A host is cut off: by a cable that is pulled, by loss in one direction, or because it has no power any more. Traffic goes on at the others within
//! 2 s, nobody waits beyond that, and it is called again within 5 s of being back.

use raddle_testnet::{Host, Lan};

use crate::{
    Called, Load, Machine, Settings,
    load::{failed, failed_after},
    now, pause, until,
};

/// How long traffic may take to go on elsewhere.
const ELSEWHERE: u64 = 2_000;
/// How long a host may take to be called again that is back.
const BACK: u64 = 5;

/// Three hosts that serve, one that calls, and all workers.
fn three(lan: &Lan) -> ([Machine; 3], Machine, Settings) {
    let mut machines = [(); 3].map(|()| Machine::new(lan));
    let workers = machines
        .iter_mut()
        .flat_map(|machine| machine.serve(&["--workers", "1"]))
        .collect();
    (
        machines,
        Machine::new(lan),
        Settings {
            workers: Some(workers),
            ..Settings::default()
        },
    )
}

/// Sees to it that traffic has gone on at the others after a host was cut off.
fn check(calls: &[Called], cut: u64, until: u64, lost: &str) {
    let slow: Vec<_> = calls
        .iter()
        .filter(|call| call.ended > cut && call.ended - call.began > ELSEWHERE)
        .collect();
    assert!(slow.is_empty(), "calls that took too long: {slow:#?}");
    // What was on its way may have begun, and is lost. No other call fails: it goes elsewhere.
    for call in failed(calls) {
        assert!(
            (cut.saturating_sub(ELSEWHERE)..cut + ELSEWHERE).contains(&call.began),
            "at {cut}: {call:?}"
        );
        assert!(call.may_have_begun, "{call:?}");
    }
    let ran = |from: u64, to: u64| {
        let there = |call: &&Called| call.host.as_deref().is_some_and(|host| host != lost);
        calls
            .iter()
            .filter(there)
            .filter(|call| (from..to).contains(&call.ended))
            .count() as u64
    };
    let before = ran(cut - 1_000, cut);
    let after = ran(cut + ELSEWHERE, until) * 1_000 / (until - cut - ELSEWHERE);
    assert!(
        after * 2 > before,
        "{before} calls in a second before, and {after} after"
    );
}

/// Cuts a host off and heals it, while callers without a deadline call.
fn cut_and_healed(cut_off: impl Fn(&Host), heal: impl Fn(&Host)) {
    let lan = Lan::new();
    let (machines, caller, settings) = three(&lan);
    let names: Vec<_> = machines.iter().map(Machine::name).collect();
    let load = Load::start(&caller, &settings);
    load.settle(&names);
    pause(1_200);
    let cut = now();
    cut_off(&machines[0].host);
    pause(6_000);
    let healing = now();
    heal(&machines[0].host);
    let healed = now();
    until("it is called again", BACK, || {
        load.ran(healed, names[0]) > 0
    });
    pause(1_000);
    let calls = load.stop();
    check(&calls, cut, healing, names[0]);
    let late = failed_after(&calls, healed);
    assert!(late.is_empty(), "{late:#?}");
}

#[test]
fn a_cable_that_is_pulled_costs_no_more_than_what_was_on_its_way() {
    if raddle_testnet::can_create_hosts() {
        cut_and_healed(|host| host.cable().pull(), |host| host.cable().plug());
    }
}

#[test]
fn what_a_host_says_is_lost() {
    if raddle_testnet::can_create_hosts() {
        cut_and_healed(
            |host| host.cable().lose_from_host(100),
            |host| host.cable().lose_from_host(0),
        );
    }
}

#[test]
fn what_a_host_is_told_is_lost() {
    if raddle_testnet::can_create_hosts() {
        cut_and_healed(
            |host| host.cable().lose_to_host(100),
            |host| host.cable().lose_to_host(0),
        );
    }
}

#[test]
fn calls_of_a_host_without_power_are_lost_and_that_is_said() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (machines, caller, settings) = three(&lan);
    let names: Vec<_> = machines
        .iter()
        .map(|machine| machine.name().to_owned())
        .collect();
    // Some that are over at once, and some that would take a minute; without a deadline, all of them.
    let load = Load::start(&caller, &settings);
    let long = Load::start(
        &caller,
        &Settings {
            callers: 6,
            linger: 60_000,
            ..settings.clone()
        },
    );
    load.settle(&names.iter().map(String::as_str).collect::<Vec<_>>());
    pause(1_500);
    let [first, ..] = machines;
    let cut = now();
    first.cut_power();
    until("those that ran there are given up", 30, || {
        failed(&long.calls()).len() == 2
    });
    pause(3_000);
    let (calls, given_up) = (load.stop(), long.stop());
    check(&calls, cut, now(), &names[0]);
    for call in failed(&given_up) {
        assert!(
            call.may_have_begun && call.ended < cut + ELSEWHERE,
            "at {cut}: {call:?}"
        );
        assert!(
            call.error
                .as_ref()
                .is_some_and(|error| error.contains("the worker was lost")),
            "{call:?}"
        );
    }
}

#[test]
fn a_deadline_holds_wherever_a_call_is() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (machines, caller, settings) = three(&lan);
    let names: Vec<_> = machines.iter().map(Machine::name).collect();
    let load = Load::start(
        &caller,
        &Settings {
            timeout: Some(500),
            ..settings
        },
    );
    load.settle(&names);
    machines[0].host.cable().pull();
    pause(3_000);
    // The caller himself is cut off: there is nobody whom he could reach.
    caller.host.cable().pull();
    pause(3_000);
    caller.host.cable().plug();
    until("calls run again", BACK, || {
        load.ran(now() - 200, names[1]) > 0
    });
    let calls = load.stop();
    let slow: Vec<_> = calls
        .iter()
        .filter(|call| call.ended - call.began > 1_000)
        .collect();
    assert!(slow.is_empty(), "{slow:#?}");
}
