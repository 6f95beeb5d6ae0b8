//! `raddle requeue-orphans`: what belongs to workers that are gone, and nothing else.

use crate::{
    shape::{shape, snapshot, without_ids},
    world::{World, wait_until},
};

fn kill(worker: &serde_json::Value) {
    crate::world::kill(worker["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
}

#[test]
fn reclaims_only_tasks_of_dead_workers() {
    let world = World::new();
    let first = world
        .raddle(["worker", "start", "--json", "--queues", "a"])
        .ok()
        .json();
    let second = world
        .raddle([
            "worker",
            "start",
            "--json",
            "--queues",
            "b",
            "--concurrency",
            "1",
        ])
        .ok()
        .json();
    let orphan = world.submit(&["--queue", "a", "--retry", "3", "--", "sleep", "600"]);
    let kept = world.submit(&["--queue", "b", "--", "sleep", "600"]);
    for tid in [&orphan, &kept] {
        world.wait_for_state(tid, "running");
    }
    let ran = world
        .raddle(["requeue-orphans"])
        .ok()
        .stderr_contains("no task belongs to a dead worker");
    assert_eq!(ran.text(), "");
    assert_eq!(
        world.raddle(["requeue-orphans", "--json"]).ok().text(),
        "[]\n"
    );
    // The other would take it back by itself, and be quicker.
    kill(&first);
    kill(&second);
    let mut taken = Vec::new();
    wait_until("both are taken back", || {
        taken.extend(
            world
                .raddle(["requeue-orphans", "--json"])
                .ok()
                .json()
                .as_array()
                .unwrap()
                .clone(),
        );
        taken.len() >= 2
    });
    taken.sort_by_key(|orphan| orphan["tid"].as_str().unwrap().to_owned());
    assert_eq!(
        taken
            .iter()
            .map(|orphan| &orphan["tid"])
            .collect::<Vec<_>>(),
        [&orphan, &kept]
    );
    assert_eq!(
        (&taken[0]["worker"], &taken[1]["worker"]),
        (&first["tid"], &second["tid"])
    );
    snapshot!("json_requeue_orphans", shape(&world, &taken.into()));
    for tid in [&orphan, &kept] {
        let task = world.task(tid);
        assert_eq!(
            (&task["state"], &task["losses"]),
            (&"created".into(), &1.into())
        );
    }
    assert_eq!(
        world.raddle(["requeue-orphans", "--json"]).ok().text(),
        "[]\n",
        "they are taken back once"
    );
}

#[test]
fn doctor_reports_a_dead_worker_until_its_tasks_are_reclaimed() {
    let world = World::new();
    let worker = world.raddle(["worker", "start", "--json"]).ok().json();
    let tid = world.submit(&["--", "sleep", "600"]);
    world.wait_for_state(&tid, "running");
    let stale = || {
        let doctor = world.raddle(["doctor", "--json"]).ok().json();
        let checks = doctor["checks"].as_array().unwrap().clone();
        checks
            .into_iter()
            .find(|check| check["name"] == "stale workers")
            .unwrap()
    };
    assert_eq!(
        (&stale()["ok"], &stale()["detail"]),
        (&true.into(), &"0 without a valid lease".into())
    );
    kill(&worker);
    wait_until("its lease is over", || stale()["ok"] == false);
    let found = stale();
    assert_eq!(
        (&found["detail"], &found["vital"]),
        (&"1 without a valid lease".into(), &false.into())
    );
    assert!(
        found["fix"]
            .as_str()
            .unwrap()
            .starts_with("run 'raddle requeue-orphans'"),
        "{found}"
    );
    assert!(
        world
            .raddle(["requeue-orphans"])
            .ok()
            .text()
            .starts_with(&tid)
    );
    assert_eq!((&stale()["ok"], stale().get("fix")), (&true.into(), None));
}

#[test]
fn prints_each_reclaimed_task() {
    let world = World::new();
    let worker = world.raddle(["worker", "start", "--json"]).ok().json();
    let tid = world.submit(&["--", "sleep", "600"]);
    world.wait_for_state(&tid, "running");
    kill(&worker);
    let mut told = String::new();
    wait_until("it is taken back", || {
        told = world.raddle(["requeue-orphans"]).ok().text().to_owned();
        !told.is_empty()
    });
    assert!(
        told.starts_with(&tid) && told.contains(worker["tid"].as_str().unwrap()),
        "{told}"
    );
    assert!(without_ids(&told).starts_with("[tid] requeued"), "{told}");
}

#[test]
fn does_not_create_a_broker() {
    let world = World::new();
    world
        .raddle(["requeue-orphans"])
        .code(2)
        .stderr_contains("no broker at");
    assert!(!world.path().join(".raddle").exists());
    world
        .raddle(["requeue-orphans", "--queue-url", "mem://"])
        .code(2)
        .stderr_contains("exists only in one process");
}
