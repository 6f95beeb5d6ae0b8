//! `raddle submit`: one, and many.

use crate::world::{World, wait_until};

#[test]
fn one_task_gives_one_id() {
    let world = World::new();
    let tid = world.submit(&[
        "--name",
        "n",
        "--priority",
        "7",
        "--requires",
        "b,a",
        "--queue",
        "q",
        "--",
        "true",
    ]);
    let task = world.task(&tid);
    assert_eq!(
        (&task["state"], &task["name"]),
        (&"created".into(), &"n".into())
    );
    let spec = &task["spec"];
    assert_eq!(
        (&spec["priority"], &spec["queue"]),
        (&7.into(), &"q".into())
    );
    assert_eq!(spec["requires"], serde_json::json!(["a", "b"]));
    let record = world.raddle(["submit", "--json", "--", "true"]).ok().json();
    assert_eq!(record["existing"], false);
    assert!(
        record["tid"]
            .as_str()
            .unwrap()
            .ends_with(record["short"].as_str().unwrap())
    );
}

/// A terminal shows the progress. Other outputs do not.
#[test]
fn many_tasks_show_their_progress_on_a_terminal() {
    let world = World::new();
    let submit = "raddle submit --array 1-3000 -- true > ids";
    let shown = world
        .bash(&format!(
            "TERM=xterm script -qec 'stty cols 100; {submit}' /dev/null; wc -l < ids"
        ))
        .ok();
    for part in [" 1000/3000 submitted, ", " 3000/3000 submitted, "] {
        assert!(shown.text().contains(part), "{}", shown.text());
    }
    // Nothing of it is left on its line.
    let left = shown.text().rsplit("\r\u{1b}[2K").next().unwrap();
    assert!(
        left.starts_with("raddle: batch ") && left.ends_with("\n3000\n"),
        "{:?}",
        shown.text()
    );
    for (submit, lines) in [
        ("raddle submit --array 1-3000", 1),
        ("raddle submit --array 1-3000 --quiet", 0),
    ] {
        assert_eq!(
            world
                .bash(&format!("{submit} -- true > ids"))
                .ok()
                .stderr
                .lines()
                .count(),
            lines,
            "{submit}"
        );
    }
}

#[test]
fn every_flag_finds_its_key() {
    let world = World::new();
    let flags = "--timeout 1m --memory 64 --cpu 50 --max-fds 32 --max-procs 8 --retry 2 --backoff linear --retry-base 2 \
                 --retry-max 9 --unique-key u --kind k --result-ttl 1h --on-stop keep --on-error clear \
                 --run-at 2030-01-02T03:04:05Z --meta a=b";
    let flags: Vec<&str> = flags.split_whitespace().chain(["--", "true"]).collect();
    let mut spec = world.task(&world.submit(&flags))["spec"].clone();
    spec.as_object_mut().unwrap().remove("cwd");
    assert_eq!(
        spec,
        serde_json::json!({
            "target": { "command": ["true"] }, "timeout": 60, "result_ttl": 3600, "run_at": "2030-01-02T03:04:05Z",
            "limits": { "memory_mb": 64, "cpu_percent": 50, "max_fds": 32, "max_procs": 8 },
            "retry": { "attempts": 3, "backoff": "linear", "base": 2, "max": 9, "jitter": 0.1 },
            "unique_key": "u", "kind": "k", "on_stop": "keep", "on_error": "clear", "metadata": { "a": "b" },
        })
    );
}

#[test]
fn a_key_is_unique_while_its_task_is_unfinished() {
    let world = World::new();
    let first = world.submit(&["--unique-key", "k", "--", "echo", "1"]);
    let again = world
        .raddle(["submit", "--unique-key", "k", "--", "echo", "2"])
        .ok()
        .stderr_contains("already has this key");
    assert_eq!(again.text().trim(), first);
    let ran = world
        .raddle(["run", "--unique-key", "k", "--", "echo", "3"])
        .ok();
    assert_eq!(ran.text(), "1\n", "the first one is run and followed");
    assert_ne!(world.submit(&["--unique-key", "k", "--", "true"]), first);
}

#[test]
fn run_follows_the_task_that_has_the_key() {
    let world = World::new();
    // The run could run what is asked for here itself, but not the task that has the key.
    world.submit(&["--unique-key", "k", "--requires", "gpu", "--", "echo", "1"]);
    let run = world.start(["run", "--unique-key", "k", "--", "echo", "2"]);
    wait_until("it says what is missing", || {
        run.stderr().contains(" waits: ")
    });
    world.worker(&["--caps", "gpu"]);
    assert_eq!(
        run.finish()
            .ok()
            .stderr_contains("following that task")
            .text(),
        "1\n"
    );
}

