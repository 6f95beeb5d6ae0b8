//! `raddle result`, `logs`, `wait`, `tid`, `status` and `task list|status|explain|tree`: what is
//! known.

use crate::{
    shape::{shape, snapshot, without_ids},
    world::{World, wait_until},
};

/// Works off what waits.
fn work_off(world: &World) {
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
}

#[test]
fn result_prints_output_and_exits_with_the_code() {
    let world = World::new();
    let tid = world.submit(&["--", "sh", "-c", "echo out; echo err >&2; exit 9"]);
    world
        .raddle(["result", &tid])
        .code(2)
        .stderr_contains("not finished")
        .stderr_contains("--wait");
    world
        .raddle(["result", "--wait", "--timeout", "0.2", &tid])
        .code(124)
        .stderr_contains("task explain");
    work_off(&world);
    let ran = world.raddle(["result", &tid]).code(9);
    assert_eq!((ran.text(), ran.stderr.as_str()), ("out\n", "err\n"));
    let record = world.raddle(["result", "--json", &tid[9..]]).code(9).json();
    assert_eq!(
        (&record["stdout"], &record["stderr"]),
        (&"out\n".into(), &"err\n".into())
    );
    assert_eq!(
        (&record["state"], &record["exit_code"]),
        (&"failed".into(), &9.into())
    );
}

#[test]
fn wait_ends_with_the_task() {
    let world = World::new();
    world.worker(&[]);
    let tid = world.submit(&["--", "sh", "-c", "sleep 0.3; echo late"]);
    assert_eq!(
        world.raddle(["result", "--wait", &tid]).ok().text(),
        "late\n"
    );
    let tids = world.submit(&["--array", "0-2", "--", "sh", "-c", "exit {}"]);
    let tids: Vec<&str> = tids.lines().collect();
    let ran = world.raddle(["wait"].iter().chain(&tids)).code(1);
    let states: Vec<&str> = ran
        .lines()
        .iter()
        .map(|line| line.split(' ').nth(1).unwrap())
        .collect();
    assert_eq!(states, ["completed", "failed", "failed"]);
    world.raddle(["wait", tids[0]]).ok();
    let records = world.raddle(["wait", "--json", tids[2]]).code(1).json();
    assert_eq!(
        (&records[0]["tid"], &records[0]["exit_code"]),
        (&tids[2].into(), &2.into())
    );
    let slow = world.submit(&["--", "sleep", "600"]);
    world
        .raddle(["wait", "--timeout", "100ms", &slow])
        .code(124);
    let tids_of = |records: serde_json::Value| -> Vec<String> {
        records
            .as_array()
            .unwrap()
            .iter()
            .map(|record| record["tid"].as_str().unwrap().to_owned())
            .collect()
    };
    let ran = world
        .raddle([
            "wait",
            "--json",
            "--timeout",
            "100ms",
            tids[0],
            &slow,
            tids[1],
        ])
        .code(124)
        .stderr_contains(&slow);
    assert_eq!(
        tids_of(ran.json()),
        [tids[0], tids[1]],
        "results that are ready in time are shown"
    );
    let ran = world
        .raddle(["wait", "--timeout", "100ms", &slow, tids[1]])
        .code(124);
    assert_eq!(ran.text(), format!("{} failed\n", tids[1]));
    world
        .raddle(["wait", tids[0], "1000000000000000000"])
        .code(2)
        .stderr_contains("no task 1000000000000000000");
    world.raddle(["task", "kill", &slow]).ok();
}

