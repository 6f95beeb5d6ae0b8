//! Handlers that are programs of their own: what they answer, and what they do wrong.

use std::path::Path;

use serde_json::json;

use crate::world::{World, wait_until};

/// A world with a handler that is a shell script, and a worker that has it.
fn with_handler(script: &str) -> World {
    let world = World::new();
    handler(&world, "test", "", script);
    world.worker(&["--handlers", ".", "--concurrency", "1"]);
    world
}

fn handler(world: &World, name: &str, provides: &str, script: &str) {
    world.file(&format!("{name}.sh"), script);
    let text = format!("name = '{name}'\nprovides = [{provides}]\ncommand = ['sh', '{name}.sh']\n");
    world.file(&format!("{name}.handler.toml"), text);
}

/// How a task for this handler ends: its exit, as JSON has it.
fn exit_of(world: &World, args: &[&str]) -> serde_json::Value {
    let tid = world.submit(&[&["--handler", "test"], args].concat());
    world.raddle(["wait", "--timeout", "30", &tid]);
    world.task(&tid)["report"]["exit"].clone()
}

#[test]
fn the_example_counts_words() {
    let world = World::new();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/handlers");
    world.worker(&["--handlers", examples.to_str().unwrap()]);
    let tid = world.submit(&["--handler", "word-count", "--", "one two", "three"]);
    world.raddle(["wait", "--timeout", "30", &tid]).ok();
    let task = world.task(&tid);
    assert_eq!(
        task["report"]["value"],
        json!({ "words": 3, "each": [2, 1] })
    );
    let logs = world.raddle(["logs", &tid]).ok();
    assert!(
        logs.stderr.contains(&format!("task {tid}, attempt 1"))
            || logs.text().contains("attempt 1"),
        "{logs:?}"
    );
    let tid = world.submit(&["--retry", "5", "--handler", "any"]);
    world.raddle(["wait", "--timeout", "30", &tid]).code(1);
    let task = world.task(&tid);
    assert_eq!(
        (&task["attempt"], &task["report"]["exit"]["message"]),
        (&json!(1), &json!("give me at least one text"))
    );
}

#[test]
fn a_returned_value_is_printed_by_run_result_and_status() {
    let script = "read task
        case $RADDLE_CASE in
          value) echo 'said on the way' >&2; echo '{\"result\": {\"words\": 3}}' ;;
          null) echo '{\"result\": null}' ;;
          long) printf '{\"result\": \"%0500d\"}\\n' 7 ;;
        esac";
    let world = with_handler(script);
    let run = |case: &str| {
        let variable = format!("RADDLE_CASE={case}");
        world
            .raddle([
                "run",
                "--name",
                case,
                "--env",
                &variable,
                "--handler",
                "test",
            ])
            .ok()
            .text()
            .to_owned()
    };
    let tid = |case: &str| {
        let tasks = world
            .raddle(["task", "list", "--json", "--name", case])
            .ok()
            .json();
        tasks[0]["tid"].as_str().unwrap().to_owned()
    };
    let status = |case: &str| {
        world
            .raddle(["task", "status", &tid(case)])
            .ok()
            .text()
            .to_owned()
    };
    let result = |case: &str| world.raddle(["result", &tid(case)]).ok().text().to_owned();
    assert_eq!(run("value"), "{\"words\":3}\n");
    assert_eq!(result("value"), "{\"words\":3}\n");
    assert!(
        status("value").contains("returned   {\"words\":3}\n"),
        "{}",
        status("value")
    );
    assert_eq!(
        (run("null"), result("null")),
        (String::new(), String::new())
    );
    assert!(!status("null").contains("returned"), "{}", status("null"));
    let long = format!("\"{:0500}\"\n", 7);
    assert_eq!((run("long"), result("long")), (long.clone(), long));
    assert!(
        status("long").contains("(502 bytes, see 'raddle result')"),
        "{}",
        status("long")
    );
}

