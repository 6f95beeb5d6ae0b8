//! `raddle worker start --serve`, and the commands of others through it.

use std::{fs, os::unix::fs::PermissionsExt};

use crate::world::{World, wait_until};

/// A world with a worker that serves at `agent.sock`, and the URL of that.
fn served(args: &[&str]) -> (World, String) {
    let world = World::new();
    world.worker(&[&["--serve", "agent.sock"], args].concat());
    let url = format!("unix:{}", world.path().join("agent.sock").display());
    (world, url)
}

#[test]
fn serves_the_broker_at_a_socket_until_the_worker_exits() {
    let (world, url) = served(&[]);
    let socket = world.path().join("agent.sock");
    assert_eq!(
        fs::metadata(&socket).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let through = |args: &[&str]| world.raddle([&["--queue-url", &url], args].concat());
    let ran = through(&["run", "--", "sh", "-c", "echo out; echo err >&2; exit 3"])
        .code(3)
        .stderr_contains("err");
    assert_eq!(ran.text(), "out\n");
    let tid = through(&["submit", "--", "echo", "hello"])
        .ok()
        .text()
        .trim()
        .to_owned();
    through(&["wait", &tid]).ok();
    // The same task, seen from both sides.
    assert_eq!(world.task(&tid)["state"], "completed");
    assert_eq!(through(&["logs", &tid]).ok().text(), "hello\n");
    assert_eq!(through(&["tid", &tid[9..]]).ok().text().trim(), tid);
    through(&["task", "status", "1700000000000000000"])
        .code(2)
        .stderr_contains("no task");
    through(&["worker", "stop", "--all"]).ok();
    wait_until("the socket is gone", || !socket.exists());
    through(&["status"])
        .code(125)
        .stderr_contains("no process serves there")
        .stderr_contains("--serve");
}

#[test]
fn doctor_names_the_engine_behind_the_socket() {
    let (world, url) = served(&[]);
    let health = world
        .raddle(["--queue-url", &url, "doctor", "--json"])
        .ok()
        .json();
    assert!(
        health["engine"].as_str().unwrap().starts_with("sqlite"),
        "{health}"
    );
    assert_eq!(health["location"], url.as_str());
    let checks = health["checks"].as_array().unwrap();
    let agent = checks
        .iter()
        .find(|check| check["name"] == "agent")
        .unwrap();
    assert!(
        agent["detail"]
            .as_str()
            .unwrap()
            .contains("is served by process"),
        "{agent}"
    );
    world.raddle(["worker", "stop", "--all"]).ok();
    let ran = world.raddle(["--queue-url", &url, "doctor"]).code(1);
    assert!(
        ran.text()
            .contains("error broker, agent: no answer from the agent"),
        "{}",
        ran.text()
    );
}

#[test]
fn tasks_find_the_socket_unless_their_spec_says_otherwise() {
    let (world, url) = served(&["--concurrency", "2"]);
    let ran = world
        .raddle(["run", "--no-inline", "--", "sh", "-c", "echo $QUEUE_URL"])
        .ok();
    assert_eq!(ran.text().trim(), url);
    let ran = world
        .raddle([
            "run",
            "--no-inline",
            "--env",
            "QUEUE_URL=sqlite:own.db",
            "--",
            "sh",
            "-c",
            "echo $QUEUE_URL",
        ])
        .ok();
    assert_eq!(ran.text().trim(), "sqlite:own.db");
    // A task that submits another needs no database of its own, wherever it stands.
    let ran = world
        .raddle([
            "run",
            "--no-inline",
            "--",
            "sh",
            "-c",
            "cd / && raddle submit -- echo from below",
        ])
        .ok();
    let child = ran.text().trim().to_owned();
    world.raddle(["wait", &child]).ok();
    let parent = world.task(&child)["parent"].clone();
    assert!(parent.is_string(), "{parent}");
}

#[test]
fn another_worker_works_through_the_socket() {
    let world = World::new();
    // One that takes nothing itself, and one that has nothing but the socket.
    let started = world
        .raddle([
            "worker",
            "start",
            "--json",
            "--serve",
            "agent.sock",
            "--queues",
            "none",
        ])
        .ok()
        .json();
    let url = started["serves"].as_str().unwrap().to_owned();
    let tids = world.submit(&["--array", "1-50", "--", "sh", "-c", "echo {} >> ran"]);
    let ran = world
        .raddle([
            "worker",
            "start",
            "--no-detach",
            "--idle-exit",
            "0",
            "--queue-url",
            &url,
        ])
        .ok();
    ran.stderr_contains("ran 50 tasks");
    world.raddle(["wait"].into_iter().chain(tids.lines())).ok();
    assert_eq!(world.read("ran").lines().count(), 50);
    // And a run is its own worker.
    let ran = world
        .raddle([
            "run",
            "--queue-url",
            &url,
            "--",
            "sh",
            "-c",
            "sleep 1; echo inline",
        ])
        .ok();
    assert_eq!(ran.text(), "inline\n");
}

#[test]
fn a_worker_falls_back_to_the_engine_when_the_agent_exits() {
    let world = World::new();
    let first = world
        .raddle([
            "worker",
            "start",
            "--json",
            "--serve",
            "agent.sock",
            "--queues",
            "none",
        ])
        .ok()
        .json();
    let url = first["serves"].as_str().unwrap().to_owned();
    let worker = world.start(["worker", "start", "--no-detach", "--queue-url", &url]);
    let script = "echo begun >> ran; while ! test -e go; do sleep 0.02; done; echo ended >> ran";
    let tid = world.submit(&["--", "sh", "-c", script]);
    wait_until("it runs", || world.path().join("ran").exists());
    world.wait_for_state(&tid, "running");
    crate::world::kill(first["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
    world.worker(&["--serve", "agent.sock", "--queues", "none"]);
    world.file("go", "");
    world.raddle(["wait", "--timeout", "30", &tid]).ok();
    assert_eq!(world.read("ran"), "begun\nended\n");
    assert_eq!(world.task(&tid)["attempt"], 1);
    let next = world.submit(&["--", "true"]);
    world.raddle(["wait", "--timeout", "30", &next]).ok();
    worker.stop().ok();
}

#[test]
fn stops_a_worker_whose_agent_is_gone() {
    let world = World::new();
    let first = world
        .raddle([
            "worker",
            "start",
            "--json",
            "--serve",
            "agent.sock",
            "--queues",
            "none",
        ])
        .ok()
        .json();
    let url = first["serves"].as_str().unwrap().to_owned();
    let worker = world.start(["worker", "start", "--no-detach", "--queue-url", &url]);
    let tid = world.submit(&[
        "--",
        "sh",
        "-c",
        "echo ran >> ran; while ! test -e go; do sleep 0.02; done",
    ]);
    world.wait_for_state(&tid, "running");
    crate::world::kill(first["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
    world.file("go", "");
    wait_until("it has a result", || {
        worker.stderr().contains("results cannot be written yet")
    });
    for times in 1..=3 {
        worker.signal(libc::SIGTERM);
        wait_until("it has heard", || {
            worker.stderr().matches("stopping:").count() == times
        });
    }
    let ran = worker.finish().ok();
    assert!(
        ran.stderr.contains("it will run again") && ran.stderr.contains(&tid),
        "{}",
        ran.stderr
    );
    world.worker(&[]);
    world.raddle(["wait", "--timeout", "30", &tid]).ok();
    assert_eq!(world.read("ran").lines().count(), 2);
}

#[test]
fn serves_a_broker_in_memory() {
    let world = World::new();
    let worker = world.start([
        "worker",
        "start",
        "--no-detach",
        "--queue-url",
        "mem://",
        "--serve",
        "agent.sock",
    ]);
    wait_until("it serves", || !worker.stdout().is_empty());
    let ran = world
        .bash("export QUEUE_URL=unix:agent.sock; raddle submit -- echo kept | xargs raddle wait; raddle status --json")
        .ok();
    assert!(ran.text().contains("\"completed\""), "{}", ran.text());
    assert!(!world.path().join(".raddle").exists());
    worker.stop().ok();
    assert!(!world.path().join("agent.sock").exists());
}

#[test]
fn refuses_a_socket_path_before_anything_starts() {
    let (world, _) = served(&[]);
    world
        .raddle(["worker", "start", "--no-detach", "--serve", "agent.sock"])
        .code(2)
        .stderr_contains("another process serves there");
    world.file("taken", "precious");
    world
        .raddle(["worker", "start", "--no-detach", "--serve", "taken"])
        .code(2)
        .stderr_contains("not a socket");
    world
        .raddle(["worker", "start", "--serve", "taken"])
        .code(2)
        .stderr_contains("not a socket");
    world
        .raddle(["worker", "start", "--no-detach", "--serve", "no/directory"])
        .code(2)
        .stderr_contains("create it first");
    let long = "x".repeat(120);
    world
        .raddle(["worker", "start", "--no-detach", "--serve", &long])
        .code(2)
        .stderr_contains("more than the 107 of a socket");
    world
        .raddle(["--queue-url", &format!("unix:{long}"), "status"])
        .code(125)
        .stderr_contains("107");
    world
        .raddle(["--queue-url", "unix:", "status"])
        .code(2)
        .stderr_contains("unix:PATH");
    assert_eq!(world.workers().as_array().unwrap().len(), 1);
    assert_eq!(world.read("taken"), "precious");
}
