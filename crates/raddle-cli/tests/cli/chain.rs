//! Tasks that follow others, through the command line: `raddle submit --chain`, and handlers that
//! say so.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    spawner::{end, on_redis},
    world::{World, wait_until},
};

/// Chains a task that is called after the attempt, and then waits to be let go.
const WAITING: &str =
    "raddle submit --chain --name f$RADDLE_ATTEMPT -- sh -c 'echo $RADDLE_TID >>ran'
                       touch chained.$RADDLE_ATTEMPT
                       while ! test -e go; do sleep 0.02; done";

/// The tasks that a task has submitted, the oldest first.
fn children(world: &World, parent: &str) -> Vec<Value> {
    let list = world
        .raddle(["task", "list", "--json", "--limit", "100000"])
        .ok()
        .json();
    let mut children: Vec<Value> = list
        .as_array()
        .unwrap()
        .iter()
        .filter(|task| task["parent"] == parent)
        .cloned()
        .collect();
    children.reverse();
    children
}

fn names(world: &World, parent: &str) -> Vec<String> {
    children(world, parent)
        .iter()
        .map(|task| task["name"].as_str().unwrap().to_owned())
        .collect()
}

fn kill_9(pid: &Value) {
    crate::world::kill(pid.as_i64().unwrap() as i32, libc::SIGKILL);
}

fn is_there(world: &World, file: &str) -> bool {
    world.path().join(file).exists()
}

fn finish(world: &World, tid: &str) {
    world.raddle(["wait", "--timeout", "50", tid]);
}

/// Each step chains the next. All of it is one tree.
fn three_steps(world: &World) {
    world.file(
        "one.sh",
        "echo one >>steps; raddle submit --chain --name two -- sh two.sh",
    );
    world.file(
        "two.sh",
        "echo two >>steps; raddle submit --chain --name three -- sh three.sh",
    );
    world.file("three.sh", "echo three >>steps");
    world.worker(&["--concurrency", "2"]);
    let tid = world.submit(&["--name", "one", "--", "sh", "one.sh"]);
    let steps = || fs::read_to_string(world.path().join("steps")).unwrap_or_default();
    wait_until("all steps are done", || steps() == "one\ntwo\nthree\n");
    wait_until("all tasks are over", || {
        world.raddle(["status", "--json"]).ok().json()["tasks"]["completed"] == 3
    });
    let tree = world.raddle(["task", "tree", "--json", &tid]).ok().json();
    let below = |task: &Value| (task["name"].clone(), task["children"][0].clone());
    let (first, second) = below(&tree[0]);
    let (second, third) = below(&second);
    assert_eq!([first, second, below(&third).0], ["one", "two", "three"]);
}

#[test]
fn three_steps_follow_each_other() {
    three_steps(&World::new());
}

#[test]
fn three_steps_follow_each_other_on_redis() {
    let (world, server) = on_redis();
    three_steps(&world);
    world.raddle(["worker", "stop", "--all"]).ok();
    end(server);
}

/// The first attempt is lost with its worker after it has chained. Only what the second chained is
/// ever there, and once.
fn a_killed_worker(world: &World) {
    let first = world.raddle(["worker", "start", "--json"]).ok().json();
    let tid = world.submit(&["--", "sh", "-c", WAITING]);
    wait_until("the first attempt has chained", || {
        is_there(world, "chained.1")
    });
    assert_eq!(world.task(&tid)["chained"], 1);
    kill_9(&first["pid"]);
    world.worker(&[]);
    wait_until("the second attempt has chained", || {
        is_there(world, "chained.2")
    });
    assert!(children(world, &tid).is_empty());
    assert!(!is_there(world, "ran"));
    world.file("go", "");
    finish(world, &tid);
    assert_eq!(names(world, &tid), ["f2"]);
    let task = world.task(&tid);
    assert_eq!(
        (&task["state"], &task["attempt"]),
        (&json!("completed"), &json!(2))
    );
    let follow_up = children(world, &tid)[0]["tid"].as_str().unwrap().to_owned();
    finish(world, &follow_up);
    assert_eq!(world.read("ran"), format!("{follow_up}\n"));
}

#[test]
fn a_lost_attempt_submits_no_chained_tasks() {
    a_killed_worker(&World::new());
}

#[test]
fn a_lost_attempt_submits_no_chained_tasks_on_redis() {
    let (world, server) = on_redis();
    a_killed_worker(&world);
    world.raddle(["worker", "stop", "--all"]).ok();
    end(server);
}

