//! Warm tasks without faults.

use std::{collections::BTreeSet, time::Instant};

use crate::support::*;

#[test]
fn tasks_share_hosts_and_their_state() {
    let mut world = World::new(&["--hosts", "2", "--host-concurrency", "10"]);
    world.submit("count", 100, &["1"]);
    let tasks = world.wait();
    let log = world.log();
    assert_eq!(count(&tasks, "completed"), 100, "{tasks:?}\n{log}");
    let pids = pids(&tasks);
    let hosts: BTreeSet<u64> = world.hosts().into_iter().map(u64::from).collect();
    assert!(pids.is_subset(&hosts), "{pids:?} {hosts:?}");
    let most_used = |pid: &u64| {
        let of_host = tasks.iter().filter(|task| task["value"][0] == *pid);
        of_host
            .map(|task| task["value"][1].as_u64().unwrap())
            .max()
            .unwrap()
    };
    let used: u64 = pids.iter().map(most_used).sum();
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

#[test]
fn progress_log_and_chain_work_as_in_a_process() {
    let mut world = World::new(&["--hosts", "1"]);
    let tid = world.submit("talk", 1, &[]).remove(0);
    world.submit("relay", 1, &["3"]);
    eventually("the chain", || {
        (count(&world.wait(), "completed") == 5).then_some(())
    });
    let tasks = world.wait();
    assert!(
        tasks
            .iter()
            .any(|task| task["tid"] == tid.as_str() && task["value"] == 42),
        "{tasks:?}"
    );
    let output = world.app().args(["logs", &tid]).output().unwrap();
    assert_eq!(lines(&output), ["warning: a line of the log"]);
    world.stop();
}

#[test]
fn errors_and_unfit_arguments_are_told() {
    let mut world = World::new(&["--hosts", "1"]);
    let sorry = world.run("sorry", &["you"]);
    assert_eq!(sorry["state"], "failed");
    assert_eq!(sorry["exit"], "sorry, you");
    let unfit = world.run("nap", &["soon"])["exit"].to_string();
    assert!(unfit.contains("the arguments do not fit: 'ms'"), "{unfit}");
    let few = world.run("nap", &[])["exit"].to_string();
    assert!(few.contains("it takes 1 and was given 0"), "{few}");
    world.stop();
}

#[test]
fn plain_functions_run_on_threads_of_hosts() {
    let mut world = World::new(&["--hosts", "2", "--host-threads", "4"]);
    let hosts = world.wait_for_hosts(2);
    world.submit("plain", 16, &["100"]);
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 16, "{}", world.log());
    for task in tasks {
        assert!(hosts.contains(&(task["value"].as_u64().unwrap() as u32)));
    }
    world.stop();
}

#[test]
fn a_routine_can_ask_for_its_own_process() {
    let mut world = World::new(&["--hosts", "1"]);
    let hosts = world.wait_for_hosts(1);
    world.submit("fresh", 3, &[]);
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 3, "{tasks:?}\n{}", world.log());
    let pids = pids(&tasks);
    assert_eq!(pids.len(), 3);
    assert!(!pids.contains(&u64::from(hosts[0])));
    assert!(
        tasks.iter().all(|task| task["value"][1] == 0),
        "each has its own state"
    );
    world.stop();
}

#[test]
fn a_minimum_gives_every_task_its_own_process() {
    for flags in [&["--min-isolation", "process"][..], &["--hosts", "0"]] {
        let mut world = World::new(flags);
        world.submit("count", 2, &["1"]);
        let tasks = world.wait();
        let log = world.log();
        assert!(
            tasks.iter().all(|task| task["value"][1] == 1),
            "{tasks:?}\n{log}"
        );
        assert!(world.hosts().is_empty());
        world.stop();
    }
}

#[test]
fn a_one_shot_worker_runs_its_task_fresh() {
    let world = World::new(&["--once"]);
    world.submit("count", 1, &["1"]);
    let tasks = world.wait();
    assert_eq!(tasks[0]["value"][1], 1, "{tasks:?}\n{}", world.log());
    assert!(world.hosts().is_empty());
}

#[test]
fn the_title_of_a_host_names_its_worker() {
    let mut world = World::new(&["--hosts", "1"]);
    let hosts = world.wait_for_hosts(1);
    let title = command_line(parent(hosts[0]));
    assert!(
        title.starts_with("raddle-") && title.trim_end_matches([' ', '\0']).ends_with(":host"),
        "{title}"
    );
    world.stop();
}

#[test]
fn a_task_with_a_directory_of_its_own_gets_a_process() {
    let mut world = World::new(&["--hosts", "1"]);
    let hosts = world.wait_for_hosts(1);
    world.submit("count", 1, &["1", "--cwd=/"]);
    world.submit("count", 1, &["1"]);
    let pids = pids(&world.wait());
    assert_eq!(pids.len(), 2, "{}", world.log());
    assert!(pids.contains(&u64::from(hosts[0])));
    let output = world
        .app()
        .args(["submit", "count", "1", "1", "--cwd=/", "--shared"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("cwd"), "{said}");
    world.stop();
}
