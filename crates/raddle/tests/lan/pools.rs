//! Pools with workers on several hosts.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use raddle_testnet::Lan;
use serde_json::{Value, json};

use crate::{SOON, hostile::credentials, partitions::SILENCE, program::Program, wait_until};

/// The hosts that run so many calls.
fn hosts(pool: &mut Program, calls: usize) -> BTreeSet<String> {
    let name = |answer: &Value| {
        answer[0]
            .as_str()
            .unwrap_or_else(|| panic!("{answer}"))
            .to_owned()
    };
    (0..calls).map(|_| name(&pool.request("call"))).collect()
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
        wait_until("the workers are known", SOON, || pool.workers().len() == 2);
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
            "a wildcard address is called locally"
        );
        // Nested calls stay in the same pool.
        assert_eq!(
            pool.request("call others 3"),
            json!([there.name(), there.name(), there.name()])
        );
        serving.run("stop");
        wait_until("the workers are dropped", SOON, || {
            pool.workers().is_empty()
        });
        let answer = pool.request("call");
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
        wait_until("both workers are known", SOON, || pool.workers().len() == 2);
        assert_eq!(hosts(pool, 4), names);
    }
    // Its own workers have a local address, and the others a remote one.
    let addresses: BTreeSet<_> = one
        .workers()
        .iter()
        .map(|worker| worker.address.split(':').next().unwrap().to_owned())
        .collect();
    assert_eq!(
        addresses,
        ["0.0.0.0".to_owned(), there.ipv4().to_string()].into()
    );
    // Nested calls use all workers of the pool, from any host.
    for _ in 0..2 {
        let called: BTreeSet<String> =
            serde_json::from_value(one.request("call others 4")).unwrap();
        assert_eq!(called, names);
    }
    // A pool that stops does not affect the other.
    other.run("stop");
    wait_until("the worker is dropped", SOON, || one.workers().len() == 1);
    assert_eq!(hosts(&mut one, 4), [here.name().to_owned()].into());
}

#[test]
fn forgets_a_dead_host_when_a_call_fails() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, there, dying, elsewhere) = (lan.host(), lan.host(), lan.host(), lan.host());
    let serving = json!({"size": 1, "bind": "0.0.0.0:0", "publish": true});
    let _serving = Program::pool(&there, "math", serving.clone());
    let doomed = Program::pool(&dying, "math", serving);
    let mut pool = Program::pool(&here, "math", json!({"discover": true}));
    // It makes no calls, so it notices the death by silence only.
    let mut idle = Program::pool(&elsewhere, "math", json!({"discover": true}));
    for pool in [&mut pool, &mut idle] {
        wait_until("both workers are known", SOON, || pool.workers().len() == 2);
    }
    assert_eq!(hosts(&mut pool, 4).len(), 2);
    dying.cut_power();
    // A call in flight is lost; calls that have not begun are not.
    wait_until("the worker is dropped", 2 * SILENCE, || {
        pool.request("call");
        pool.workers().len() == 1
    });
    let missed = Instant::now();
    assert_eq!(idle.workers().len(), 2, "the idle pool has not noticed yet");
    assert_eq!(hosts(&mut pool, 4), [there.name().to_owned()].into());
    wait_until("the idle pool drops it, too", 2 * SILENCE, || {
        idle.workers().len() == 1
    });
    // Silence is noticed by both within half a second; a failed call notices it earlier.
    assert!(
        missed.elapsed() > Duration::from_secs(2),
        "only {:?} sooner than by silence",
        missed.elapsed()
    );
    drop(doomed);
}