#[test]
fn specs_are_read_from_files() {
    let world = World::new();
    world.file(
        "s.toml",
        "name = 'from toml'\npriority = 2\n[target]\ncommand = ['echo', 'toml']\n",
    );
    world.file(
        "s.json",
        r#"{"name":"from json","target":{"command":["echo","json"]}}"#,
    );
    world.file(
        "many.json",
        r#"[{"target":{"command":["true"]}},{"target":{"command":["false"]}}]"#,
    );
    let task = world.task(&world.submit(&["--file", "s.toml", "--priority", "8"]));
    assert_eq!(
        (&task["name"], &task["spec"]["priority"]),
        (&"from toml".into(), &8.into())
    );
    let task = world.task(&world.submit(&["--file", "s.json"]));
    assert_eq!(task["spec"]["target"]["command"][1], "json");
    assert_eq!(world.submit(&["--file", "many.json"]).lines().count(), 2);
    let spec = br#"{"target":{"command":["echo","stdin"]}}"#;
    let tid = world
        .raddle_with_input(&["submit", "--file", "-"], spec)
        .ok()
        .text()
        .trim()
        .to_owned();
    assert_eq!(world.task(&tid)["spec"]["target"]["command"][1], "stdin");
}

#[test]
fn each_number_and_each_line_is_a_task() {
    let world = World::new();
    let tids = world.submit(&[
        "--array",
        "1-3,7",
        "--name",
        "n-{}",
        "--",
        "sh",
        "-c",
        "echo {} {} $RADDLE_ITEM",
    ]);
    let tids: Vec<&str> = tids.lines().collect();
    world
        .raddle(["worker", "start", "--no-detach", "--idle-exit", "0", "-q"])
        .ok();
    assert_eq!(world.raddle(["result", tids[3]]).ok().text(), "7 7 7\n");
    assert_eq!(world.task(tids[0])["name"], "n-1");

    world.file("lines", "one two\n\n$(echo three)\n");
    let tids = world.submit(&["--each-line", "lines", "--", "printf", "%s", "{}"]);
    world
        .raddle(["worker", "start", "--no-detach", "--idle-exit", "0", "-q"])
        .ok();
    let results: Vec<String> = tids
        .lines()
        .map(|tid| world.raddle(["result", tid]).ok().text().to_owned())
        .collect();
    assert_eq!(results, ["one two", "$(echo three)"]);
    let ran = world
        .raddle_with_input(
            &["submit", "--each-line", "-", "--", "echo", "{}"],
            b"a\nb\nc",
        )
        .ok();
    assert_eq!(ran.lines().len(), 3);
    let ran = world.raddle_with_input(
        &["submit", "--each-line", "-", "--", "echo", "{}"],
        b"a\n\xff\n",
    );
    ran.code(2).stderr_contains("line 2 of standard input");
}

#[test]
fn thousands_are_submitted_in_groups() {
    let world = World::new();
    let ran = world
        .raddle(["submit", "--quiet", "--array", "1-2500", "--", "true"])
        .ok();
    assert_eq!((ran.lines().len(), ran.stderr.as_str()), (2500, ""));
    assert_eq!(
        world.raddle(["status", "--json"]).ok().json()["tasks"]["created"],
        2500
    );
}

#[test]
fn submits_all_tasks_even_if_stdout_is_closed() {
    let world = World::new();
    let ran = world
        .bash("raddle submit -q --array 1-3500 -- true | head -1 | wc -l; echo ${PIPESTATUS[0]}")
        .ok();
    assert_eq!((ran.text(), ran.stderr.as_str()), ("1\n0\n", ""));
    assert_eq!(
        world.raddle(["status", "--json"]).ok().json()["tasks"]["created"],
        3500
    );
    // Ids that are lost are another matter: who was to keep them thinks that they are kept.
    let full = world
        .bash("raddle submit --array 1-3500 -- true > /dev/full")
        .code(125);
    full.stderr_contains("only the first 1000 tasks were submitted");
    assert_eq!(
        world.raddle(["status", "--json"]).ok().json()["tasks"]["created"],
        4500
    );
}

#[test]
fn a_submitter_killed_midway_leaves_whole_groups() {
    let world = World::new();
    let started = world.start(["submit", "--array", "1-100000", "--", "true"]);
    wait_until("the first group is stored", || {
        started.stdout().lines().count() >= 1000
    });
    started.signal(libc::SIGKILL);
    let printed = started.finish().code(137).text().lines().count() as u64;
    let stored = world.raddle(["status", "--json"]).ok().json()["tasks"]["created"]
        .as_u64()
        .unwrap();
    assert_eq!(stored % 1000, 0, "{stored} are stored");
    assert!(
        stored >= printed,
        "{printed} were printed and {stored} are stored"
    );
}

/// However many there are, and however large: neither side has to hold them all.
#[test]
fn stores_large_tasks_in_small_groups() {
    let world = World::new();
    world.file("input", "x".repeat(2 << 20));
    // All together are 80 MiB, and would be held several times over.
    let ran = world
        .bash("ulimit -d 120000; raddle submit --array 1-40 --stdin -- wc -c < input")
        .ok();
    assert_eq!(ran.lines().len(), 40);
}
