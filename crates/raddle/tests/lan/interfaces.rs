//! Nothing is said or heard at interfaces that were not chosen.

use raddle_testnet::{Host, Lan};
use serde_json::json;

use crate::{QUIET, SOON, at, program::Program, seen_at, until, word};

/// Where a host listens to mDNS, by the kernel: the names of its interfaces, for either kind of address.
fn listens(host: &Host) -> [Vec<String>; 2] {
    let read = |path: &str| {
        String::from_utf8(host.command("cat").arg(path).output().unwrap().stdout).unwrap()
    };
    let (mut interface, mut old) = (String::new(), Vec::new());
    for line in read("/proc/net/igmp").lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            // The address as the kernel stores it.
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
fn nothing_is_said_or_heard_at_interfaces_that_were_not_chosen() {
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
    until(
        "it listens where it was told to, and nowhere else",
        SOON,
        || listens(&both) == [["eth0"], ["eth0"]],
    );
    let worker = at("0.0.0.0:7000");
    let seen = seen_at(&worker, format!("{}:7000", both.ipv4()));
    chosen.tell(&word("added", &worker));
    at_near.expect("added", &seen, SOON);
    chosen.expect("added", &seen, SOON);
    assert_eq!(at_far.hears(QUIET), None);
    let mut stranger = Program::publisher(&far, "math");
    stranger.tell(&word("added", &at("0.0.0.0:7001")));
    assert!(at_far.hears(SOON).is_some());
    assert_eq!(chosen.hears(QUIET), None);
    // At an address that it does not speak at, nobody would find a worker.
    let far_address = both.cables()[1].ipv4();
    let error = chosen.refused(&word("added", &at(&format!("{far_address}:7000"))));
    assert!(
        error.contains("no interface that was chosen has that address"),
        "{error}"
    );
    drop((chosen, stranger));
    drop((at_near, at_far));

    // By an address, it is that address alone; and by nothing, it is all of them, each with its own.
    let (mut at_near, mut at_far) = (Program::watch(&near, "math"), Program::watch(&far, "math"));
    let mut by_address = Program::start(
        &both,
        json!({"namespace": "math", "interfaces": [far_address]}),
    );
    let worker = at("0.0.0.0:7002");
    by_address.tell(&word("added", &worker));
    until("it listens where that is", SOON, || {
        listens(&both) == [vec!["eth1".to_owned()], vec![]]
    });
    at_far.expect(
        "added",
        &seen_at(&worker, format!("{far_address}:7002")),
        SOON,
    );
    assert_eq!(at_near.hears(QUIET), None);
    drop(by_address);
    let mut everywhere = Program::publisher(&both, "math");
    let worker = at("0.0.0.0:7003");
    everywhere.tell(&word("added", &worker));
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
    assert_eq!(listens(&both), [["eth0", "eth1"], ["eth0", "eth1"]]);
}

#[test]
fn the_loopback_is_used_if_it_is_named_and_an_interface_that_is_not_there_is_an_error() {
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
    let worker = at("127.0.0.1:7000");
    one.tell(&word("added", &worker));
    other.expect("added", &worker, SOON);
    assert_eq!(watcher.hears(QUIET), None);

    let mut mistaken = Program::start(&here, json!({"namespace": "math", "interfaces": ["eht0"]}));
    let error = mistaken.refused(&word("added", &at("0.0.0.0:7000")));
    assert!(
        error.contains("there is no interface 'eht0', by name or by address; there are lo, eth0"),
        "{error}"
    );
}