#[test]
fn logs_show_all_attempts_or_one() {
    let world = World::new();
    let script = "echo out $RADDLE_ATTEMPT; echo err $RADDLE_ATTEMPT >&2; exit 1";
    let waiting = world.submit(&["--requires", "nothing-has-it", "--", "true"]);
    assert_eq!(world.raddle(["logs", &waiting]).ok().text(), "");
    let record = world
        .raddle([
            "run",
            "--json",
            "--retry",
            "1",
            "--retry-base",
            "0",
            "--",
            "sh",
            "-c",
            script,
        ])
        .code(1);
    let tid = record.json()["tid"].as_str().unwrap().to_owned();
    let ran = world.raddle(["logs", &tid]).ok();
    assert_eq!(
        (ran.text(), ran.stderr.as_str()),
        ("out 1\nout 2\n", "err 1\nerr 2\n")
    );
    assert_eq!(
        world
            .raddle(["logs", "--attempt", "1", "--stderr", &tid])
            .ok()
            .text(),
        "err 1\n"
    );
    assert_eq!(world.raddle(["logs", "--stdout", &tid]).ok().stderr, "");
    world
        .raddle(["logs", "--attempt", "3", &tid])
        .code(2)
        .stderr_contains("2 attempts");
    let ran = world
        .raddle(["logs", "--json", "--attempt", "2", &tid])
        .ok();
    assert_eq!(
        ran.lines(),
        [
            r#"{"attempt":2,"stream":"stdout","text":"out 2\n"}"#,
            r#"{"attempt":2,"stream":"stderr","text":"err 2\n"}"#
        ]
    );
}

#[test]
fn logs_follow_a_running_task() {
    let world = World::new();
    world.worker(&[]);
    let tid = world.submit(&[
        "--",
        "sh",
        "-c",
        "echo first; while ! test -e go; do sleep 0.05; done; echo last",
    ]);
    let following = world.start(["logs", "-f", &tid]);
    wait_until("the first line is shown", || {
        following.stdout() == "first\n"
    });
    world.file("go", "");
    assert_eq!(following.finish().ok().text(), "first\nlast\n");
}

#[test]
fn ids_may_be_short() {
    let world = World::new();
    let tid = world.submit(&["--", "true"]);
    let short = &tid[9..];
    assert_eq!(world.raddle(["tid", short]).ok().text().trim(), tid);
    assert_eq!(world.raddle(["tid", &tid]).ok().text().trim(), tid);
    assert_eq!(
        world.raddle(["tid", "--json", short]).ok().json()["tid"],
        tid.as_str()
    );
    assert_eq!(
        world
            .raddle(["task", "status", "--json", short])
            .ok()
            .json()["tid"],
        tid.as_str()
    );
    let other = (short.parse::<u64>().unwrap() + 1) % 10_000_000_000;
    world
        .raddle(["tid", &format!("{other:010}")])
        .code(2)
        .stderr_contains("no task has an id that ends in");
}

#[test]
fn reading_commands_create_no_files() {
    let world = World::new();
    let commands: [&[&str]; 9] = [
        &["status"],
        &["status", "--watch"],
        &["task", "list"],
        &["task", "status", "1000000000000000000"],
        &["task", "tree"],
        &["worker", "list"],
        &["queue", "list"],
        &["queue", "watch", "q"],
        &["logs", "1000000000000000000"],
    ];
    for args in commands {
        world
            .raddle(args)
            .code(2)
            .stderr_contains("no broker at sqlite:")
            .stderr_contains("does not exist")
            .stderr_contains("raddle submit");
    }
    let doctor = world.raddle(["doctor"]).ok();
    assert!(
        doctor.text().contains("warn  broker, database: "),
        "{}",
        doctor.text()
    );
    assert!(!world.path().join(".raddle").exists());
}

