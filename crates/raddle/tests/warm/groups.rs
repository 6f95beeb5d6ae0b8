//! Groups whose processes keep state between tasks.

use std::{
    fs,
    process::{Child, Stdio},
};

use crate::support::*;

const SHOP: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../examples/python-host/shop.py"
);

#[test]
fn a_process_of_a_group_starts_its_state_once() {
    let world = World::without_worker();
    let started = world.path("started");
    let file = format!(
        "[process.counting]\nhosts = 1\nconcurrency = 4\n\
         [[process.counting.worker]]\nslug = 'count'\nroutine = 'count'\n\
         [process.shop]\nhost = ['python3', '{SHOP}']\n\
         [[process.shop.worker]]\nslug = 'order'\nroutine = 'order'\n"
    );
    fs::write(world.path("raddle.toml"), file).unwrap();
    let log = fs::File::create(world.path("worker.log")).unwrap();
    let mut manager = world
        .app()
        .args(["up", "-f", "raddle.toml"])
        .env("WARM_STARTUP_LOG", &started)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    world.submit("count", 30, &["1", "--queue=count"]);
    world.submit("order", 20, &["tea", "--queue=order"]);
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 50, "{tasks:?}\n{}", world.log());
    let most = tasks
        .iter()
        .filter_map(|task| task["value"][1].as_u64())
        .max();
    assert_eq!(most, Some(30), "one state counted them all");
    let orders = tasks
        .iter()
        .filter_map(|task| task["value"]["orders"].as_u64())
        .max();
    assert_eq!(orders, Some(20), "{tasks:?}");
    let all = descendants(manager.id());
    signal(manager.id(), "TERM");
    manager.wait().unwrap();
    eventually("no process is left", || {
        all.iter().all(|pid| !is_alive(*pid)).then_some(())
    });
}

const LIBRARY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python-host");
const TILL: &str = "raddle_test_warm::Till";

/// Starts `up` with this file.
fn up(world: &World, file: &str, env: &[(&str, &str)]) -> Child {
    fs::write(world.path("raddle.toml"), file).unwrap();
    let log = fs::File::create(world.path("worker.log")).unwrap();
    world
        .app()
        .args(["up", "-f", "raddle.toml"])
        .envs(env.iter().copied())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

fn stop(mut manager: Child) {
    let all = descendants(manager.id());
    signal(manager.id(), "TERM");
    manager.wait().unwrap();
    eventually("no process is left", || {
        all.iter().all(|pid| !is_alive(*pid)).then_some(())
    });
}

#[test]
fn an_event_worker_keeps_its_state_until_a_signal() {
    let world = World::without_worker();
    let notes = world.path("notes");
    let log = fs::File::create(world.path("worker.log")).unwrap();
    let manager = world
        .app()
        .arg("keep")
        .env("WARM_NOTES", &notes)
        .stdout(fs::File::create(world.path("printed")).unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    world.submit(TILL, 20, &[r#"{"item": "loom"}"#, "--queue=till"]);
    world.submit(TILL, 1, &[r#"{"item": 5}"#, "--queue=till"]);
    world.submit(TILL, 1, &["{}", "--queue=till"]);
    let tasks = world.wait();
    let log = world.log();
    assert_eq!(count(&tasks, "completed"), 20, "{tasks:?}\n{log}");
    let exits: Vec<String> = tasks.iter().map(|task| task["exit"].to_string()).collect();
    assert!(
        exits.iter().any(|exit| exit.contains("the event is no")),
        "{exits:?}"
    );
    assert!(
        exits.iter().any(|exit| exit.contains("there is no item")),
        "{exits:?}"
    );
    stop(manager);
    let notes = fs::read_to_string(notes).unwrap();
    assert_eq!(notes, "started\nsold 20\n", "{log}");
    let printed = fs::read_to_string(world.path("printed")).unwrap();
    assert_eq!(printed, "1 processes were started\n");
}

#[test]
fn a_startup_that_fails_is_in_the_list_of_groups() {
    let world = World::without_worker();
    let file = "[[process.shop.worker]]\nslug = 'vault'\nroutine = 'raddle_test_warm::Vault'\n";
    let manager = up(&world, file, &[]);
    eventually("the reason is listed", || {
        let output = world.app().arg("groups").output().unwrap();
        let reason = "the vault is locked";
        lines(&output)
            .iter()
            .any(|line| line.contains(reason))
            .then_some(())
    });
    let output = world.app().arg("statuses").output().unwrap();
    assert!(lines(&output).contains(&"backing_off".to_owned()));
    stop(manager);
}

#[test]
fn refuses_a_routine_that_the_host_of_a_process_does_not_have() {
    let world = World::without_worker();
    for (host, routine, reason) in [
        (
            SHOP,
            "ordre",
            "has no routine 'ordre': it has order, resize",
        ),
        ("/nowhere.py", "order", "does not start"),
    ] {
        let file = format!(
            "[process.shop]\nhost = ['python3', '{host}']\n\
             [[process.shop.worker]]\nslug = 'order'\nroutine = '{routine}'\n"
        );
        let mut manager = up(&world, &file, &[]);
        let status = manager.wait().unwrap();
        let said = world.log();
        assert!(!status.success() && said.contains(reason), "{said}");
    }
}

#[test]
fn the_first_example_of_everwork_runs_in_rust() {
    let world = World::without_worker();
    let example = std::env::current_exe().unwrap();
    let example = example
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples/event_worker");
    let app = world.app();
    let manager = std::process::Command::new(example)
        .envs(
            app.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .current_dir(world.directory.path())
        .stderr(fs::File::create(world.path("worker.log")).unwrap())
        .spawn()
        .unwrap();
    let routine = "event_worker::ExampleWorker";
    world.submit(routine, 3, &[r#"{"name": "loom"}"#, "--queue=example"]);
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 3, "{tasks:?}\n{}", world.log());
    stop(manager);
}

#[test]
fn the_first_example_of_everwork_runs_in_python() {
    let world = World::without_worker();
    let file = fs::read_to_string(format!("{LIBRARY}/raddle.toml")).unwrap();
    let file = file.replace("event_worker.py", &format!("{LIBRARY}/event_worker.py"));
    let manager = up(&world, &file, &[]);
    world.submit("example", 3, &[r#"{"name": "loom"}"#, "--queue=example"]);
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 3, "{tasks:?}\n{}", world.log());
    stop(manager);
}

#[test]
fn an_event_worker_without_hosts_starts_for_each_event() {
    let world = World::without_worker();
    let notes = world.path("notes");
    let file = format!(
        "[process.shop]\nhosts = 0\n\
         [[process.shop.worker]]\nslug = 'till'\nroutine = '{TILL}'\n"
    );
    let manager = up(&world, &file, &[("WARM_NOTES", notes.to_str().unwrap())]);
    world.submit(TILL, 2, &[r#"{"item": "loom"}"#, "--queue=till"]);
    let tasks = world.wait();
    assert_eq!(count(&tasks, "completed"), 2, "{tasks:?}\n{}", world.log());
    stop(manager);
    let notes = fs::read_to_string(notes).unwrap();
    assert_eq!(notes.matches("started").count(), 2, "{notes}");
}
