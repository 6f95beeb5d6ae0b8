//! What works when all goes well.

use std::{collections::BTreeSet, time::Instant};

use crate::support::*;

#[test]
fn tasks_share_hosts_and_their_state() {
    let mut world = World::new(&["--hosts", "2", "--host-concurrency", "10"]);
    world.submit("count", 100, &["1"]);
    let tasks = world.wait();
    assert_eq!(
        count(&tasks, "completed"),
        100,
        "{tasks:?}\n{}",
        world.log()
    );
    let pids: BTreeSet<u64> = tasks
        .iter()
        .map(|task| task["value"][0].as_u64().unwrap())
        .collect();
    let hosts: BTreeSet<u64> = world.hosts().into_iter().map(u64::from).collect();
    assert!(
        pids.len() <= 2 && pids.is_subset(&hosts),
        "{pids:?} {hosts:?}"
    );
    let used: u64 = pids
        .iter()
        .map(|pid| {
            let of_host = tasks.iter().filter(|task| task["value"][0] == *pid);
            of_host
                .map(|task| task["value"][1].as_u64().unwrap())
                .max()
                .unwrap()
        })
        .sum();
    assert_eq!(used, 100, "each counted in the state of its host");
    world.stop();
}

#[test]
fn one_host_runs_a_thousand_naps_at_once() {
    let world = World::new(&["--hosts", "1", "--host-concurrency", "1000"]);
    world.wait_for_hosts(1);
    assert_eq!(world.run("nap", &["1"])["state"], "completed");
    world.submit("nap", 1000, &["1000"]);
    let began = Instant::now();
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 1001, "{}", world.log());
    println!("1,000 naps of a second took {:?}", began.elapsed());
    let pids: BTreeSet<u64> = tasks
        .iter()
        .map(|task| task["value"].as_u64().unwrap())
        .collect();
    assert_eq!(pids.len(), 1);
    assert!(
        began.elapsed().as_secs() < 60,
        "they ran one after the other"
    );
}
