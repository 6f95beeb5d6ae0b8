//! `raddle queue`.

use crate::{
    shape::{shape, snapshot},
    world::{World, until},
};

#[test]
fn messages_are_written_peeked_and_read_in_order() {
    let world = World::new();
    assert_eq!(world.raddle(["queue", "write", "q", "a", "b"]).ok().lines().len(), 2);
    world.raddle_with_input(&["queue", "write", "q", "-"], b"two\nlines\n").ok();
    world.raddle_with_input(&["queue", "write", "q"], b"d").ok();
    assert_eq!(world.raddle(["queue", "peek", "q"]).ok().text(), "a\n");
    assert_eq!(world.raddle(["queue", "peek", "q", "--all"]).ok().text(), "a\nb\ntwo\nlines\nd\n");
    assert_eq!(world.raddle(["queue", "read", "q", "--limit", "2"]).ok().text(), "a\nb\n");
    let read = world.raddle(["queue", "read", "q", "--json", "--all"]).ok().json();
    assert_eq!((&read[0]["body"], &read[1]["body"]), (&"two\nlines".into(), &"d".into()));
    assert_eq!(world.raddle(["queue", "read", "q"]).ok().text(), "");
}

#[test]
fn messages_are_moved_counted_and_deleted() {
    let world = World::new();
    world.raddle(["queue", "write", "from", "a", "b", "c"]).ok();
    assert_eq!(world.raddle(["queue", "move", "from", "to"]).ok().text(), "moved 1 message\n");
    assert_eq!(world.raddle(["queue", "move", "from", "to", "--all", "--json"]).ok().json()["moved"], 2);
    let stats = world.raddle(["queue", "stats", "to", "--json"]).ok().json();
    snapshot!("json_queue_stats", shape(&world, &stats));
    assert!(world.raddle(["queue", "stats", "to"]).ok().text().contains("messages   3\n"));
    assert_eq!(world.raddle(["queue", "delete", "to"]).ok().text(), "deleted 3 messages\n");
    assert_eq!(world.raddle(["queue", "delete", "to"]).ok().text(), "deleted 0 messages\n");
}

#[test]
fn json_of_what_changes_queues_has_a_stable_shape() {
    let world = World::new();
    let json = |args: &[&str]| shape(&world, &world.raddle([args, &["--json"]].concat()).ok().json());
    snapshot!("json_queue_write", json(&["queue", "write", "jobs.a", "one", "two"]));
    let tid = world.submit(&["--", "true"]);
    snapshot!("json_queue_write_word", json(&["queue", "write", &format!("T{tid}.ctrl_in"), "STOP"]));
    snapshot!("json_queue_broadcast", json(&["queue", "broadcast", "jobs.*", "three"]));
    snapshot!("json_queue_delete", json(&["queue", "delete", "jobs.a"]));
}

#[test]
fn queues_are_listed_while_they_hold_something() {
    let world = World::new();
    let tid = world.submit(&["--", "true"]);
    world.raddle(["queue", "write", "mine", "x"]).ok();
    let list = world.raddle(["queue", "list"]).ok();
    for queue in ["mine", &format!("T{tid}.inbox"), "raddle.tasks.log"] {
        assert!(list.text().contains(queue), "{}", list.text());
    }
    let list = world.raddle(["queue", "list", "m*", "--json"]).ok().json();
    assert_eq!(list, serde_json::json!([{ "queue": "mine", "messages": 1 }]));
}

#[test]
fn a_reader_and_a_watcher_wait() {
    let world = World::new();
    let reading = world.start(["queue", "read", "q", "--wait", "60"]);
    until("the folder is made", || world.path().join(".raddle/raddle.db").exists());
    let watching = world.start(["queue", "watch", "q", "--limit", "2", "--json"]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    world.raddle(["queue", "write", "other", "x"]).ok();
    world.raddle(["queue", "write", "q", "first"]).ok();
    assert_eq!(reading.finish().ok().text(), "first\n");
    world.raddle(["queue", "write", "q", "second", "third"]).ok();
    let watched = watching.finish().ok();
    assert!(watched.lines().last().unwrap().contains("\"body\":\"") && watched.lines().len() == 2, "{watched:?}");
    assert_eq!(world.raddle(["queue", "watch", "empty", "--timeout", "0.1"]).ok().text(), "");
}

#[test]
fn a_broadcast_reaches_all_that_hold_something() {
    let world = World::new();
    world.raddle(["queue", "write", "a.1", "x"]).ok();
    world.raddle(["queue", "write", "a.2", "x"]).ok();
    world.raddle(["queue", "write", "b", "x"]).ok();
    assert_eq!(world.raddle(["queue", "broadcast", "a.*", "hello"]).ok().lines(), ["a.1", "a.2"]);
    assert_eq!(world.raddle(["queue", "peek", "a.2", "--all"]).ok().text(), "x\nhello\n");
    world.raddle(["queue", "broadcast", "nobody*", "hello"]).ok().says("no queue");
    let tid = world.submit(&["--", "true"]);
    world.raddle(["queue", "broadcast", "T*.ctrl_in", "STOP"]).ok();
    assert_eq!(world.task(&tid)["state"], "cancelled");
}

#[test]
fn the_queues_of_a_task_follow_it() {
    let world = World::new();
    let tid = world.submit(&["--", "sh", "-c", "echo done; exit 1"]);
    let peek = |port: &str| world.raddle(["queue", "peek", &format!("T{tid}.{port}")]).ok().text().to_owned();
    assert!(peek("inbox").contains(&tid) && peek("outbox").is_empty());
    world.raddle(["queue", "read", &format!("T{tid}.inbox")]).code(2).says("records of the broker");
    world.raddle(["worker", "start", "--no-detach", "--idle-exit", "0", "--quiet"]).ok();
    assert!(peek("inbox").is_empty() && peek("outbox").contains("done") && peek("reserved").contains(&tid));
    assert!(world.raddle(["queue", "peek", "raddle.dead"]).ok().text().contains(&tid));
    world.raddle(["queue", "write", &format!("T{tid}.ctrl_in"), "STOP"]).code(2).says("failed already");
    let waiting = world.submit(&["--", "true"]);
    let ran = world.raddle(["queue", "write", &format!("T{waiting}.ctrl_in"), "kill"]).ok();
    assert_eq!(ran.text(), format!("{waiting} killed\n"));
    world.raddle(["queue", "peek", "not a name"]).code(2).says("not a queue name");
}

#[test]
fn what_nobody_took_in_is_put_back() {
    let world = World::new();
    world.raddle(["queue", "write", "q", "precious"]).ok();
    // The reader has closed its end before anything is written.
    let script = "{ sleep 0.5; raddle queue read q; echo ${?} >&2; } | true; sleep 1.5";
    world.bash(script).ok().says("0");
    assert_eq!(world.raddle(["queue", "read", "q"]).ok().text(), "precious\n");
}
