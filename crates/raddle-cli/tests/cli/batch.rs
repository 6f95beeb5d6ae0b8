//! Tasks that are submitted, waited for, retried and stopped together.

use serde_json::json;

use crate::world::{World, wait_until};

/// The name of the batch that a submission says.
fn named(stderr: &str) -> String {
    let rest = stderr
        .split_once("batch ")
        .expect("it says what the batch is called")
        .1;
    rest.split_once(':')
        .expect("the name comes first")
        .0
        .to_owned()
}

#[test]
fn a_batch_is_counted_waited_for_and_retried() {
    let world = World::new();
    let ran = world
        .raddle([
            "submit",
            "--array",
            "1-5",
            "--",
            "sh",
            "-c",
            "test {} != 3 || test -e go",
        ])
        .ok();
    let (name, tids) = (named(&ran.stderr), ran.text().to_owned());
    assert_eq!(tids.lines().count(), 5);
    // Neither a task of its own nor another batch counts.
    world.submit(&["--", "true"]);
    world.submit(&["--batch", "other", "--", "true"]);
    let status = world
        .raddle(["batch", "status", "--json", &name])
        .ok()
        .json();
    assert_eq!(
        (&status["tasks"], &status["states"]["created"]),
        (&json!(5), &json!(5))
    );
    world
        .raddle(["batch", "wait", "--timeout", "300ms", &name])
        .code(124)
        .stderr_contains("has 5 tasks unfinished");
    world.worker(&[]);
    let ran = world.raddle(["batch", "wait", &name]).code(1);
    assert_eq!(ran.text(), format!("{name} 4 completed, 1 failed\n"));
    assert_eq!(
        world.raddle(["wait", "--batch", &name]).code(1).text(),
        ran.text()
    );
    assert!(
        world
            .raddle(["batch", "show", &name])
            .ok()
            .text()
            .contains("retry-failed")
    );

    world.file("go", "");
    let again = world.raddle(["batch", "retry-failed", &name]).ok();
    assert_eq!(again.lines().len(), 1);
    assert_eq!(
        world.raddle(["batch", "wait", &name]).ok().text(),
        format!("{name} 5 completed\n")
    );
    world
        .raddle(["batch", "retry-failed", &name])
        .ok()
        .stderr_contains("no task of batch");

    let list = world.raddle(["batch", "list", "--json"]).ok().json();
    let names: Vec<&str> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|batch| batch["batch"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["other", name.as_str()], "the newest first");
    assert_eq!(
        world.raddle(["batch", "wait", "last"]).ok().text(),
        "other 1 completed\n"
    );
    world
        .raddle(["batch", "status", "absent"])
        .code(2)
        .stderr_contains("there is no batch 'absent'");
}

#[test]
fn a_named_batch_grows_with_each_submit() {
    let world = World::new();
    world.file(
        "specs.json",
        r#"[{"target":{"command":["true"]}},{"target":{"command":["true"]},"batch":"mine"}]"#,
    );
    let records = world
        .raddle([
            "submit", "--json", "--batch", "b/1", "--array", "1-2", "--", "true",
        ])
        .ok();
    let record: serde_json::Value = serde_json::from_str(records.lines()[0]).unwrap();
    assert_eq!(
        (&record["batch"], records.stderr.as_str()),
        (&json!("b/1"), "")
    );
    world
        .raddle(["submit", "--batch", "b/1", "--", "true"])
        .ok();
    assert_eq!(
        world
            .raddle(["batch", "status", "--json", "b/1"])
            .ok()
            .json()["tasks"],
        3
    );
    let name = named(&world.raddle(["submit", "--file", "specs.json"]).ok().stderr);
    assert_eq!(
        world
            .raddle(["batch", "status", "--json", &name])
            .ok()
            .json()["tasks"],
        1
    );
    assert_eq!(
        world
            .raddle(["batch", "status", "--json", "mine"])
            .ok()
            .json()["tasks"],
        1
    );
    world
        .raddle(["submit", "--batch", "a b", "--", "true"])
        .code(2)
        .stderr_contains("'batch'");
}

