//! Hosts that die: the cause is found, and its neighbours pay nothing.

use std::{collections::BTreeSet, fs};

use serde_json::Value;

use crate::support::*;

fn by_routine<'a>(tasks: &'a [Value], name: &str) -> Vec<&'a Value> {
    tasks
        .iter()
        .filter(|task| task["routine"] == name)
        .collect()
}

fn poison(how: &str, exit: &str) {
    let mut world = World::new(&["--hosts", "2", "--host-concurrency", "50"]);
    world.wait_for_hosts(2);
    world.submit("nap", 100, &["200"]);
    world.submit("crash", 1, &[how]);
    world.submit("nap", 100, &["20"]);
    let tasks = world.wait();
    let poison = by_routine(&tasks, "crash")[0];
    assert_eq!(poison["state"], "failed", "{poison}\n{}", world.log());
    assert!(poison["exit"].as_str().unwrap().contains(exit), "{poison}");
    let naps = by_routine(&tasks, "nap");
    assert_eq!(naps.len(), 200);
    for nap in naps {
        assert_eq!(nap["state"], "completed", "{nap}\n{}", world.log());
        let charged = (&nap["attempt"], &nap["failures"], &nap["losses"]);
        assert_eq!(charged, (&1.into(), &0.into(), &0.into()), "{nap}");
    }
    world.stop();
}

#[test]
fn finds_an_abort_among_two_hundred() {
    poison("abort", "signal 6");
}

#[test]
fn finds_an_exit_among_two_hundred() {
    poison("exit", "without an answer");
}

#[test]
fn a_panic_fails_its_task_and_leaves_the_host() {
    let mut world = World::new(&["--hosts", "1"]);
    let before = world.wait_for_hosts(1);
    world.submit("nap", 20, &["300"]);
    world.submit("crash", 1, &["panic"]);
    let tasks = world.wait();
    let exit = by_routine(&tasks, "crash")[0]["exit"].to_string();
    assert!(
        exit.contains("panicked at") && exit.contains("bang"),
        "{exit}"
    );
    assert_eq!(count(&tasks, "completed"), 20, "{}", world.log());
    assert_eq!(world.hosts(), before, "{}", world.log());
    world.stop();
}

#[test]
fn tasks_of_a_killed_host_run_again_at_once() {
    let mut world = World::new(&["--hosts", "2", "--host-concurrency", "100"]);
    let hosts = world.wait_for_hosts(2);
    world.submit("nap", 100, &["1000"]);
    world.wait_until_running(100);
    signal(hosts[0], "KILL");
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 100, "{}", world.log());
    assert!(tasks.iter().all(|task| task["attempt"] == 1), "{tasks:?}");
    world.wait_for_hosts(2);
    world.stop();
}

#[test]
fn a_killed_worker_leaves_no_host_and_another_takes_over() {
    let mut world = World::new(&["--hosts", "2"]);
    let hosts = world.wait_for_hosts(2);
    world.submit("nap", 50, &["1500"]);
    world.wait_until_running(50);
    world.kill_worker();
    eventually("no host outlives its worker", || {
        hosts.iter().all(|host| !is_alive(*host)).then_some(())
    });
    world.start(&["--hosts", "2"], &[]);
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 50, "{}", world.log());
    world.stop();
}

#[test]
fn a_task_past_its_timeout_is_dropped_and_its_host_stays() {
    let mut world = World::new(&["--hosts", "1"]);
    let before = world.wait_for_hosts(1);
    world.submit("nap", 10, &["800"]);
    world.submit("nap", 1, &["600000", "--timeout=300"]);
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 10, "{}", world.log());
    assert_eq!(count(&tasks, "timeout"), 1, "{}", world.log());
    assert_eq!(world.hosts(), before);
    world.stop();
}

#[test]
fn a_thread_that_does_not_end_costs_its_host_and_nothing_else() {
    let mut world = World::new(&["--hosts", "1", "--host-threads", "2"]);
    world.submit("nap", 20, &["8000"]);
    world.submit("stubborn", 1, &["--timeout=300"]);
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 20, "{}", world.log());
    assert_eq!(count(&tasks, "timeout"), 1, "{}", world.log());
    assert!(tasks.iter().all(|task| task["attempt"] == 1), "{tasks:?}");
    world.stop();
}

#[test]
fn a_cancelled_task_may_end_in_good_order() {
    let mut world = World::new(&["--hosts", "1"]);
    let marker = world.path("cancelled");
    let tid = world
        .submit("polite", 1, &[marker.to_str().unwrap()])
        .remove(0);
    world.wait_until_running(1);
    world.control(&tid, "STOP");
    let tasks = world.wait();
    assert_eq!(count(&tasks, "cancelled"), 1, "{tasks:?}\n{}", world.log());
    assert_eq!(fs::read_to_string(marker).unwrap(), "cancelled");
    world.stop();
}

#[test]
fn a_pause_is_refused_with_a_reason() {
    let mut world = World::new(&["--hosts", "1"]);
    let tid = world.submit("nap", 1, &["3000"]).remove(0);
    world.wait_until_running(1);
    world.control(&tid, "PAUSE");
    eventually("the refusal is reported", || {
        let replies = world.app().args(["replies", &tid]).output().unwrap();
        let reason = "shares its process with others";
        lines(&replies)
            .iter()
            .any(|line| line.contains(reason))
            .then_some(())
    });
    assert_eq!(count(&world.wait(), "completed"), 1);
    world.stop();
}