#[test]
fn a_handler_gets_its_task() {
    let world = with_handler("read task; echo \"{\\\"result\\\": $task}\"");
    let tid = world.submit(&[
        "--handler",
        "test",
        "--meta",
        "k=v",
        "--",
        "7",
        "{\"a\": [null]}",
        "text",
    ]);
    world.raddle(["wait", "--timeout", "30", &tid]).ok();
    let told = world.task(&tid)["report"]["value"].clone();
    assert_eq!((&told["tid"], &told["attempt"]), (&json!(tid), &json!(1)));
    assert_eq!(told["spec"]["args"], json!([7, { "a": [null] }, "text"]));
    assert_eq!(told["spec"]["metadata"]["k"], "v");
}

#[test]
fn invalid_handler_output_fails_the_task() {
    let world = with_handler(
        "read task
         case $RADDLE_CASE in
           garbage) echo 'Hello, world'; exec sleep 600 ;;
           silence) ;;
           twice) echo '{\"result\":1}'; echo '{\"result\":2}' ;;
           flood) yes | tr -d '\\n' ;;
           dies) kill -9 $$ ;;
           code) exit 7 ;;
           good) echo '{\"result\":\"fine\"}' ;;
         esac",
    );
    let exit = |case: &str| exit_of(&world, &["--env", &format!("RADDLE_CASE={case}")]);
    let garbled = |case: &str, said: &str| {
        let exit = exit(case);
        assert!(
            exit["kind"] == "protocol_error" && exit["message"].as_str().unwrap().contains(said),
            "{case}: {exit}"
        );
    };
    garbled("garbage", "Hello, world");
    garbled("silence", "without an answer");
    garbled("twice", "answered twice");
    garbled("flood", "more than");
    assert_eq!(exit("dies"), json!({ "kind": "signal", "signal": 9 }));
    assert_eq!(exit("code"), json!({ "kind": "code", "code": 7 }));
    assert_eq!(
        exit("good"),
        json!({ "kind": "code", "code": 0 }),
        "the worker's next task is fine"
    );
}

#[test]
fn stops_a_hanging_handler_after_its_timeout() {
    let world = with_handler("exec sleep 600");
    assert_eq!(
        exit_of(&world, &["--timeout", "300ms"]),
        json!({ "kind": "timeout" })
    );
}

#[test]
fn retries_errors_that_are_not_permanent() {
    let world = with_handler(
        "echo x >> ran; if test $RADDLE_ATTEMPT = 2; then echo '{\"result\":1}'; else echo '{\"error\":\"not yet\"}'; fi",
    );
    let tid = world.submit(&["--handler", "test", "--retry", "3", "--retry-base", "10ms"]);
    world.raddle(["wait", "--timeout", "30", &tid]).ok();
    assert_eq!(world.task(&tid)["attempt"], 2);
    assert_eq!(world.read("ran"), "x\nx\n");
}

#[test]
fn names_handlers_that_cannot_be_used() {
    let world = World::new();
    world
        .raddle(["worker", "start", "--handlers", "nowhere"])
        .code(2)
        .stderr_contains("cannot read the handler directory nowhere");
    world.file("bad.handler.toml", "name = 'x'\ncomand = ['y']");
    world
        .raddle(["worker", "start", "--handlers", "."])
        .code(2)
        .stderr_contains("bad.handler.toml describes no handler");
    std::fs::remove_file(world.path().join("bad.handler.toml")).unwrap();
    handler(&world, "a", "'gpu'", "");
    let allow = ["worker", "start", "--handlers", ".", "--plugins", "b"];
    world
        .raddle(allow)
        .code(2)
        .stderr_contains("there is no handler 'b' to allow: there are a");
}

