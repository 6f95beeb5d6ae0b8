//! Hosts that do everything wrong: each fails its own task, or its own start, and nothing else.

use std::fs;

use serde_json::Value;

use crate::support::*;

const LIBRARY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python-host");
const HOSTILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/warm/hostile.py");

fn world(flags: &[&str]) -> World {
    world_of("good", flags)
}

fn world_of(mode: &str, flags: &[&str]) -> World {
    let host = ["--host", "python3", HOSTILE, mode];
    World::with_env(&[flags, &host].concat(), &[("HOST_LIBRARY", LIBRARY)])
}

fn run(routine: &str, arguments: &[&str]) -> (Value, World) {
    let mut world = world(&[]);
    let task = world.run(routine, arguments);
    let good = world.run("good", &[]);
    assert_eq!(
        good["state"],
        "completed",
        "the worker goes on: {good}\n{}",
        world.log()
    );
    world.stop();
    (task, world)
}

#[track_caller]
fn fails_with(task: &Value, reason: &str, world: &World) {
    assert_eq!(task["state"], "failed", "{task}\n{}", world.log());
    let exit = task["exit"].as_str().unwrap();
    assert!(exit.contains(reason), "{task}\n{}", world.log());
}

fn refused(mode: &str, reason: &str) {
    let world = World::without_worker();
    let output = world
        .app()
        .args(["worker", "start", "--no-detach"])
        .args(["--host-startup-timeout", "2s"])
        .args(["--host", "python3", HOSTILE, mode])
        .env("HOST_LIBRARY", LIBRARY)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(reason), "{said}");
}

#[test]
fn refuses_a_host_without_hello() {
    refused("mute", "did not say hello within 2s");
}

#[test]
fn refuses_a_host_of_another_version() {
    refused(
        "version",
        "speaks version 2 of the host protocol, and this worker version 1",
    );
}

#[test]
fn refuses_a_host_that_sends_garbage() {
    refused("garbage", "exceeds the maximum");
}

#[test]
fn refuses_a_host_that_announces_a_gibibyte() {
    refused("gibibyte", "1073741824 bytes exceeds the maximum");
}

#[test]
fn refuses_a_host_that_does_not_start_and_shows_its_output() {
    refused("fail", "no database here");
}

/// The test program has a routine of this name as well.
#[test]
fn refuses_a_host_with_a_routine_of_the_program() {
    let directory = tempfile::tempdir().unwrap();
    let host = directory.path().join("host.py");
    let text = "import os, sys\nsys.path.insert(0, os.environ['HOST_LIBRARY'])\n\
                import raddle_host as raddle\n\n\
                @raddle.routine\nasync def nap(ms):\n    pass\n\nraddle.main()\n";
    fs::write(&host, text).unwrap();
    let world = World::without_worker();
    let output = world
        .app()
        .args(["worker", "start", "--no-detach", "--host", "python3"])
        .arg(host)
        .env("HOST_LIBRARY", LIBRARY)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("both have a routine 'nap'"), "{said}");
}

#[test]
fn an_answer_for_an_unknown_run_ends_the_host() {
    let (task, world) = run("stranger", &[]);
    fails_with(&task, "answered for run 123456", &world);
}

#[test]
fn a_second_answer_ends_the_host_and_changes_nothing() {
    let (task, world) = run("twice", &[]);
    assert_eq!(task["state"], "completed", "{task}");
    assert_eq!(task["value"], 1, "{task}");
    let log = world.log();
    assert!(log.contains("answered for run"), "{log}");
}

#[test]
fn an_unknown_message_ends_the_host() {
    let (task, world) = run("nonsense", &[]);
    fails_with(&task, "not a message of the host protocol", &world);
}

#[test]
fn a_frame_of_a_gibibyte_ends_the_host() {
    let (task, world) = run("huge", &[]);
    fails_with(&task, "exceeds the maximum", &world);
}

#[test]
fn a_result_that_is_no_json_fails_its_task() {
    let (task, world) = run("unreadable", &[]);
    fails_with(&task, "its result is not JSON", &world);
}

#[test]
fn takes_in_a_flood_of_messages() {
    let (task, world) = run("flood", &["20000"]);
    assert_eq!(task["state"], "completed", "{task}\n{}", world.log());
}

