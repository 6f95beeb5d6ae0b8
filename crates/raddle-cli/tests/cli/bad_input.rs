//! Invalid input is refused with the problem and the fix.

use std::fs;

use crate::world::World;

#[test]
fn names_the_path_of_a_wrong_key_in_a_spec() {
    let world = World::new();
    let cases = [
        (
            r#"{"target":{"command":["true"]},"limits":{"memory":1}}"#,
            "'limits.memory'",
        ),
        (r#"{"target":{"command":["true"]},"colour":1}"#, "'colour'"),
        (
            r#"{"target":{"command":["true"]},"priority":"high"}"#,
            "'priority'",
        ),
        (r#"{"target":{"command":"true"}}"#, "'target"),
        (r#"{"target":{"command":[]}}"#, "'target.command'"),
        (r#"{"target":{"command":[""]}}"#, "'target.command'"),
        (r#"{"target":{"command":["a\u0000b"]}}"#, "NUL"),
        (
            r#"{"target":{"command":["true"]},"env":{"A":"\u0000"}}"#,
            "'env'",
        ),
        (
            r#"{"target":{"command":["true"]},"priority":10}"#,
            "'priority'",
        ),
        (
            r#"{"target":{"command":["true"]},"timeout":0}"#,
            "'timeout'",
        ),
        (r#"{"target":{"service":"worker"}}"#, "target.service"),
        (
            r#"{"target":{"cmd":["true"]}}"#,
            "expected one of `command`, `routine`, `handler` at",
        ),
        (
            r#"{"target":{"command":["true"]},"requires":["@sandbox"]}"#,
            "'requires': tags that begin with @",
        ),
        (r#"{"name":"x"}"#, "target"),
        ("{", "EOF"),
        ("", "EOF"),
        ("[1]", "number 1 of the array"),
    ];
    for (text, path) in cases {
        let file = world.file("spec.json", text);
        let ran = world
            .raddle(["submit", "--file", file.to_str().unwrap()])
            .code(2)
            .stderr_contains("spec.json")
            .stderr_contains(path);
        assert!(ran.stdout.is_empty(), "{text}");
    }
    world.file(
        "spec.toml",
        "target = { command = ['true'] }\n[retry]\nattempts = 'many'\n",
    );
    world
        .raddle(["submit", "--file", "spec.toml"])
        .code(2)
        .stderr_contains("'retry.attempts'");
    world.file("nul.json", b"{\"target\":{\"command\":[\"a\0b\"]}}");
    world
        .raddle(["submit", "--file", "nul.json"])
        .code(2)
        .stderr_contains("nul.json");
    world.file("latin.json", b"{\"name\":\"\xe9\"}");
    world
        .raddle(["submit", "--file", "latin.json"])
        .code(2)
        .stderr_contains("not UTF-8");
    world
        .raddle(["submit", "--file", "absent.json"])
        .code(2)
        .stderr_contains("cannot read absent.json");
    assert!(!world.path().join(".raddle").exists(), "nothing was stored");
}

#[test]
fn exit_codes_distinguish_missing_from_unexecutable_programs() {
    let world = World::new();
    world
        .raddle(["run", "--", "no-such-program"])
        .code(127)
        .stderr_contains("raddle: command not found: no-such-program");
    world.file("plain", "no program");
    world
        .raddle(["run", "--", "./plain"])
        .code(126)
        .stderr_contains("./plain");
    world.raddle(["run", "--", "/"]).code(126);
    world
        .raddle(["run", "--cwd", "absent", "--", "true"])
        .code(125)
        .stderr_contains("absent");
    world
        .raddle(["run", "--", ""])
        .code(2)
        .stderr_contains("names no program");
}

#[test]
fn refuses_arguments_that_are_not_utf8() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let world = World::new();
    let odd = OsStr::from_bytes(b"caf\xe9");
    world
        .raddle([OsStr::new("run"), OsStr::new("--"), OsStr::new("echo"), odd])
        .code(2)
        .stderr_contains("UTF-8");
    world.raddle([OsStr::new("tid"), odd]).code(2);
    assert!(!world.path().join(".raddle").exists());
}

#[test]
fn a_name_with_shell_characters_is_only_a_name() {
    let world = World::new();
    let name = "a; touch harm $(touch harm) `touch harm` \u{1f9f5} 'x' \"y\"";
    let tid = world.submit(&[
        "--name",
        name,
        "--",
        "sh",
        "-c",
        "cat /proc/$PPID/cmdline | tr '\\0' ' '",
    ]);
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
    let title = world.raddle(["result", &tid]).ok().text().to_owned();
    assert!(
        title.starts_with(&format!("raddle-{}:a__touch_harm_", &tid[9..])),
        "{title}"
    );
    assert!(
        !title
            .trim()
            .contains(|c: char| !c.is_ascii_alphanumeric() && !"-_.: ".contains(c)),
        "{title}"
    );
    assert_eq!(world.task(&tid)["name"], name);
    assert!(
        world
            .raddle(["task", "list"])
            .ok()
            .text()
            .contains("touch harm")
    );
    assert!(!world.path().join("harm").exists());
    world
        .raddle(["run", "--name", "two\nlines", "--", "true"])
        .code(2)
        .stderr_contains("control character");
    world
        .raddle(["run", "--name", "", "--", "true"])
        .code(2)
        .stderr_contains("'name'");
}

#[test]
fn refuses_malformed_and_unknown_ids() {
    let world = World::new();
    world.submit(&["--", "true"]);
    world.submit(&["--", "true"]);
    let bad = [
        "",
        "abc",
        "123",
        "12345678901234567890",
        "-1234567890",
        "0000000000000000000",
        "１２３４５６７８９０",
        "1e18",
    ];
    let commands: [&[&str]; 6] = [
        &["tid"],
        &["result"],
        &["logs"],
        &["wait"],
        &["task", "status"],
        &["task", "kill"],
    ];
    for command in commands {
        for tid in bad {
            let ran = world.raddle([command, &["--", tid]].concat()).code(2);
            assert!(
                ran.stderr.contains("not a task id"),
                "{command:?} {tid}: {}",
                ran.stderr
            );
        }
        world
            .raddle([command, &["0000000001"]].concat())
            .code(2)
            .stderr_contains("no task has an id that ends in 0000000001");
        world
            .raddle([command, &["1000000000000000001"]].concat())
            .code(2)
            .stderr_contains("no task 1000000000000000001");
    }
}

#[test]
fn a_project_file_sets_the_broker() {
    let world = World::new();
    world.file("raddle.toml", "queue_url = 'sqlite:work.db'\n");
    fs::create_dir(world.path().join("below")).unwrap();
    let ran = world.bash("cd below && raddle run -- pwd").ok();
    assert!(ran.text().trim().ends_with("/below"));
    assert!(world.path().join("work.db").exists() && !world.path().join("below/.raddle").exists());
    let ran = world
        .bash("cd below && QUEUE_URL=sqlite:here.db raddle submit -- true && raddle status --json")
        .ok();
    assert!(ran.text().contains("work.db") && world.path().join("below/here.db").exists());
    world.file("raddle.toml", "queue = 1\n");
    world
        .raddle(["status"])
        .code(2)
        .stderr_contains("raddle.toml")
        .stderr_contains("queue");
}

#[test]
fn a_broker_in_memory_is_refused_where_processes_share_it() {
    let world = World::new();
    let ran = world
        .raddle(["run", "--queue-url", "mem://", "--", "echo", "hello"])
        .ok();
    assert_eq!(ran.text(), "hello\n");
    let others: [&[&str]; 16] = [
        &["submit", "--", "true"],
        &["run", "--no-wait", "--", "true"],
        &["worker", "start"],
        &["worker", "list"],
        &["worker", "stop", "--all"],
        &["status"],
        &["status", "--watch"],
        &["wait", "1000000000000000000"],
        &["result", "1000000000000000000"],
        &["logs", "1000000000000000000"],
        &["tid", "1000000000000000000"],
        &["task", "list"],
        &["task", "retry", "--all-dead"],
        &["queue", "write", "q", "x"],
        &["queue", "watch", "q"],
        &["queue", "list"],
    ];
    for command in others {
        let ran = world
            .raddle([&["--queue-url", "mem://"], command].concat())
            .code(2)
            .stderr_contains("mem:// exists only in one process");
        assert!(ran.stdout.is_empty(), "{command:?}: {ran:?}");
    }
    world.raddle(["--queue-url", "mem://", "doctor"]).ok();
    assert!(!world.path().join(".raddle").exists());
}

#[test]
fn refuses_reserved_tags_in_flags() {
    let world = World::new();
    let refusal = "tags that begin with @ are given by Raddle itself";
    world
        .raddle(["worker", "start", "--caps", "gpu,@sandbox"])
        .code(2)
        .stderr_contains(refusal);
    world
        .bash("WORKER_CAPS=@docker raddle worker start")
        .code(2)
        .stderr_contains(refusal);
    world
        .raddle(["submit", "--requires", "@x", "--", "true"])
        .code(2)
        .stderr_contains(refusal);
    world
        .raddle(["run", "--requires", "@x", "--", "true"])
        .code(2)
        .stderr_contains(refusal);
    assert!(!world.path().join(".raddle").exists(), "nothing was stored");
}

#[test]
fn errors_of_flags_show_valid_values() {
    let world = World::new();
    let wrong = [
        ("--memory", "lots", "512, 512M, 2G"),
        ("--memory", "1t", "512, 512M, 2G"),
        ("--cpu", "half", "200 for two cores"),
        ("--run-at", "tomorrow", "2026-11-30T08:00:00Z"),
    ];
    for (flag, value, form) in wrong {
        world
            .raddle(["submit", flag, value, "--", "true"])
            .code(2)
            .stderr_contains(flag)
            .stderr_contains(form);
    }
    let spec =
        &world.task(&world.submit(&["--memory", "1g", "--cpu", "50%", "--", "true"]))["spec"];
    assert_eq!(
        (&spec["limits"]["memory_mb"], &spec["limits"]["cpu_percent"]),
        (&1024.into(), &50.into())
    );
}

#[test]
fn a_mistyped_flag_is_not_the_name_of_a_program() {
    let world = World::new();
    world
        .raddle(["run", "--time", "3", "--", "true"])
        .code(2)
        .stderr_contains("'--time'");
    world
        .raddle(["submit", "--delayy", "3", "--", "true"])
        .code(2)
        .stderr_contains("'--delayy'");
    world
        .raddle(["run", "-x", "true"])
        .code(2)
        .stderr_contains("'-x'");
    assert!(!world.path().join(".raddle").exists(), "nothing was stored");
    assert_eq!(world.raddle(["run", "echo", "-n", "hi"]).ok().text(), "hi");
    assert_eq!(
        world
            .raddle(["run", "--", "echo", "--json", "--", "-x"])
            .ok()
            .text(),
        "--json -- -x\n"
    );
    assert_eq!(
        world.raddle(["run", "echo", "--", "x"]).ok().text(),
        "-- x\n"
    );
    let command =
        &world.task(&world.submit(&["--", "-odd", "--file"]))["spec"]["target"]["command"];
    assert_eq!(*command, serde_json::json!(["-odd", "--file"]));
}

/// The kernel refuses it, and not the runner by never coming to an end.
#[test]
fn refuses_more_environment_than_the_kernel_takes() {
    let world = World::new();
    let env: serde_json::Map<_, _> = (0..150_000)
        .map(|n| (format!("VARIABLE_{n}"), "x".into()))
        .collect();
    let spec = serde_json::json!({ "target": { "command": ["true"] }, "timeout": 2, "env": env });
    let path = world.file("spec.json", spec.to_string());
    let tid = world.submit(&["--file", path.to_str().unwrap()]);
    world.worker(&["--concurrency", "1"]);
    world.raddle(["wait", "--timeout", "40", &tid]).code(1);
    let exit = &world.task(&tid)["report"]["exit"];
    assert!(
        exit["message"]
            .as_str()
            .unwrap()
            .contains("Argument list too long"),
        "{exit}"
    );
}

#[test]
fn every_bad_finding_of_doctor_has_a_fix() {
    let world = World::new();
    world.file("broken.db", "no database");
    world.file("groups.toml", "[process.a]\nnonsense = 1\n");
    let wrong = "export DOCKER_HOST=unix:///nowhere/docker.sock WORKER_TASK_IMAGE=some/image:1
                 ulimit -n 512; raddle --queue-url sqlite:$PWD/broken.db doctor --json -f groups.toml";
    let report = world.bash(wrong).code(1).json();
    let bad: Vec<_> = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["ok"] == false)
        .collect();
    let names: Vec<_> = bad
        .iter()
        .map(|check| check["name"].as_str().unwrap())
        .collect();
    for name in ["database", "raddle.toml", "open files"] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    assert!(
        !cfg!(feature = "docker")
            || ["docker engine", "docker"]
                .iter()
                .all(|name| names.contains(name)),
        "{names:?}"
    );
    for check in bad {
        assert!(
            check["fix"].as_str().is_some_and(|fix| !fix.is_empty()),
            "{check}"
        );
    }
}

#[test]
fn errors_are_json_with_the_json_flag() {
    let world = World::new();
    let error = |args: &[&str], code: i32| {
        let ran = world.raddle(args).code(code);
        let error: serde_json::Value =
            serde_json::from_str(ran.stderr.lines().last().unwrap()).unwrap();
        assert_eq!(
            (&error["exit_code"], ran.text()),
            (&code.into(), ""),
            "{args:?}"
        );
        (
            error["error"].as_str().unwrap().to_owned(),
            error["hint"].clone(),
        )
    };
    let (text, hint) = error(&["--json", "status"], 2);
    assert!(
        text.contains("no broker at") && hint.as_str().unwrap().contains("raddle submit"),
        "{text} {hint}"
    );
    let tid = world.submit(&["--", "true"]);
    let (text, hint) = error(&["result", "--json", &tid], 2);
    assert_eq!(
        (text, hint),
        (
            format!("task {tid} is not finished, but created"),
            "wait for it with --wait, or see 'raddle task explain'".into()
        )
    );
    let (text, _) = error(&["task", "list", "--json", "--limit", "x"], 2);
    assert!(text.starts_with("invalid value 'x'"), "{text}");
    error(
        &["result", "--wait", "--json", "--timeout", "10ms", "last"],
        124,
    );
    // Arguments behind the command belong to the task.
    world
        .raddle(["run", "--nonsense", "--", "echo", "--json"])
        .code(2)
        .stderr_contains("error: unexpected argument");
}

#[test]
fn nouns_have_the_same_verbs() {
    let world = World::new();
    for (noun, verbs) in [
        ("task", &["list", "show", "stop", "delete"][..]),
        ("batch", &["list", "show", "stop", "delete"]),
        ("worker", &["start", "stop", "list"]),
        ("manager", &["start", "stop", "list", "show"]),
        ("group", &["start", "stop", "list", "delete"]),
        ("schedule", &["start", "list", "show", "delete"]),
        ("queue", &["list", "show", "delete"]),
        ("spawner", &["start"]),
        ("metrics", &["start"]),
    ] {
        for verb in verbs {
            world.raddle([noun, verb, "--help"]).ok();
        }
    }
}