#[test]
fn a_worker_claims_no_tasks_for_a_handler_that_it_may_not_run() {
    let world = World::new();
    handler(&world, "big", "'gpu'", "echo '{\"result\":1}'");
    let unable = world.worker(&["--handlers", ".", "--concurrency", "1"]);
    let offers = |tid: &str| {
        let workers = world.workers();
        let entry = workers
            .as_array()
            .unwrap()
            .iter()
            .find(|entry| entry["tid"] == tid)
            .unwrap()
            .clone();
        entry["capabilities"]
            .as_array()
            .unwrap()
            .iter()
            .any(|tag| tag.as_str().unwrap().starts_with("@handler:"))
    };
    assert!(!offers(&unable), "{}", world.workers());
    let [named, any] = [["--handler", "big"], ["--handler", "any"]].map(|args| world.submit(&args));
    // It has been at the queue, with both in front of this one.
    let after = world.submit(&["--", "true"]);
    world.raddle(["wait", "--timeout", "30", &after]).ok();
    for tid in [&named, &any] {
        let task = world.task(tid);
        assert_eq!(
            (&task["state"], &task["run_at"]),
            (&json!("created"), &json!(null)),
            "{task}"
        );
    }
    let able = world.worker(&["--handlers", ".", "--caps", "gpu"]);
    assert!(offers(&able), "{}", world.workers());
    for tid in [&named, &any] {
        world.raddle(["wait", "--timeout", "30", tid]).ok();
        let task = world.task(tid);
        assert_eq!(
            (&task["attempt"], &task["worker"]),
            (&json!(1), &json!(able)),
            "{task}"
        );
    }
}

#[test]
fn requeues_a_task_without_a_usable_handler_and_says_why() {
    let world = World::new();
    handler(&world, "small", "'cpu'", "echo '{\"result\":1}'");
    world.worker(&["--handlers", ".", "--caps", "cpu,gpu"]);
    let tid = world.submit(&["--handler", "any", "--requires", "gpu"]);
    wait_until("it went back", || world.task(&tid)["run_at"].is_string());
    let task = world.task(&tid);
    assert_eq!(
        (&task["state"], &task["failures"], &task["losses"]),
        (&json!("created"), &json!(0), &json!(0))
    );
    let why = "no handler fits: 'small' does not provide gpu";
    let explained = world.raddle(["task", "explain", &tid]).ok();
    assert!(
        explained.text().contains(&format!("was released ({why})")),
        "{}",
        explained.text()
    );

    std::fs::create_dir(world.path().join("more")).unwrap();
    handler(
        &world,
        "more/large",
        "'cpu', 'gpu'",
        "echo '{\"result\":2}'",
    );
    let large = "name = 'large'\nprovides = ['cpu', 'gpu']\ncommand = ['sh', 'large.sh']\n";
    world.file("more/large.handler.toml", large);
    world.worker(&["--handlers", "more", "--caps", "cpu,gpu"]);
    // The first may have it once more before.
    world.raddle(["wait", "--timeout", "50", &tid]).ok();
    assert_eq!(world.task(&tid)["report"]["value"], 2);
}

#[test]
fn progress_is_shown_while_it_runs() {
    let world = with_handler(
        "echo '{\"progress\":{\"percent\":10,\"message\":\"begun\"}}'
         echo '{\"progress\":{\"percent\":42.4,\"message\":\"nearly halfway\"}}'
         while ! test -e go; do sleep 0.02; done
         echo '{\"result\":null}'",
    );
    let tid = world.submit(&["--handler", "test"]);
    wait_until("it says how far it is", || {
        world.task(&tid)["progress"]["percent"] == 42.4
    });
    let shown = world.raddle(["task", "status", &tid]).ok();
    assert!(
        shown.text().contains("progress   42 %, nearly halfway\n"),
        "{}",
        shown.text()
    );
    let shown = world.raddle(["status"]).ok();
    assert!(
        shown
            .text()
            .contains(&format!("progress   {tid} test: 42 %, nearly halfway\n")),
        "{}",
        shown.text()
    );
    world.file("go", "");
    world.raddle(["wait", "--timeout", "30", &tid]).ok();
    assert!(world.task(&tid).get("progress").is_none());
}