#[test]
fn only_the_successful_attempt_submits_chained_tasks() {
    let world = World::new();
    world.worker(&[]);
    let script = "raddle submit --chain --name f$RADDLE_ATTEMPT -- true; test $RADDLE_ATTEMPT = 3";
    let tid = world.submit(&[
        "--retry",
        "5",
        "--retry-base",
        "10ms",
        "--",
        "sh",
        "-c",
        script,
    ]);
    finish(&world, &tid);
    assert_eq!(names(&world, &tid), ["f3"]);
    let tid = world.submit(&[
        "--retry",
        "1",
        "--retry-base",
        "10ms",
        "--",
        "sh",
        "-c",
        "raddle submit --chain -- true; exit 3",
    ]);
    finish(&world, &tid);
    assert_eq!(world.task(&tid)["state"], "failed");
    assert!(children(&world, &tid).is_empty());
}

#[test]
fn a_stopped_killed_or_late_attempt_submits_no_chained_tasks() {
    let world = World::new();
    world.worker(&[]);
    for (flags, word) in [
        (&[][..], Some("stop")),
        (&[], Some("kill")),
        (&["--timeout", "4s"], None),
    ] {
        let tid = world.submit(&[flags, &["--", "sh", "-c", WAITING]].concat());
        wait_until("it has chained", || is_there(&world, "chained.1"));
        if let Some(word) = word {
            world.raddle(["task", word, &tid]).ok();
        }
        finish(&world, &tid);
        assert_ne!(world.task(&tid)["state"], "completed");
        assert!(children(&world, &tid).is_empty(), "after {word:?}");
        fs::remove_file(world.path().join("chained.1")).unwrap();
    }
}

#[test]
fn one_task_chains_a_thousand() {
    let world = World::new();
    world.worker(&[]);
    // In a queue without a worker.
    let script = "raddle submit --chain --json --queue later --array 1-1000 --name n{} -- true";
    let tid = world.submit(&["--", "sh", "-c", script]);
    finish(&world, &tid);
    let said = world.raddle(["result", &tid]).ok();
    assert_eq!(
        said.json(),
        json!({ "tid": tid, "attempt": 1, "chained": 1000 })
    );
    assert_eq!(
        names(&world, &tid),
        (1..=1000).map(|n| format!("n{n}")).collect::<Vec<_>>()
    );
    assert_eq!(
        world.raddle(["status", "--json"]).ok().json()["ready"]["later"],
        1000
    );
}

