//! Pools whose workers are on several hosts.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use raddle_testnet::Lan;
use serde_json::{Value, json};

use crate::{SOON, cuts::SILENCE, hostile::credentials, program::Program, until};

/// The hosts that answer so many calls.
fn hosts(pool: &mut Program, calls: usize) -> BTreeSet<String> {
    let name = |answer: &Value| {
        answer[0]
            .as_str()
            .unwrap_or_else(|| panic!("{answer}"))
            .to_owned()
    };
    (0..calls).map(|_| name(&pool.ask("call"))).collect()
}

#[test]
fn a_pool_calls_the_workers_of_other_hosts() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let (lan, directory) = (Lan::new(), tempfile::tempdir().unwrap());
    let (here, there) = (lan.host(), lan.host());
    for credentials in [Value::Null, credentials(directory.path())] {
        let serving =
            json!({"size": 2, "bind": "0.0.0.0:0", "publish": true, "credentials": credentials});
        let mut serving = Program::pool(&there, "math", serving);
        let mut pool = Program::pool(
            &here,
            "math",
            json!({"discover": true, "credentials": credentials}),
        );
        assert_eq!(pool.workers().len(), 2, "they are known from the start");
        let address = format!("{}:", there.ipv4());
        assert!(
            pool.workers()
                .iter()
                .all(|worker| worker.address.starts_with(&address))
        );
        assert_eq!(hosts(&mut pool, 4), [there.name().to_owned()].into());
        assert_eq!(
            hosts(&mut serving, 4),
            [there.name().to_owned()].into(),
            "where it serves everywhere, it is called here"
        );
        // What they call are those of the same pool.
        assert_eq!(
            pool.ask("call others 3"),
            json!([there.name(), there.name(), there.name()])
        );
        serving.tell("stop");
        until("they are missed", SOON, || pool.workers().is_empty());
        let answer = pool.ask("call");
        assert!(
            answer["error"]
                .as_str()
                .unwrap()
                .starts_with("no workers available"),
            "{answer}"
        );
    }
}

#[test]
fn hybrid_pools_share_their_workers() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, there) = (lan.host(), lan.host());
    let hybrid = json!({"size": 1, "bind": "0.0.0.0:0", "publish": true, "discover": true});
    let mut one = Program::pool(&here, "math", hybrid.clone());
    let mut other = Program::pool(&there, "math", hybrid);
    let names: BTreeSet<_> = [here.name().to_owned(), there.name().to_owned()].into();
    for pool in [&mut one, &mut other] {
        until("both are known", SOON, || pool.workers().len() == 2);
        assert_eq!(hosts(pool, 4), names);
    }
    // Its own are called here, and those of others there.
    let addresses: BTreeSet<_> = one
        .workers()
        .iter()
        .map(|worker| worker.address.split(':').next().unwrap().to_owned())
        .collect();
    assert_eq!(
        addresses,
        ["0.0.0.0".to_owned(), there.ipv4().to_string()].into()
    );
    // A worker calls those of the pool it was called in, from wherever it is.
    for _ in 0..2 {
        let called: BTreeSet<String> = serde_json::from_value(one.ask("call others 4")).unwrap();
        assert_eq!(called, names);
    }
    // Who goes takes nobody along.
    other.tell("stop");
    until("it is missed", SOON, || one.workers().len() == 1);
    assert_eq!(hosts(&mut one, 4), [here.name().to_owned()].into());
}

#[test]
fn a_host_that_dies_without_a_word_is_forgotten_when_it_cannot_be_called() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, there, dying, elsewhere) = (lan.host(), lan.host(), lan.host(), lan.host());
    let serving = json!({"size": 1, "bind": "0.0.0.0:0", "publish": true});
    let _serving = Program::pool(&there, "math", serving.clone());
    let doomed = Program::pool(&dying, "math", serving);
    let mut pool = Program::pool(&here, "math", json!({"discover": true}));
    // It calls nobody, and so learns of it by silence alone.
    let mut idle = Program::pool(&elsewhere, "math", json!({"discover": true}));
    for pool in [&mut pool, &mut idle] {
        until("both are known", SOON, || pool.workers().len() == 2);
    }
    assert_eq!(hosts(&mut pool, 4).len(), 2);
    dying.cut_power();
    // A call that is under way just then is lost; those that have not begun are not.
    until("it is missed", 2 * SILENCE, || {
        pool.ask("call");
        pool.workers().len() == 1
    });
    let missed = Instant::now();
    assert_eq!(idle.workers().len(), 2, "nobody else has missed it yet");
    assert_eq!(hosts(&mut pool, 4), [there.name().to_owned()].into());
    until("others miss it, too", 2 * SILENCE, || {
        idle.workers().len() == 1
    });
    // What is silent is given up by both within half a second; whoever could not reach it knew before.
    assert!(
        missed.elapsed() > Duration::from_secs(2),
        "{:?} sooner than by its silence",
        missed.elapsed()
    );
    drop(doomed);
}
