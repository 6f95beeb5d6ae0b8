//! `raddle queue`.

use crate::{
    shape::{shape, snapshot},
    world::{World, wait_until},
};

#[test]
fn messages_are_written_peeked_and_read_in_order() {
    let world = World::new();
    assert_eq!(
        world
            .raddle(["queue", "write", "q", "a", "b"])
            .ok()
            .lines()
            .len(),
        2
    );
    world
        .raddle_with_input(&["queue", "write", "q", "-"], b"two\nlines\n")
        .ok();
    world.raddle_with_input(&["queue", "write", "q"], b"d").ok();
    assert_eq!(world.raddle(["queue", "peek", "q"]).ok().text(), "a\n");
    assert_eq!(
        world.raddle(["queue", "peek", "q", "--all"]).ok().text(),
        "a\nb\ntwo\nlines\nd\n"
    );
    assert_eq!(
        world
            .raddle(["queue", "read", "q", "--limit", "2"])
            .ok()
            .text(),
        "a\nb\n"
    );
    let read = world
        .raddle(["queue", "read", "q", "--json", "--all"])
        .ok()
        .json();
    assert_eq!(
        (&read[0]["body"], &read[1]["body"]),
        (&"two\nlines".into(), &"d".into())
    );
    assert_eq!(world.raddle(["queue", "read", "q"]).ok().text(), "");
}

#[test]
fn lines_and_files_are_written_as_messages() {
    let world = World::new();
    world.file("one", "two\nlines\n");
    world.file("other", "{\"n\": 2}");
    world
        .raddle(["queue", "write", "q", "--file", "one", "--file", "other"])
        .ok();
    world
        .raddle_with_input(&["queue", "write", "q", "--lines"], b"a\n\nb\n")
        .ok();
    world
        .raddle_with_input(
            &[
                "queue", "write", "q", "a text", "--lines", "--file", "one", "--file", "-",
            ],
            b"c\nd",
        )
        .ok();
    let read = world
        .raddle(["queue", "read", "q", "--json", "--all"])
        .ok()
        .json();
    let bodies: Vec<&str> = read
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["body"].as_str().unwrap())
        .collect();
    assert_eq!(
        bodies,
        [
            "two\nlines",
            "{\"n\": 2}",
            "a",
            "b",
            "a text",
            "two",
            "lines",
            "c",
            "d"
        ]
    );
    // More than are written in one step.
    let many: Vec<String> = (0..2500).map(|number| number.to_string()).collect();
    world.file("many", many.join("\n"));
    assert_eq!(
        world
            .raddle(["queue", "write", "q", "--lines", "--file", "many"])
            .ok()
            .lines()
            .len(),
        2500
    );
    assert_eq!(
        world.raddle(["queue", "read", "q", "--all"]).ok().lines(),
        many
    );
    assert_eq!(
        world
            .raddle_with_input(&["queue", "write", "q", "--lines"], b"")
            .ok()
            .text(),
        ""
    );
    world
        .raddle(["queue", "write", "q", "--file", "none"])
        .code(2)
        .stderr_contains("cannot read none: ");
}

#[test]
fn messages_are_moved_counted_and_deleted() {
    let world = World::new();
    world.raddle(["queue", "write", "from", "a", "b", "c"]).ok();
    assert_eq!(
        world.raddle(["queue", "move", "from", "to"]).ok().text(),
        "moved 1 message\n"
    );
    assert_eq!(
        world
            .raddle(["queue", "move", "from", "to", "--all", "--json"])
            .ok()
            .json()["moved"],
        2
    );
    let stats = world.raddle(["queue", "stats", "to", "--json"]).ok().json();
    snapshot!("json_queue_stats", shape(&world, &stats));
    assert!(
        world
            .raddle(["queue", "stats", "to"])
            .ok()
            .text()
            .contains("messages   3\n")
    );
    assert_eq!(
        world.raddle(["queue", "delete", "to"]).ok().text(),
        "deleted 3 messages\n"
    );
    assert_eq!(
        world.raddle(["queue", "delete", "to"]).ok().text(),
        "deleted 0 messages\n"
    );
}