#[test]
fn an_exit_during_a_task_is_charged_once() {
    let (task, world) = run("leave", &[]);
    fails_with(&task, "exited with code 0 before it answered", &world);
    assert_eq!(task["failures"], 1, "{task}");
}

#[test]
fn children_of_a_host_end_with_it() {
    let (task, _) = run("children", &[]);
    let pid = task["value"].as_u64().unwrap() as u32;
    eventually("the child is gone", || (!is_alive(pid)).then_some(()));
}

#[test]
fn a_task_that_ignores_its_cancellation_costs_only_itself() {
    let mut world = world(&["--hosts", "1"]);
    world.submit("good", 20, &["2"]);
    world.submit("deaf", 1, &["--timeout=300"]);
    let tasks = world.wait();
    let log = world.log();
    assert_eq!(count(&tasks, "timeout"), 1, "{tasks:?}\n{log}");
    assert_eq!(count(&tasks, "completed"), 20, "{tasks:?}\n{log}");
    assert!(tasks.iter().all(|task| task["attempt"] == 1), "{tasks:?}");
    world.stop();
}

#[test]
fn a_blocked_loop_is_reported_and_only_its_host_replaced() {
    let mut world = world(&["--hosts", "2", "--host-blocked-timeout", "3s"]);
    world.submit("jam", 1, &["6"]);
    world.submit("good", 30, &["0.5"]);
    let tasks = world.wait();
    let log = world.log();
    assert_eq!(count(&tasks, "completed"), 31, "{tasks:?}\n{log}");
    assert!(log.contains("the event loop of a host is blocked"), "{log}");
    assert!(log.contains("its event loop was blocked for 3s"), "{log}");
    let shows_its_stack = log.contains("in jam");
    assert!(
        shows_its_stack,
        "the host prints its stack on SIGUSR2: {log}"
    );
    world.stop();
}

#[test]
fn replaces_a_host_that_exits_while_it_is_idle() {
    let world = world_of("brief", &["--hosts", "1"]);
    for _ in 0..3 {
        let task = world.run("good", &[]);
        assert_eq!(task["state"], "completed", "{task}\n{}", world.log());
    }
    eventually("the end of an idle host is logged", || {
        world.log().contains("did not start").then_some(())
    });
}

#[test]
fn an_error_keeps_its_type() {
    let (task, world) = run("fail", &[]);
    fails_with(&task, "ValueError: not like this", &world);
}

#[test]
fn arguments_that_do_not_fit_fail_their_task() {
    let (task, world) = run("good", &["1", "2", "3"]);
    fails_with(&task, "TypeError", &world);
}

#[test]
fn a_handler_file_names_a_host() {
    let mut world = World::without_worker();
    let directory = world.path("handlers");
    fs::create_dir(&directory).unwrap();
    let file = "name = 'count-words'\nkind = 'host'\ncommand = ['python3', './words.py']\n";
    fs::write(directory.join("words.handler.toml"), file).unwrap();
    let text = "import os, sys\nsys.path.insert(0, os.environ['HOST_LIBRARY'])\n\
                import raddle_host as raddle\n\n\
                async def count(job):\n    \
                return [os.getpid(), os.getcwd(), len(job['spec']['args'][0].split())]\n\n\
                raddle.ROUTINES['count-words'] = count\nraddle.main()\n";
    fs::write(directory.join("words.py"), text).unwrap();
    let flags = ["--hosts", "1", "--handlers", directory.to_str().unwrap()];
    world.start(&flags, &[("HOST_LIBRARY", LIBRARY)]);
    world.submit("handler:count-words", 10, &["one two three"]);
    world.submit("handler:any", 1, &["one two"]);
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 11, "{tasks:?}\n{}", world.log());
    assert_eq!(pids(&tasks).len(), 1, "{tasks:?}");
    assert!(
        tasks
            .iter()
            .all(|task| task["value"][1] == directory.to_str().unwrap())
    );
    assert!(tasks.iter().any(|task| task["value"][2] == 2), "{tasks:?}");
    world.stop();
}