#[test]
fn delay_priority_and_key_of_chained_tasks_apply_at_their_submission() {
    let world = World::new();
    world.worker(&[]);
    let script = "set -e
        raddle submit --chain --queue later --name delayed --delay 60 -- true
        raddle submit --chain --queue later --name urgent --priority 9 -- true
        raddle submit --chain --queue later --name first --unique-key k -- true
        raddle submit --chain --queue later --name second --unique-key k -- true";
    let tid = world.submit(&["--", "sh", "-c", script]);
    finish(&world, &tid);
    let children = children(&world, &tid);
    let names: Vec<_> = children
        .iter()
        .map(|task| task["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["delayed", "urgent", "first"],
        "a task with a taken key is not submitted"
    );
    assert!(children[0]["run_at"].is_string() && children[1]["spec"]["priority"] == 9);
}

#[test]
fn status_shows_the_number_of_chained_tasks() {
    let world = World::new();
    world.worker(&[]);
    let tid = world.submit(&[
        "--",
        "sh",
        "-c",
        &format!("raddle submit --chain -- true; {WAITING}"),
    ]);
    wait_until("it has chained", || is_there(&world, "chained.1"));
    assert_eq!(world.task(&tid)["chained"], 2);
    let shown = world.raddle(["task", "status", &tid]).ok();
    assert!(
        shown
            .text()
            .contains("chained    2 tasks, submitted if this attempt succeeds\n"),
        "{}",
        shown.text()
    );
    let explained = world.raddle(["task", "explain", &tid]).ok();
    assert!(
        explained.text().contains(", and has chained 2 tasks\n"),
        "{}",
        explained.text()
    );
    assert_eq!(
        world
            .raddle(["task", "list", "--json"])
            .ok()
            .json()
            .as_array()
            .unwrap()
            .len(),
        1
    );
    world.file("go", "");
    finish(&world, &tid);
    assert!(world.task(&tid).get("chained").is_none());
    let log = world.raddle(["logs", &tid, "--stderr"]).ok();
    assert!(
        log.text().contains(&format!(
            "1 task will be submitted when task {tid} completes"
        )),
        "{log:?}"
    );
}

#[test]
fn chain_is_refused_outside_of_a_task() {
    let world = World::new();
    world
        .raddle(["submit", "--chain", "--", "true"])
        .code(2)
        .stderr_contains("--chain works only inside a task");
    assert!(!is_there(&world, ".raddle"), "nothing was made for it");
}

#[test]
fn a_task_of_another_broker_is_not_found() {
    let world = World::new();
    world.worker(&[]);
    fs::create_dir(world.path().join("elsewhere")).unwrap();
    let tid = world.submit(&[
        "--",
        "sh",
        "-c",
        "cd elsewhere && raddle submit --chain -- true",
    ]);
    finish(&world, &tid);
    assert_eq!(world.task(&tid)["state"], "failed");
    let log = world.raddle(["logs", &tid, "--stderr"]).ok();
    assert!(
        log.text().contains("no broker at sqlite:"),
        "{}",
        log.text()
    );
    assert!(
        !is_there(&world, "elsewhere/.raddle"),
        "nothing was made for it"
    );

    world.bash("cd elsewhere && raddle submit -- true").ok();
    let tid = world.submit(&[
        "--",
        "sh",
        "-c",
        "cd elsewhere && raddle submit --chain -- true",
    ]);
    finish(&world, &tid);
    let log = world.raddle(["logs", &tid, "--stderr"]).ok();
    assert!(
        log.text()
            .contains(&format!("this is task {tid}, which is not in sqlite:")),
        "{}",
        log.text()
    );
}

#[test]
fn an_ended_attempt_cannot_chain() {
    let world = World::new();
    world.worker(&[]);
    let tid = world.submit(&["--", "true"]);
    finish(&world, &tid);
    let script = format!(
        "RADDLE_TID={tid} RADDLE_ATTEMPT=1 RADDLE_WORKER={tid} raddle submit --chain -- true"
    );
    world
        .bash(&script)
        .code(2)
        .stderr_contains(&format!("attempt 1 of task {tid} is over or was replaced"));
    assert_eq!(
        world.raddle(["status", "--json"]).ok().json()["stale_writes"],
        1
    );
    assert!(children(&world, &tid).is_empty());
}

#[test]
fn an_inline_run_submits_its_chained_tasks() {
    let world = World::new();
    world
        .raddle([
            "run", "--", "raddle", "submit", "--chain", "--name", "next", "--", "true",
        ])
        .ok();
    let list = world
        .raddle(["task", "list", "--json", "--name", "next"])
        .ok()
        .json();
    assert_eq!(
        (&list[0]["state"], list[0]["parent"].is_string()),
        (&json!("created"), true)
    );
}

/// By the socket that its worker serves, from any directory.
#[test]
fn a_task_chains_through_an_agent() {
    let world = World::new();
    world.worker(&["--serve", "work.sock"]);
    let tid = world.submit(&[
        "--",
        "sh",
        "-c",
        "cd / && raddle submit --chain --name next -- true",
    ]);
    finish(&world, &tid);
    assert_eq!(names(&world, &tid), ["next"]);
}

fn handler(world: &World, script: &str) {
    world.file("test.sh", script);
    world.file(
        "test.handler.toml",
        "name = 'test'\ncommand = ['sh', 'test.sh']\n",
    );
}

fn chain_line(name: &str) -> String {
    format!("echo '{{\"chain\":{{\"name\":\"{name}\",\"target\":{{\"command\":[\"true\"]}}}}}}'")
}

/// How a task for the handler ends.
fn exit_of(world: &World, flags: &[&str]) -> (String, Value) {
    let tid = world.submit(&[&["--handler", "test"], flags].concat());
    finish(world, &tid);
    let exit = world.task(&tid)["report"]["exit"].clone();
    (tid, exit)
}

#[test]
fn a_handler_chains_tasks() {
    let world = World::new();
    handler(
        &world,
        &format!(
            "{}; sleep 0.1; {}; test $RADDLE_ATTEMPT = 2 || exit 7; echo '{{\"result\":1}}'; {}",
            chain_line("a"),
            chain_line("b"),
            chain_line("c")
        ),
    );
    world.worker(&["--handlers", "."]);
    let (tid, exit) = exit_of(&world, &["--retry", "3", "--retry-base", "10ms"]);
    assert_eq!(exit, json!({ "kind": "code", "code": 0 }));
    assert_eq!(names(&world, &tid), ["a", "b", "c"]);
    let (parent, child) = (world.task(&tid), children(&world, &tid)[0].clone());
    assert!(parent["spec"].get("traceparent").is_none());
    assert!(
        child["spec"]["traceparent"].is_string(),
        "it is of the trace of what it follows"
    );
}

#[test]
fn a_handler_that_chains_an_invalid_spec_gets_the_path_of_the_error() {
    let world = World::new();
    let line = r#"{"chain":{"target":{"command":["true"]},"limits":{"memory":5}}}"#;
    handler(
        &world,
        &format!("{}; echo '{line}'; sleep 600", chain_line("good")),
    );
    world.worker(&["--handlers", "."]);
    let (tid, exit) = exit_of(&world, &[]);
    assert_eq!(exit["kind"], "protocol_error");
    assert!(
        exit["message"]
            .as_str()
            .unwrap()
            .contains("at 'limits.memory': unknown field `memory`"),
        "{exit}"
    );
    assert!(children(&world, &tid).is_empty());
}

#[test]
fn a_handler_that_chains_too_many_tasks_fails() {
    let world = World::new();
    let line = r#"{"chain":{"target":{"command":["true"]}}}"#;
    handler(
        &world,
        &format!("yes '{line}' | head -n 10001; echo '{{\"result\":1}}'"),
    );
    world.worker(&["--handlers", "."]);
    let (tid, exit) = exit_of(&world, &["--retry", "3"]);
    assert_eq!(
        (&exit["kind"], &exit["permanent"]),
        (&json!("error"), &json!(true)),
        "{exit}"
    );
    assert!(
        exit["message"]
            .as_str()
            .unwrap()
            .contains("would chain more than 10000 tasks"),
        "{exit}"
    );
    assert_eq!(world.task(&tid)["attempt"], 1, "it would be the same again");
    assert!(children(&world, &tid).is_empty());
}

/// Its chained tasks would run outside of the sandbox.
#[test]
fn a_sandboxed_task_cannot_chain() {
    let world = World::new();
    handler(&world, &format!("{}; sleep 600", chain_line("escape")));
    world.worker(&["--handlers", "."]);
    let (tid, exit) = exit_of(&world, &["--isolation", "sandbox"]);
    assert_eq!(exit["kind"], "error", "{exit}");
    assert!(
        exit["message"]
            .as_str()
            .unwrap()
            .contains("a task in a sandbox cannot chain"),
        "{exit}"
    );
    assert!(children(&world, &tid).is_empty());
}

/// The one-shot worker goes on by itself, and knows how much of what it was told is chained
/// already.
fn a_killed_spawner(world: &World) {
    let wait = |file: &str| format!("while ! test -e {file}; do sleep 0.02; done");
    let parts = [
        chain_line("a"),
        chain_line("b"),
        wait("go"),
        chain_line("c"),
        "echo '{\"result\":1}'".into(),
    ];
    handler(world, &parts.join("\n"));
    let spawner = world.start(["spawner", "run", "--warm-pool", "1", "--handlers", "."]);
    let tid = world.submit(&["--handler", "test"]);
    wait_until("it has chained", || world.task(&tid)["chained"] == 2);
    spawner.signal(libc::SIGKILL);
    spawner.finish().code(137);
    world.file("go", "");
    finish(world, &tid);
    let task = world.task(&tid);
    assert_eq!(
        (&task["state"], &task["attempt"]),
        (&json!("completed"), &json!(1)),
        "{task}"
    );
    assert_eq!(names(world, &tid), ["a", "b", "c"]);
    wait_until("all of it is gone", || {
        world
            .processes()
            .iter()
            .all(|(_, line)| !line.contains("test.sh"))
    });
}

#[test]
fn a_worker_of_a_killed_spawner_chains_once() {
    a_killed_spawner(&World::new());
}

#[test]
fn examples_of_the_documents_run() {
    let text = fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/tasks.md"),
    )
    .unwrap();
    let section = text
        .split("\n## Chains\n")
        .nth(1)
        .expect("there is a section on chains");
    let script = section
        .split("```sh\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("it has an example");
    let world = World::new();
    for name in ["extract", "load"] {
        world.file(name, format!("#!/bin/sh\necho {name} >>ran\n"));
        world.bash(&format!("chmod +x {name}")).ok();
    }
    world.worker(&[]);
    world.file("etl.sh", script);
    let tid = world.submit(&["--", "sh", "etl.sh"]);
    wait_until("both have run", || {
        fs::read_to_string(world.path().join("ran")).is_ok_and(|ran| ran == "extract\nload\n")
    });
    finish(&world, &tid);
}