#[test]
fn json_of_what_changes_queues_has_a_stable_shape() {
    let world = World::new();
    let json = |args: &[&str]| {
        shape(
            &world,
            &world.raddle([args, &["--json"]].concat()).ok().json(),
        )
    };
    snapshot!(
        "json_queue_write",
        json(&["queue", "write", "jobs.a", "one", "two"])
    );
    let tid = world.submit(&["--", "true"]);
    snapshot!(
        "json_queue_write_word",
        json(&["queue", "write", &format!("T{tid}.ctrl_in"), "STOP"])
    );
    snapshot!(
        "json_queue_broadcast",
        json(&["queue", "broadcast", "jobs.*", "three"])
    );
    snapshot!("json_queue_delete", json(&["queue", "delete", "jobs.a"]));
}

#[test]
fn queues_of_tasks_and_of_messages_are_listed_and_the_others_on_request() {
    let world = World::new();
    let tid = world.submit(&["--", "true"]);
    world.raddle(["queue", "write", "mine", "x"]).ok();
    let list = world.raddle(["queue", "list"]).ok();
    assert_eq!(
        list.lines(),
        [
            "QUEUE    READY  MESSAGES",
            "default  1      0",
            "mine     0      1"
        ]
    );
    let list = world.raddle(["queue", "list", "--all"]).ok();
    for queue in [
        "default",
        "mine",
        &format!("T{tid}.inbox"),
        "raddle.tasks.log",
    ] {
        assert!(list.text().contains(queue), "{}", list.text());
    }
    let list = world.raddle(["queue", "list", "m*", "--json"]).ok().json();
    assert_eq!(
        list,
        serde_json::json!([{ "queue": "mine", "ready": 0, "messages": 1 }])
    );
    let list = world
        .raddle(["queue", "list", "T*.inbox", "--json"])
        .ok()
        .json();
    assert_eq!(
        list,
        serde_json::json!([{ "queue": format!("T{tid}.inbox"), "ready": 0, "messages": 1 }])
    );
    world.worker(&["--queues", "idle"]);
    let list = world.raddle(["queue", "list"]).ok();
    assert!(
        list.lines().contains(&"idle     0      0"),
        "a worker serves it: {}",
        list.text()
    );
}

#[test]
fn stats_of_a_queue_count_its_tasks() {
    let world = World::new();
    world.submit(&["--array", "1-3", "--", "true"]);
    world.submit(&["--delay", "10m", "--", "true"]);
    world.submit(&["--queue", "other", "--", "true"]);
    let held = world.submit(&["--", "true"]);
    world.raddle(["task", "pause", &held]).ok();
    let tasks = || {
        world
            .raddle(["queue", "stats", "default", "--json"])
            .ok()
            .json()["tasks"]
            .clone()
    };
    assert_eq!(
        tasks(),
        serde_json::json!({ "ready": 3, "delayed": 1, "paused": 1, "running": 0 })
    );
    let stats = world.raddle(["queue", "stats", "default"]).ok();
    assert_eq!(
        stats.lines()[1],
        "tasks      3 ready, 1 delayed, 1 paused, 0 running"
    );
    let running = world.start([
        "run",
        "--name",
        "busy",
        "--",
        "sh",
        "-c",
        "echo begun; sleep 600",
    ]);
    wait_until("it runs", || running.stdout() == "begun\n");
    assert_eq!(tasks()["running"], 1);
    running.stop().code(130);
    assert!(
        !world
            .raddle(["queue", "stats", "raddle.tasks.log"])
            .ok()
            .text()
            .contains("tasks  ")
    );
}

