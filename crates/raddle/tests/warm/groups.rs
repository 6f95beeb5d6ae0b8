//! Groups whose processes keep state between tasks.

use std::{fs, process::Stdio};

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
