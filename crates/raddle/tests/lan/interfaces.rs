//! LAN discovery uses the chosen interfaces only.

use raddle_testnet::{Host, Lan};
use serde_json::json;

use crate::{QUIET, SOON, command, metadata_at, program::Program, seen_at, wait_until};

/// The interfaces on which a host has joined the mDNS groups, for IPv4 and IPv6, from the kernel.
fn mdns_interfaces(host: &Host) -> [Vec<String>; 2] {
    let read = |path: &str| {
        String::from_utf8(host.command("cat").arg(path).output().unwrap().stdout).unwrap()
    };
    let (mut interface, mut old) = (String::new(), Vec::new());
    for line in read("/proc/net/igmp").lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            // 224.0.0.251 in the kernel's byte order.
            Some("FB0000E0") => old.push(interface.clone()),
            Some(index) if index.parse::<u32>().is_ok() => {
                interface = words.next().unwrap_or_default().to_owned()
            }
            _ => {}
        }
    }
    let new = read("/proc/net/igmp6");
    let new = new
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let new = new
        .filter(|words| words[2] == "ff0200000000000000000000000000fb")
        .map(|words| words[1].to_owned());
    [old, new.collect()]
}

#[test]
fn uses_chosen_interfaces_only() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let (lan, other) = (Lan::new(), Lan::new());
    let mut both = lan.host();
    both.join(&other);
    let (near, far) = (lan.host(), other.host());
    let (mut at_near, mut at_far) = (Program::watch(&near, "math"), Program::watch(&far, "math"));

    let settings = json!({"namespace": "math", "interfaces": ["eth0"], "watch": true});
    let mut chosen = Program::start(&both, settings);
    wait_until("it listens on the chosen interface only", SOON, || {
        mdns_interfaces(&both) == [["eth0"], ["eth0"]]
    });
    let worker = metadata_at("0.0.0.0:7000");
    let seen = seen_at(&worker, format!("{}:7000", both.ipv4()));
    chosen.run(&command("added", &worker));
    at_near.expect("added", &seen, SOON);
    chosen.expect("added", &seen, SOON);
    assert_eq!(at_far.next_event(QUIET), None);
    let mut stranger = Program::publisher(&far, "math");
    stranger.run(&command("added", &metadata_at("0.0.0.0:7001")));
    assert!(at_far.next_event(SOON).is_some());
    assert_eq!(chosen.next_event(QUIET), None);
    // A worker at an address outside of the chosen interfaces could not be found.
    let far_address = both.cables()[1].ipv4();
    let error = chosen.run_refused(&command(
        "added",
        &metadata_at(&format!("{far_address}:7000")),
    ));
    assert!(
        error.contains("no selected interface has that address"),
        "{error}"
    );
    drop((chosen, stranger));
    drop((at_near, at_far));

    // Chosen by address, only that address is used; without a choice all interfaces are, each with
    // its own address.
    let (mut at_near, mut at_far) = (Program::watch(&near, "math"), Program::watch(&far, "math"));
    let mut by_address = Program::start(
        &both,
        json!({"namespace": "math", "interfaces": [far_address]}),
    );
    let worker = metadata_at("0.0.0.0:7002");
    by_address.run(&command("added", &worker));
    wait_until("it listens on the interface of the address", SOON, || {
        mdns_interfaces(&both) == [vec!["eth1".to_owned()], vec![]]
    });
    at_far.expect(
        "added",
        &seen_at(&worker, format!("{far_address}:7002")),
        SOON,
    );
    assert_eq!(at_near.next_event(QUIET), None);
    drop(by_address);
    let mut everywhere = Program::publisher(&both, "math");
    let worker = metadata_at("0.0.0.0:7003");
    everywhere.run(&command("added", &worker));
    at_near.expect(
        "added",
        &seen_at(&worker, format!("{}:7003", both.ipv4())),
        SOON,
    );
    at_far.expect(
        "added",
        &seen_at(&worker, format!("{far_address}:7003")),
        SOON,
    );
    assert_eq!(mdns_interfaces(&both), [["eth0", "eth1"], ["eth0", "eth1"]]);
}

#[test]
fn uses_loopback_on_request_and_refuses_unknown_interfaces() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, there) = (lan.host(), lan.host());
    let mut watcher = Program::watch(&there, "math");
    let settings = json!({"namespace": "math", "interfaces": ["lo"], "watch": true});
    let (mut one, mut other) = (
        Program::start(&here, settings.clone()),
        Program::start(&here, settings),
    );
    let worker = metadata_at("127.0.0.1:7000");
    one.run(&command("added", &worker));
    other.expect("added", &worker, SOON);
    assert_eq!(watcher.next_event(QUIET), None);

    let mut mistaken = Program::start(&here, json!({"namespace": "math", "interfaces": ["eht0"]}));
    let error = mistaken.run_refused(&command("added", &metadata_at("0.0.0.0:7000")));
    assert!(
        error.contains("there is no interface with the name or address 'eht0': there are lo, eth0"),
        "{error}"
    );
}