#[test]
fn a_reader_and_a_watcher_wait() {
    let world = World::new();
    let reading = world.start(["queue", "read", "q", "--wait", "60"]);
    wait_until("the directory is made", || {
        world.path().join(".raddle/raddle.db").exists()
    });
    let watching = world.start(["queue", "watch", "q", "--limit", "2", "--json"]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    world.raddle(["queue", "write", "other", "x"]).ok();
    world.raddle(["queue", "write", "q", "first"]).ok();
    assert_eq!(reading.finish().ok().text(), "first\n");
    world
        .raddle(["queue", "write", "q", "second", "third"])
        .ok();
    let watched = watching.finish().ok();
    assert!(
        watched.lines().last().unwrap().contains("\"body\":\"") && watched.lines().len() == 2,
        "{watched:?}"
    );
    assert_eq!(
        world
            .raddle(["queue", "watch", "empty", "--timeout", "0.1"])
            .ok()
            .text(),
        ""
    );
}

#[test]
fn broadcasts_to_queues_that_are_not_empty() {
    let world = World::new();
    world.raddle(["queue", "write", "a.1", "x"]).ok();
    world.raddle(["queue", "write", "a.2", "x"]).ok();
    world.raddle(["queue", "write", "b", "x"]).ok();
    assert_eq!(
        world
            .raddle(["queue", "broadcast", "a.*", "hello"])
            .ok()
            .lines(),
        ["a.1", "a.2"]
    );
    assert_eq!(
        world.raddle(["queue", "peek", "a.2", "--all"]).ok().text(),
        "x\nhello\n"
    );
    world
        .raddle(["queue", "broadcast", "absent*", "hello"])
        .ok()
        .stderr_contains("no matching queue");
    let tid = world.submit(&["--", "true"]);
    world
        .raddle(["queue", "broadcast", "T*.ctrl_in", "STOP"])
        .ok();
    assert_eq!(world.task(&tid)["state"], "cancelled");
}

#[test]
fn the_queues_of_a_task_follow_it() {
    let world = World::new();
    let tid = world.submit(&["--", "sh", "-c", "echo done; exit 1"]);
    let peek = |port: &str| {
        world
            .raddle(["queue", "peek", &format!("T{tid}.{port}")])
            .ok()
            .text()
            .to_owned()
    };
    assert!(peek("inbox").contains(&tid) && peek("outbox").is_empty());
    world
        .raddle(["queue", "read", &format!("T{tid}.inbox")])
        .code(2)
        .stderr_contains("records of the broker");
    world
        .raddle([
            "worker",
            "start",
            "--no-detach",
            "--idle-exit",
            "0",
            "--quiet",
        ])
        .ok();
    assert!(
        peek("inbox").is_empty()
            && peek("outbox").contains("done")
            && peek("reserved").contains(&tid)
    );
    assert!(
        world
            .raddle(["queue", "peek", "raddle.dead"])
            .ok()
            .text()
            .contains(&tid)
    );
    world
        .raddle(["queue", "write", &format!("T{tid}.ctrl_in"), "STOP"])
        .code(2)
        .stderr_contains("failed already");
    let waiting = world.submit(&["--", "true"]);
    let ran = world
        .raddle(["queue", "write", &format!("T{waiting}.ctrl_in"), "kill"])
        .ok();
    assert_eq!(ran.text(), format!("{waiting} killed\n"));
    world
        .raddle(["queue", "peek", "not a name"])
        .code(2)
        .stderr_contains("not a queue name");
}

#[test]
fn the_queues_of_a_task_are_named_by_its_short_id() {
    let world = World::new();
    let tid = world.submit(&["--", "true"]);
    let short = &tid[9..];
    assert!(
        world
            .raddle(["queue", "peek", &format!("T{short}.inbox")])
            .ok()
            .text()
            .contains(&tid)
    );
    let stats = world
        .raddle(["queue", "stats", "--json", &format!("T{short}.inbox")])
        .ok()
        .json();
    assert_eq!(
        (&stats["queue"], &stats["messages"]),
        (&format!("T{tid}.inbox").into(), &1.into())
    );
    let ran = world
        .raddle([
            "queue",
            "write",
            &format!("T{short}.ctrl_in"),
            r#"{"command":"stop"}"#,
        ])
        .ok();
    assert_eq!(ran.text(), format!("{tid} cancelled\n"));
    world
        .raddle(["queue", "write", "T0000000001.ctrl_in", "STOP"])
        .code(2)
        .stderr_contains("no task has an id that ends in 0000000001");
    world
        .raddle(["queue", "write", "T123.ctrl_in", "STOP"])
        .code(2)
        .stderr_contains("not a queue of a task");
    world
        .raddle(["queue", "write", &format!("T{tid}.control"), "STOP"])
        .code(2)
        .stderr_contains("not a queue of a task");
}

/// It would wait for ever, and its writer for what comes of it.
#[test]
fn refuses_invalid_control_messages() {
    let world = World::new();
    world
        .raddle(["queue", "write", "raddle.workers.control", "PING"])
        .code(2)
        .stderr_contains("no live worker");
    world
        .raddle(["queue", "write", "worker.unix.control", "PING"])
        .code(2)
        .stderr_contains("no live worker");
    world.worker(&["--concurrency", "1"]);
    let tid = world.submit(&["--", "sleep", "600"]);
    world.wait_for_state(&tid, "running");
    let control = format!("T{tid}.ctrl_in");
    for typo in [
        "STPO",
        r#"{"command":"STPO"}"#,
        r#"{"command":"STOP","requestid":"1"}"#,
        "",
    ] {
        let refused = world
            .raddle(["queue", "write", &control, typo])
            .code(2)
            .stderr_contains("STOP, KILL, PAUSE");
        assert_eq!(refused.text(), "", "{typo}");
    }
    world
        .raddle(["queue", "write", "raddle.workers.control", "PNIG"])
        .code(2)
        .stderr_contains("STOP, KILL, PAUSE");
    world
        .raddle(["queue", "write", &control, r#"{"command":"Kill"}"#])
        .ok();
    world.wait_for_state(&tid, "killed");
}

#[test]
fn returns_messages_that_could_not_be_printed() {
    let world = World::new();
    world.raddle(["queue", "write", "q", "precious"]).ok();
    // The reader has closed its end before anything is written.
    let script = "{ sleep 0.5; raddle queue read q; echo ${?} >&2; } | true; sleep 1.5";
    world.bash(script).ok().stderr_contains("0");
    assert_eq!(
        world.raddle(["queue", "read", "q"]).ok().text(),
        "precious\n"
    );
}

#[test]
fn a_paused_queue_holds_tasks_back() {
    let world = World::new();
    let paused = world.raddle(["queue", "pause", "default"]).ok();
    assert_eq!(paused.text(), "default paused\n");
    let again = world.raddle(["queue", "pause", "default"]).ok();
    assert_eq!(again.text(), "default already paused\n");
    world.worker(&[]);
    let tid = world.submit(&["--", "true"]);
    let explained = world.raddle(["task", "explain", &tid]).ok();
    assert!(
        explained.text().contains("its queue 'default' is paused"),
        "{}",
        explained.text()
    );
    let stats = world.raddle(["queue", "stats", "default"]).ok();
    assert_eq!(
        stats.lines()[1],
        "tasks      1 ready, 0 delayed, 0 paused, 0 running; the queue is paused"
    );
    let run = world.start(["run", "--", "echo", "inline"]);
    wait_until("it says why it waits", || {
        run.stderr()
            .contains("resume it with 'raddle queue resume default'")
    });
    assert_eq!(run.stdout(), "");
    world.raddle(["queue", "resume", "default"]).ok();
    run.finish().ok();
    world.raddle(["wait", &tid, "--timeout", "60"]).ok();
}

#[test]
fn operations_are_listed_and_unknown_ones_named() {
    let world = World::new();
    let tid = world.submit(&["--", "true"]);
    let listed = world.raddle(["operation", "list", "--json"]).ok();
    assert_eq!(listed.json(), serde_json::json!([]));
    for command in ["status", "resume", "cancel"] {
        world
            .raddle(["operation", command, &tid])
            .code(2)
            .stderr_contains("raddle operation list");
    }
}
