//! Partitions: a pulled cable, packet loss in one direction, or a power cut. Traffic continues on
//! other hosts within 2 s, no call waits longer, and the host is called again within 5 s of its
//! recovery.

use raddle_testnet::{Host, Lan};

use crate::{
    CallRecord, Load, Machine, Settings,
    load::{failed_calls, failed_calls_after},
    now, pause, wait_until,
};

/// How long traffic may take to continue on other hosts.
const FAILOVER_MILLIS: u64 = 2_000;
/// How long a recovered host may take to be called again.
const RECOVERY_SECONDS: u64 = 5;

/// Three servers, one caller, and all workers.
fn three_servers(lan: &Lan) -> ([Machine; 3], Machine, Settings) {
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

/// Checks that traffic continued on the other hosts after a partition.
fn check_failover(calls: &[CallRecord], cut: u64, until: u64, cut_host: &str) {
    let slow: Vec<_> = calls
        .iter()
        .filter(|call| call.ended > cut && call.ended - call.began > FAILOVER_MILLIS)
        .collect();
    assert!(slow.is_empty(), "calls that took too long: {slow:#?}");
    // Calls in flight may have begun, and are lost. All others go to another host.
    for call in failed_calls(calls) {
        assert!(
            (cut.saturating_sub(FAILOVER_MILLIS)..cut + FAILOVER_MILLIS).contains(&call.began),
            "at {cut}: {call:?}"
        );
        assert!(call.may_have_begun, "{call:?}");
    }
    let count_ran = |from: u64, to: u64| {
        let there = |call: &&CallRecord| call.host.as_deref().is_some_and(|host| host != cut_host);
        calls
            .iter()
            .filter(there)
            .filter(|call| (from..to).contains(&call.ended))
            .count() as u64
    };
    let before = count_ran(cut - 1_000, cut);
    let after = count_ran(cut + FAILOVER_MILLIS, until) * 1_000 / (until - cut - FAILOVER_MILLIS);
    assert!(
        after * 2 > before,
        "{before} calls per second before, and {after} after"
    );
}

/// Cuts a host off and reconnects it, while callers without a deadline call.
fn cut_and_heal(cut_off: impl Fn(&Host), heal: impl Fn(&Host)) {
    let lan = Lan::new();
    let (machines, caller, settings) = three_servers(&lan);
    let names: Vec<_> = machines.iter().map(Machine::name).collect();
    let load = Load::start(&caller, &settings);
    load.wait_until_only(&names);
    pause(1_200);
    let cut = now();
    cut_off(&machines[0].host);
    pause(6_000);
    let healing = now();
    heal(&machines[0].host);
    let healed = now();
    wait_until("the host is called again", RECOVERY_SECONDS, || {
        load.count_ran(healed, names[0]) > 0
    });
    pause(1_000);
    let calls = load.stop();
    check_failover(&calls, cut, healing, names[0]);
    let late = failed_calls_after(&calls, healed);
    assert!(late.is_empty(), "{late:#?}");
}

#[test]
fn a_pulled_cable_loses_only_calls_in_flight() {
    if raddle_testnet::can_create_hosts() {
        cut_and_heal(|host| host.cable().pull(), |host| host.cable().plug());
    }
}

#[test]
fn survives_loss_of_outgoing_packets() {
    if raddle_testnet::can_create_hosts() {
        cut_and_heal(
            |host| host.cable().lose_from_host(100),
            |host| host.cable().lose_from_host(0),
        );
    }
}

#[test]
fn survives_loss_of_incoming_packets() {
    if raddle_testnet::can_create_hosts() {
        cut_and_heal(
            |host| host.cable().lose_to_host(100),
            |host| host.cable().lose_to_host(0),
        );
    }
}

#[test]
fn reports_lost_calls_of_a_host_without_power() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (machines, caller, settings) = three_servers(&lan);
    let names: Vec<_> = machines
        .iter()
        .map(|machine| machine.name().to_owned())
        .collect();
    // Short calls, and calls of a minute; all without a deadline.
    let load = Load::start(&caller, &settings);
    let long = Load::start(
        &caller,
        &Settings {
            callers: 6,
            linger: 60_000,
            ..settings.clone()
        },
    );
    load.wait_until_only(&names.iter().map(String::as_str).collect::<Vec<_>>());
    pause(1_500);
    let [first, ..] = machines;
    let cut = now();
    first.cut_power();
    wait_until("calls on the dead host are given up", 30, || {
        failed_calls(&long.calls()).len() == 2
    });
    pause(3_000);
    let (calls, given_up_calls) = (load.stop(), long.stop());
    check_failover(&calls, cut, now(), &names[0]);
    for call in failed_calls(&given_up_calls) {
        assert!(
            call.may_have_begun && call.ended < cut + FAILOVER_MILLIS,
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
fn deadlines_hold_during_partitions() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (machines, caller, settings) = three_servers(&lan);
    let names: Vec<_> = machines.iter().map(Machine::name).collect();
    let load = Load::start(
        &caller,
        &Settings {
            timeout: Some(500),
            ..settings
        },
    );
    load.wait_until_only(&names);
    machines[0].host.cable().pull();
    pause(3_000);
    // The caller itself is cut off: it can reach no host.
    caller.host.cable().pull();
    pause(3_000);
    caller.host.cable().plug();
    wait_until("calls run again", RECOVERY_SECONDS, || {
        load.count_ran(now() - 200, names[1]) > 0
    });
    let calls = load.stop();
    let slow: Vec<_> = calls
        .iter()
        .filter(|call| call.ended - call.began > 1_000)
        .collect();
    assert!(slow.is_empty(), "{slow:#?}");
}