#[test]
fn a_startup_that_fails_costs_no_task() {
    let mut world = World::with_env(&["--hosts", "1"], &[("WARM_STARTUP", "fail")]);
    world.submit("noop", 3, &[]);
    eventually("the reason is in the log", || {
        let reason = "the start-up function 'open' failed: the database is away";
        world.log().contains(reason).then_some(())
    });
    world.stop();
    world.start(&["--hosts", "1"], &[]);
    let tasks = world.wait();
    assert!(tasks.iter().all(|task| task["failures"] == 0), "{tasks:?}");
    assert_eq!(count(&tasks, "completed"), 3, "{}", world.log());
    world.stop();
}

#[test]
fn gives_up_a_startup_that_hangs() {
    let world = World::with_env(
        &["--hosts", "1", "--host-startup-timeout", "1s"],
        &[("WARM_STARTUP", "hang")],
    );
    eventually("the reason is in the log", || {
        world
            .log()
            .contains("it was not ready within 1s")
            .then_some(())
    });
}

#[test]
fn replaces_hosts_after_so_many_tasks() {
    let flags = ["--hosts", "2", "--host-concurrency", "4"];
    let mut world = World::new(&[&flags[..], &["--host-max-tasks", "20"]].concat());
    world.submit("nap", 400, &["40"]);
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 400, "{}", world.log());
    let pids: BTreeSet<String> = tasks.iter().map(|task| task["value"].to_string()).collect();
    assert!(pids.len() >= 4, "only {} hosts ran them", pids.len());
    world.stop();
}

#[test]
fn replaces_a_host_that_leaks() {
    let mut world = World::new(&["--hosts", "1", "--host-max-rss", "80"]);
    let before = world.wait_for_hosts(1);
    world.submit("leak", 1, &["120"]);
    world.submit("nap", 5, &["3000"]);
    assert_eq!(count(&world.wait(), "completed"), 6);
    eventually("another host", || {
        let hosts = world.hosts();
        (hosts.len() == 1 && hosts != before).then_some(())
    });
    world.stop();
}

#[test]
fn runs_the_shutdown_function_when_the_worker_stops() {
    let log = tempfile::tempdir().unwrap();
    let path = log.path().join("used");
    let env = [("WARM_SHUTDOWN_LOG", path.to_str().unwrap())];
    let mut world = World::with_env(&["--hosts", "1"], &env);
    world.submit("count", 7, &["1"]);
    assert_eq!(count(&world.wait(), "completed"), 7);
    world.stop();
    assert_eq!(fs::read_to_string(&path).unwrap(), "7");
}

#[test]
fn one_poison_among_ten_thousand_is_the_only_dead_letter() {
    let mut world = World::new(&["--hosts", "2", "--host-concurrency", "100"]);
    world.wait_for_hosts(2);
    world.submit("nap", 4_999, &["1"]);
    world.submit("crash", 1, &["abort"]);
    world.submit("nap", 5_000, &["1"]);
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 9_999, "{}", world.log());
    let charged = |task: &&Value| task["failures"] != 0 || task["losses"] != 0;
    let charged: Vec<&Value> = tasks.iter().filter(charged).collect();
    assert_eq!(charged.len(), 1, "{charged:?}");
    assert_eq!(charged[0]["routine"], "crash");
    assert!(charged[0]["exit"].as_str().unwrap().contains("signal 6"));
    assert!(charged[0]["dead"] == true, "{}", charged[0]);
    world.stop();
}

#[test]
fn a_killed_runner_of_a_host_costs_no_task() {
    let mut world = World::new(&["--hosts", "1"]);
    let hosts = world.wait_for_hosts(1);
    // Long enough to be seen at once on a busy machine.
    world.submit("nap", 20, &["8000"]);
    world.wait_until_running(20);
    signal(parent(hosts[0]), "KILL");
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 20, "{}", world.log());
    assert!(tasks.iter().all(|task| task["attempt"] == 1), "{tasks:?}");
    assert!(!is_alive(hosts[0]), "the host has ended with its runner");
    world.stop();
}

#[test]
fn a_host_above_its_memory_limit_is_killed() {
    let mut world = World::new(&["--hosts", "1", "--host-memory", "200"]);
    let before = world.wait_for_hosts(1);
    world.submit("nap", 10, &["1500"]);
    world.submit("leak", 1, &["400"]);
    let tasks = world.wait();
    let naps = by_routine(&tasks, "nap");
    assert!(
        naps.iter().all(|nap| nap["state"] == "completed"),
        "{naps:?}"
    );
    eventually("another host", || {
        let hosts = world.hosts();
        (hosts.len() == 1 && hosts != before).then_some(())
    });
    world.stop();
}

#[test]
fn a_failing_startup_is_seen_in_the_registry() {
    let mut world = World::with_env(&["--hosts", "1"], &[("WARM_STARTUP", "fail")]);
    eventually("the worker backs off", || {
        let output = world.app().arg("statuses").output().unwrap();
        (lines(&output) == ["backing_off"]).then_some(())
    });
    world.stop();
}

/// Neither can end the host: the worker that takes over does.
#[test]
fn a_host_whose_worker_and_runner_are_suspended_is_ended_by_the_next_worker() {
    let mut world = World::new(&["--hosts", "1"]);
    let host = world.wait_for_hosts(1)[0];
    world.submit("nap", 1, &["20000"]);
    world.wait_until_running(1);
    let (worker, runner) = (world.worker_pid(), parent(host));
    signal(runner, "STOP");
    signal(worker, "STOP");
    let mut next = World::joining(&world, &["--hosts", "1"]);
    eventually("the host is gone", || (!is_alive(host)).then_some(()));
    signal(runner, "KILL");
    world.kill_worker();
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 1, "{tasks:?}\n{}", next.log());
    next.stop();
}
