//! The lines of workers in the log of their manager.

use super::*;
use crate::log::read;

/// Starts the groups of a file with a log of JSON, and waits until they are up.
fn up_with_json(world: &World, file: &str) -> RunningCommand {
    world.file("raddle.toml", file);
    let manager = world.start(["up", "--log-format", "json"]);
    wait_until("they are up", || manager.stderr().contains(" up\""));
    manager
}

#[test]
fn logs_failures_also_where_they_are_acknowledged() {
    let world = World::new();
    let worker = |slug: &str, rest: &str| {
        format!(
            "[process.{slug}]\n[[process.{slug}.worker]]\nslug = '{slug}'\nsources = ['in']\n{rest}\n"
        )
    };
    let file = [
        worker(
            "code",
            "command = ['sh', '-c', 'echo no such order >&2; exit 3']\non_error = 'ack'",
        ),
        worker(
            "late",
            "command = ['sleep', '1000']\nexecution_timeout = '200ms'",
        ),
        worker("none", "command = ['./nowhere']"),
        worker("good", "command = ['true']"),
    ];
    let manager = up_with_json(&world, &file.concat());
    world.raddle(["queue", "write", "in", "x"]).ok();
    let tasks = || {
        world
            .raddle(["task", "list", "--json"])
            .ok()
            .json()
            .as_array()
            .unwrap()
            .clone()
    };
    let is_over = |task: &Value| {
        ["completed", "failed", "timeout"]
            .iter()
            .any(|state| task["state"] == *state)
    };
    wait_until("all are over", || {
        tasks().len() == 4 && tasks().iter().all(is_over)
    });
    let tid_of = |slug: &str| {
        tasks()
            .iter()
            .find(|task| task["spec"]["queue"] == slug)
            .unwrap()["tid"]
            .clone()
    };
    let tids = ["code", "late", "none"].map(tid_of);
    let lines = read(&down(&world, manager));
    let failures: Vec<&Value> = lines
        .iter()
        .filter(|line| line["queue"].is_string())
        .collect();
    assert_eq!(failures.len(), 3, "{lines:?}");
    for (tid, exit) in tids
        .iter()
        .zip(["exit code 3", "ran past its timeout", "nowhere"])
    {
        let line = failures.iter().find(|line| line["tid"] == *tid).unwrap();
        assert!(line["level"] == "ERROR" && line["attempt"] == 1, "{line}");
        assert!(line["exit"].as_str().unwrap().contains(exit), "{line}");
        let next = format!("'raddle logs {}'", tid.as_str().unwrap());
        assert!(line["message"].as_str().unwrap().contains(&next), "{line}");
    }
    let code = failures.iter().find(|line| line["tid"] == tids[0]).unwrap();
    assert_eq!(
        (&code["queue"], &code["stderr"]),
        (&"code".into(), &"no such order".into()),
        "{code}"
    );
}

#[test]
fn a_line_about_a_message_has_one_key_for_its_text() {
    let world = World::new();
    let file =
        "[process.a]\n[[process.a.worker]]\nslug = 'a'\nsources = ['in']\ncommand = ['true']\n";
    let manager = up_with_json(&world, file);
    // The tasks of this one are refused, so that its messages are dead.
    let odd = serde_json::json!({
        "slug": "odd", "process": "odd", "sources": ["in"], "on": true, "replicas": 1, "scales": true,
        "event": { "target": { "command": [""] }, "queue": "odd" },
    });
    world
        .raddle(["queue", "write", "raddle.groups", &odd.to_string()])
        .ok();
    world.raddle(["queue", "write", "in", "x"]).ok();
    wait_until("it is dead", || {
        world.raddle(["queue", "peek", "odd.dead"]).ok().text() == "x\n"
    });
    let said = "a message cannot be a task, and is in odd.dead";
    wait_until("it is said", || manager.stderr().contains(said));
    let lines = read(&down(&world, manager));
    let line = lines.iter().find(|line| line["message"] == said).unwrap();
    assert!(
        line["slug"] == "odd" && line["source"] == "in" && line["id"].is_string(),
        "{line}"
    );
}