#[test]
fn cancels_all_tasks_of_a_batch() {
    let world = World::new();
    world.worker(&["--concurrency", "1"]);
    world.submit(&["--batch", "b", "--array", "1-50", "--", "sleep", "600"]);
    wait_until("one runs", || {
        world.raddle(["batch", "status", "--json", "b"]).ok().json()["states"]["running"] == 1
    });
    let waiting = world.start(["wait", "--batch", "b"]);
    let ran = world
        .raddle(["batch", "cancel", "b", "--timeout", "30"])
        .ok();
    assert_eq!(ran.text(), "b 50 cancelled\n");
    waiting.finish().code(1);
    assert_eq!(
        world.raddle(["batch", "delete", "b"]).ok().text(),
        "deleted 50 tasks\n"
    );
    world.raddle(["batch", "status", "b"]).code(2);
}

#[test]
fn commands_take_filters_ids_from_standard_input_and_last() {
    let world = World::new();
    let tids = world.submit(&["--array", "1-3", "--name", "frame-{}", "--", "false"]);
    let other = world.submit(&["--name", "other", "--", "false"]);
    assert_eq!(world.raddle(["tid", "last"]).ok().text().trim(), other);
    world.raddle(["task", "pause", "--name", "frame-*"]).ok();
    assert_eq!(
        (
            &world.task(tids.lines().next().unwrap())["paused"],
            &world.task(&other)["paused"]
        ),
        (&json!(true), &json!(false))
    );
    let resumed = world
        .raddle_with_input(&["task", "resume", "-"], tids.as_bytes())
        .ok();
    assert_eq!(resumed.lines().len(), 3);
    world
        .raddle(["task", "stop"])
        .code(2)
        .stderr_contains("no task is selected");
    world
        .raddle(["task", "stop", "--name", "x", &other])
        .code(2);
    world
        .raddle_with_input(&["task", "stop", "-"], b"not an id\n")
        .code(2)
        .stderr_contains("line 1 of standard input");

    world.worker(&[]);
    let all = [tids.as_str(), &other].join("\n");
    world
        .raddle_with_input(&["wait", "-"], all.as_bytes())
        .code(1);
    let again = world
        .raddle(["task", "retry", "--failed", "--name", "frame-*"])
        .ok();
    assert_eq!(again.lines().len(), 3);
    world.raddle(["wait", "last"]).code(1);
    let listed = world
        .raddle(["task", "list", "--json", "--failed", "--name", "other"])
        .ok()
        .json();
    assert_eq!(listed.as_array().unwrap().len(), 1);
}