#[test]
fn lists_are_filtered() {
    let world = World::new();
    world.raddle(["run", "--name", "good-1", "--", "true"]).ok();
    world
        .raddle(["run", "--name", "bad-1", "--", "false"])
        .code(1);
    world.submit(&["--name", "good-2", "--queue", "q", "--", "true"]);
    let names = |args: &[&str]| -> Vec<String> {
        let tasks = world
            .raddle([&["task", "list", "--json"], args].concat())
            .ok()
            .json();
        tasks
            .as_array()
            .unwrap()
            .iter()
            .map(|task| task["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&[]), ["good-2", "bad-1", "good-1"]);
    assert_eq!(
        names(&["--status", "completed,created"]),
        ["good-2", "good-1"]
    );
    assert_eq!(names(&["--name", "good-*", "--limit", "1"]), ["good-2"]);
    assert_eq!(names(&["--queue", "q"]), ["good-2"]);
    assert_eq!(names(&["--dead"]), ["bad-1"]);
    assert_eq!(
        names(&["state:completed,created", "good"]),
        ["good-2", "good-1"]
    );
    assert_eq!(names(&["state:created took:<1h"]), Vec::<String>::new());
    assert_eq!(names(&["since:-1h", "--queue", "q"]), ["good-2"]);
    world
        .raddle(["task", "list", "state:faild"])
        .code(2)
        .stderr_contains("query, character 7: 'faild' is not possible for state");
    world.worker(&["--name", "w"]);
    assert_eq!(
        (
            names(&["--all", "--name", "w"]).len(),
            names(&["--name", "w"]).len()
        ),
        (1, 0)
    );
    let ran = world
        .raddle(["task", "list", "--limit", "1"])
        .ok()
        .stderr_contains("--limit");
    let header: Vec<&str> = ran.lines()[0].split_whitespace().collect();
    assert_eq!(
        header,
        [
            "TID", "STATE", "TRY", "QUEUE", "AGE", "TOOK", "NAME", "NOTE", "COMMAND"
        ]
    );
    assert_eq!(ran.lines().len(), 2);
    let ran = world.raddle(["task", "list", "--limit", "3"]).ok();
    assert_eq!(
        (ran.lines().len(), ran.stderr.as_str()),
        (4, ""),
        "there are no more than these"
    );
}

#[test]
fn failures_are_grouped_and_retried() {
    let world = World::new();
    for (n, code) in [("1", "3"), ("2", "3"), ("3", "4")] {
        let script = format!("echo no such user {n} >&2; exit {code}");
        world.raddle(["run", "-q", "--name", "job", "--", "sh", "-c", &script]);
    }
    let ran = world.raddle(["failures"]).ok();
    let lines = ran.lines();
    assert_eq!(lines.len(), 3, "{}", ran.text());
    let end = |line: &str| line.contains("exit code 3") && line.contains("no such user #");
    assert!(end(lines[2]) && lines[2].starts_with("2"), "{}", ran.text());
    let json = world.raddle(["failures", "--json", "exit:3"]).ok().json();
    assert_eq!(
        (&json["items"][0]["count"], &json["complete"]),
        (&2.into(), &true.into())
    );
    let retried = world.raddle(["failures", "--retry", "exit:3"]).ok();
    assert_eq!(retried.lines().len(), 2);
    assert_eq!(
        world
            .raddle(["failures", "--retry", "exit:3"])
            .ok()
            .lines()
            .len(),
        0
    );
}

#[test]
fn json_has_a_stable_shape() {
    let world = World::new();
    world.raddle(["run", "--name", "done", "--", "true"]).ok();
    let waiting = world.submit(&["--requires", "gpu", "--name", "waiting", "--", "true"]);
    world.worker(&["--caps", "cpu", "--name", "w", "--concurrency", "2"]);
    let json = |args: &[&str]| {
        shape(
            &world,
            &world.raddle([args, &["--json"]].concat()).ok().json(),
        )
    };
    snapshot!("json_status", json(&["status"]));
    snapshot!("json_task_list", json(&["task", "list"]));
    snapshot!("json_task_explain", json(&["task", "explain", &waiting]));
    snapshot!("json_worker_list", json(&["worker", "list"]));
    snapshot!("json_task_tree", json(&["task", "tree"]));
    snapshot!("json_task_kill", json(&["task", "kill", &waiting]));
    snapshot!("json_worker_stop", json(&["worker", "stop", "--all"]));
    let doctor = world.raddle(["doctor", "--json"]).ok().json();
    assert!(!doctor.to_string().contains("inotify"), "{doctor}");
    let keys: Vec<&String> = doctor.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["checks", "durability", "engine", "location", "ok"]);
}

#[test]
fn explanations_name_the_reason() {
    let world = World::new();
    let explain = |tid: &str| without_ids(world.raddle(["task", "explain", tid]).ok().text());
    let plain = world.submit(&["--", "true"]);
    let gpu = world.submit(&["--requires", "gpu,cpu", "--", "true"]);
    let elsewhere = world.submit(&["--queue", "q", "--", "true"]);
    let later = world.submit(&["--delay", "1h", "--", "true"]);
    assert!(
        explain(&plain).contains("no worker is alive"),
        "{}",
        explain(&plain)
    );
    world.worker(&["--caps", "cpu", "--concurrency", "1"]);
    world.wait_for_state(&plain, "completed");
    assert!(explain(&plain).contains("finished"));
    assert!(explain(&gpu).contains("lacks gpu"), "{}", explain(&gpu));
    assert!(
        explain(&elsewhere).contains("serves the queue 'q'"),
        "{}",
        explain(&elsewhere)
    );
    assert!(
        explain(&later).contains("delayed until"),
        "{}",
        explain(&later)
    );
    world.raddle(["task", "pause", &later]).ok();
    assert!(explain(&later).contains("paused"), "{}", explain(&later));

    let slow = world.submit(&["--", "sleep", "600"]);
    world.wait_for_state(&slow, "running");
    assert!(
        explain(&slow).contains("is running on worker [tid] as process"),
        "{}",
        explain(&slow)
    );
    let queued = world.submit(&["--array", "1-40", "--priority", "1", "--", "true"]);
    let last = queued.lines().last().unwrap();
    wait_until("the worker has told that it is busy", || {
        explain(last).contains("the one able worker is busy")
    });
    assert!(explain(last).contains("waits behind"), "{}", explain(last));
    world.file(
        "boxed.json",
        r#"{"target":{"command":["true"]},"isolation":"docker"}"#,
    );
    let boxed = world.submit(&["--file", "boxed.json"]);
    assert!(
        explain(&boxed).contains("no live worker has an image for that"),
        "{}",
        explain(&boxed)
    );
    assert!(!explain(&boxed).contains("--caps"), "{}", explain(&boxed));
    world.raddle(["task", "kill", &slow]).ok();
}

#[test]
fn notes_that_a_tree_is_cut_off() {
    let world = World::new();
    let oldest = world.submit(&["--name", "oldest", "--", "true"]);
    assert_eq!(world.raddle(["task", "tree"]).ok().stderr, "");
    world
        .raddle(["submit", "--quiet", "--array", "1-10000", "--", "true"])
        .ok();
    let tree = world
        .raddle(["task", "tree"])
        .ok()
        .stderr_contains("more than 10000 tasks")
        .stderr_contains("raddle task list");
    assert_eq!(tree.lines().len(), 10_000);
    let json = world
        .raddle(["task", "tree", "--json"])
        .ok()
        .stderr_contains("more than 10000 tasks");
    assert_eq!(json.json().as_array().unwrap().len(), 10_000);
    let one = world.raddle(["task", "tree", &oldest]).ok();
    assert!(one.text().contains("oldest (created)"), "{}", one.text());
}

#[test]
fn trees_show_workers_with_their_tasks() {
    let world = World::new();
    let worker = world.worker(&["--name", "w"]);
    let parent = world.submit(&[
        "--name",
        "parent",
        "--",
        "sh",
        "-c",
        "raddle run --name child -- sleep 600",
    ]);
    let tree = || without_ids(world.raddle(["task", "tree"]).ok().text());
    wait_until("the child runs", || tree().contains("child (running)"));
    let shown = tree();
    let mut lines = shown
        .lines()
        .skip_while(|line| !line.starts_with("[tid] w (running) "));
    for begins in [
        "[tid] w (running) ",
        "└─ [tid] parent (running) ",
        "   └─ [tid] child (running) ",
    ] {
        let line = lines.next().unwrap_or_default();
        assert!(
            line.starts_with(begins) && line.contains("s cpu, ") && line.ends_with(" MiB"),
            "{shown}"
        );
    }
    let below = world
        .raddle(["task", "tree", "--json", &parent])
        .ok()
        .json();
    assert_eq!(below[0]["children"][0]["name"], "child");
    assert_eq!(
        world.raddle(["task", "tree", &worker]).ok().lines().len(),
        3
    );
    world.raddle(["task", "kill", &parent]).ok();
}

#[test]
fn status_watch_updates_after_an_event() {
    let world = World::new();
    world
        .raddle(["queue", "write", "q", "there is a project"])
        .ok();
    let watching = world.start(["status", "--watch", "--json"]);
    wait_until("it is shown", || watching.stdout().lines().count() == 1);
    world.submit(&["--", "true"]);
    wait_until("it is shown again", || {
        watching
            .stdout()
            .lines()
            .last()
            .is_some_and(|line| line.contains(r#""created":1"#))
    });
    watching.signal(libc::SIGINT);
    assert_ne!(watching.finish().code, 0);
}

#[test]
fn a_list_of_tasks_shows_commands_and_fits_on_a_terminal() {
    let world = World::new();
    let long = "a-word-of-the-command ".repeat(20);
    world.submit(&["--name", "long", "--", "echo", long.trim()]);
    let whole = world.raddle(["task", "list"]).ok();
    assert!(whole.lines()[0].ends_with("  COMMAND"), "{}", whole.text());
    assert!(
        whole.lines()[1].ends_with(&format!("  echo {}", long.trim())),
        "{}",
        whole.text()
    );
    let shown = world
        .bash("TERM=xterm script -qec 'stty cols 100; raddle task list' /dev/null")
        .ok();
    let lines: Vec<&str> = shown
        .text()
        .lines()
        .map(|line| line.trim_end_matches('\r'))
        .collect();
    assert_eq!(
        (lines.len(), lines[1].chars().count()),
        (2, 100),
        "{lines:?}"
    );
    assert!(
        lines[1].contains("  echo a-word") && lines[1].ends_with('…'),
        "{lines:?}"
    );
}

#[test]
fn a_list_fits_a_terminal_and_has_colours_there() {
    let world = World::new();
    world.raddle(["run", "--", "true"]).ok();
    world
        .raddle([
            "run",
            "--",
            "sh",
            "-c",
            "exit 3 # a long comment that does not fit",
        ])
        .code(3);
    let list = |set: &str, columns: u32| {
        let script = format!("{set} script -qec 'stty cols {columns}; raddle task list' /dev/null");
        world.bash(&script).ok().text().replace('\r', "")
    };
    let shown = list("TERM=xterm", 80);
    assert!(
        shown.contains("\u{1b}[32mcompleted\u{1b}[0m")
            && shown.contains("\u{1b}[31mfailed\u{1b}[0m"),
        "{shown:?}"
    );
    for plain in [list("TERM=xterm NO_COLOR=1", 80), list("TERM=dumb", 80)] {
        assert!(!plain.contains('\u{1b}'), "{plain:?}");
        assert_eq!(
            plain.lines().map(|line| line.chars().count()).max(),
            Some(80),
            "{plain}"
        );
    }
    let piped = world.bash("TERM=xterm raddle task list").ok();
    assert!(
        !piped.text().contains('\u{1b}') && piped.text().contains("does not fit"),
        "{}",
        piped.text()
    );
}

#[test]
fn status_watch_ends_with_the_work() {
    let world = World::new();
    world.raddle(["run", "--", "true"]).ok();
    world.submit(&["--array", "1-3", "--", "true"]);
    let watch = world.start(["status", "--watch"]);
    let lines = world.start(["status", "--watch", "--json"]);
    wait_until("it shows what there is to do", || {
        watch.stdout().contains(" 0 of 3 done")
    });
    wait_until("it says so in JSON", || {
        lines.stdout().contains(r#""left":3"#)
    });
    world.worker(&[]);
    let last = watch.finish().ok().text().to_owned();
    assert!(last.trim_end().ends_with(" 3 of 3 done"), "{last}");
    let records = lines.finish().ok();
    let last: serde_json::Value = serde_json::from_str(records.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["work"]["done"], &last["work"]["left"]),
        (&3.into(), &0.into())
    );
}