#[test]
fn a_minimum_gives_every_task_its_own_host() {
    let mut world = world(&["--hosts", "2", "--min-isolation", "process"]);
    world.submit("good", 5, &["0.05"]);
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 5, "{tasks:?}\n{}", world.log());
    let mut pids: Vec<String> = tasks.iter().map(|task| task["value"].to_string()).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 5);
    world.stop();
}

#[test]
fn the_example_host_keeps_its_state() {
    let shop = format!("{LIBRARY}/shop.py");
    let mut world = World::new(&["--hosts", "1", "--host", "python3", &shop]);
    world.submit("order", 50, &["tea"]);
    world.submit("resize", 4, &["3", "4"]);
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 54, "{tasks:?}\n{}", world.log());
    let orders = tasks
        .iter()
        .filter_map(|task| task["value"]["orders"].as_u64())
        .max();
    assert_eq!(orders, Some(50));
    assert!(tasks.iter().any(|task| task["value"] == 12));
    let lines = fs::read_to_string(format!("{LIBRARY}/raddle_host.py")).unwrap();
    let lines = lines.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines <= 65, "the example is {lines} lines");
    world.stop();
}

#[test]
fn a_suspended_host_is_replaced_and_its_tasks_run_again() {
    // One host, so that it has the tasks: of two, one may not be ready yet.
    let mut world = world(&["--hosts", "1", "--host-blocked-timeout", "3s"]);
    // Long enough to be seen at once on a busy machine.
    world.submit("good", 4, &["8"]);
    world.wait_until_running(4);
    let hosts = world.hosts_of("hostile.py");
    signal(hosts[0], "STOP");
    let tasks = world.wait();
    let log = world.log();
    assert_eq!(count(&tasks, "completed"), 4, "{tasks:?}\n{log}");
    assert!(log.contains("its event loop was blocked for 3s"), "{log}");
    assert!(tasks.iter().all(|task| task["attempt"] == 1), "{tasks:?}");
    world.stop();
}

#[test]
fn output_of_a_host_goes_to_the_task_only_if_it_runs_one_at_a_time() {
    for (concurrency, in_task) in [("1", true), ("2", false)] {
        let flags = [
            "--verbose",
            "--hosts",
            "1",
            "--host-concurrency",
            concurrency,
        ];
        let mut world = world(&flags);
        let tid = world.submit("speak", 1, &["hello there"]).remove(0);
        assert_eq!(count(&world.wait(), "completed"), 1, "{}", world.log());
        let output = world.app().args(["logs", &tid]).output().unwrap();
        let is_in_task = lines(&output).contains(&"hello there".to_owned());
        assert_eq!(is_in_task, in_task, "{}", world.log());
        assert_eq!(world.log().contains("hello there"), !in_task);
        world.stop();
    }
}

#[test]
fn a_crash_is_charged_with_its_signal_and_explained() {
    let mut world = world(&["--hosts", "1"]);
    world.submit("good", 5, &["1"]);
    let tid = world.submit("segfault", 1, &[]).remove(0);
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 5, "{tasks:?}\n{}", world.log());
    let crash = tasks.iter().find(|task| task["tid"] == tid.as_str());
    fails_with(crash.unwrap(), "signal 11", &world);
    let output = world.app().args(["logs", &tid]).output().unwrap();
    let log = lines(&output).join("\n");
    for part in ["it runs again alone", "it runs again in a fresh process"] {
        assert!(log.contains(part), "{log}");
    }
    world.stop();
}

#[test]
fn a_routine_that_no_host_has_is_explained() {
    let mut world = world(&["--hosts", "1"]);
    let good = world.run("good", &[]);
    assert_eq!(good["state"], "completed", "{}", world.log());
    let tid = world.submit("missing", 1, &[]).remove(0);
    let output = world.app().args(["explain", &tid]).output().unwrap();
    let reason = lines(&output).join("\n");
    assert!(reason.contains("missing"), "{reason}");
    world.stop();
}

#[test]
fn a_host_that_something_else_kills_at_first_is_started_again() {
    let mut world = world_of("killed-once", &["--hosts", "1"]);
    let good = world.run("good", &[]);
    assert_eq!(good["state"], "completed", "{good}\n{}", world.log());
    assert!(world.path("killed").exists());
    world.stop();
}