#[test]
fn deletes_records_of_finished_tasks() {
    let world = World::new();
    let waiting = world.submit(&["--queue", "aside", "--", "true"]);
    world
        .raddle([
            "run",
            "--name",
            "good",
            "--",
            "head",
            "-c",
            "100000",
            "/dev/zero",
        ])
        .ok();
    world.raddle(["run", "--name", "good", "--", "true"]).ok();
    for _ in 0..2 {
        world
            .raddle(["run", "--name", "bad", "--", "false"])
            .code(1);
    }
    world
        .raddle(["task", "delete", &waiting])
        .code(2)
        .stderr_contains("is created, and cannot be deleted");
    let left = || {
        world
            .raddle(["task", "list", "--json"])
            .ok()
            .json()
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(
        (world.raddle(["task", "delete", "last"]).ok().text(), left()),
        ("deleted 1 task\n", 4)
    );
    assert_eq!(
        world
            .raddle(["task", "clean", "--older-than", "1h"])
            .ok()
            .text(),
        "deleted 0 tasks\n"
    );
    assert_eq!(
        world.raddle(["task", "clean"]).ok().text(),
        "deleted 2 tasks\n",
        "a dead letter is kept"
    );
    assert_eq!(
        world
            .raddle(["task", "clean", "--dead", "--json"])
            .ok()
            .json(),
        json!({ "deleted": 1 })
    );
    assert_eq!(left(), 1, "waiting tasks stay");
    let files = std::fs::read_dir(world.path().join(".raddle/output")).map_or(0, Iterator::count);
    assert_eq!(files, 0, "long output goes with its record");
}

#[test]
fn run_each_line_runs_tasks_in_this_process_some_at_a_time() {
    let world = World::new();
    world.file("lines", "a\n\nb\nc\nd\n");
    world.bash("ONLY=worker raddle worker start").ok();
    // Each waits for another, so that two have to run at a time.
    let script = "touch at-$RADDLE_ITEM; echo out $RADDLE_ITEM {} ${ONLY-mine}; echo err >&2
                  case {} in a) until test -e at-b; do sleep 0.02; done;; b) until test -e at-a; do sleep 0.02; done;; esac
                  test {} != c";
    let ran = world
        .raddle([
            "run",
            "--each-line",
            "lines",
            "--jobs",
            "2",
            "--",
            "sh",
            "-c",
            script,
        ])
        .code(1);
    let mut lines = ran.lines();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "out a a mine",
            "out b b mine",
            "out c c mine",
            "out d d mine"
        ]
    );
    let ran = ran.stderr_contains("for 'c' is failed: exit code 1");
    assert_eq!(ran.stderr.matches("err\n").count(), 4);
    let status = world.raddle(["batch", "status", "--json"]).ok().json();
    assert_eq!(
        (&status["states"]["completed"], &status["states"]["failed"]),
        (&json!(3), &json!(1))
    );

    let records = world
        .raddle_with_input(
            &["run", "--json", "--each-line", "-", "--", "echo", "{}"],
            b"1\n2\n",
        )
        .ok();
    let mut shown: Vec<String> = records
        .lines()
        .into_iter()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["stdout"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    shown.sort_unstable();
    assert_eq!(shown, ["1\n", "2\n"]);
    world
        .raddle(["run", "--array", "1-2", "--requires", "gpu", "--", "true"])
        .code(2)
        .stderr_contains("raddle batch wait");
    world.raddle(["run", "--jobs", "2", "--", "true"]).code(2);
}

#[test]
fn an_interrupt_stops_all_tasks_of_run_each_line() {
    let world = World::new();
    let started = world.start([
        "run",
        "--array",
        "1-20",
        "-j",
        "2",
        "--batch",
        "b",
        "--",
        "sh",
        "-c",
        "touch begun; sleep 600",
    ]);
    wait_until("one runs", || world.path().join("begun").exists());
    started.signal(libc::SIGINT);
    started
        .finish()
        .code(130)
        .stderr_contains("stopping batch b");
    let states = world.raddle(["batch", "status", "--json", "b"]).ok().json()["states"].clone();
    assert_eq!(states["cancelled"], 20, "{states}");
    assert!(world.workers().as_array().unwrap().is_empty());
}

#[test]
fn run_array_gives_piped_stdin_to_every_task() {
    let world = World::new();
    world.file("lines", "x\n");
    let run = |args: &[&str]| {
        let ran = world.raddle_with_input(
            &[&["run"], args, &["--", "sh", "-c", "echo {} $(cat)"]].concat(),
            b"in\n",
        );
        let mut lines: Vec<String> = ran.ok().lines().into_iter().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(run(&["--array", "1-2"]), ["1 in", "2 in"]);
    assert_eq!(run(&["--each-line", "lines"]), ["x in"]);
    assert_eq!(run(&["--each-line", "-"]), ["in"], "the lines are no input");
}

#[test]
fn a_worker_runs_retried_tasks_of_run_each_line() {
    let world = World::new();
    world
        .raddle([
            "run", "--array", "1-2", "--batch", "b", "--", "test", "-e", "go",
        ])
        .code(1);
    world.file("go", "");
    world.worker(&[]);
    assert_eq!(
        world
            .raddle(["batch", "retry-failed", "b"])
            .ok()
            .lines()
            .len(),
        2
    );
    assert_eq!(
        world
            .raddle(["batch", "wait", "--timeout", "20s", "b"])
            .ok()
            .text(),
        "b 2 completed\n"
    );
}
