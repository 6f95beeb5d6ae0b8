//! What cannot be run is refused with what is wrong and what to do.

use std::fs;

use crate::world::World;

#[test]
fn a_wrong_spec_is_named_with_the_path_of_its_key() {
    let world = World::new();
    let cases = [
        (r#"{"target":{"command":["true"]},"limits":{"memory":1}}"#, "'limits.memory'"),
        (r#"{"target":{"command":["true"]},"colour":1}"#, "'colour'"),
        (r#"{"target":{"command":["true"]},"priority":"high"}"#, "'priority'"),
        (r#"{"target":{"command":"true"}}"#, "'target"),
        (r#"{"target":{"command":[]}}"#, "'target.command'"),
        (r#"{"target":{"command":[""]}}"#, "'target.command'"),
        (r#"{"target":{"command":["a\u0000b"]}}"#, "NUL"),
        (r#"{"target":{"command":["true"]},"env":{"A":"\u0000"}}"#, "'env'"),
        (r#"{"target":{"command":["true"]},"priority":10}"#, "'priority'"),
        (r#"{"target":{"command":["true"]},"timeout":0}"#, "'timeout'"),
        (r#"{"target":{"service":"worker"}}"#, "target.service"),
        (r#"{"name":"x"}"#, "target"),
        ("{", "EOF"),
        ("", "EOF"),
        ("[1]", "number 1 of the array"),
    ];
    for (text, path) in cases {
        let file = world.file("spec.json", text);
        let ran = world.raddle(["submit", "--file", file.to_str().unwrap()]).code(2).says("spec.json").says(path);
        assert!(ran.stdout.is_empty(), "{text}");
    }
    world.file("spec.toml", "target = { command = ['true'] }\n[retry]\nattempts = 'many'\n");
    world.raddle(["submit", "--file", "spec.toml"]).code(2).says("'retry.attempts'");
    world.file("nul.json", b"{\"target\":{\"command\":[\"a\0b\"]}}");
    world.raddle(["submit", "--file", "nul.json"]).code(2).says("nul.json");
    world.file("latin.json", b"{\"name\":\"\xe9\"}");
    world.raddle(["submit", "--file", "latin.json"]).code(2).says("not UTF-8");
    world.raddle(["submit", "--file", "absent.json"]).code(2).says("cannot read absent.json");
    assert!(!world.path().join(".raddle").exists(), "nothing was stored");
}

#[test]
fn programs_that_cannot_be_started_are_told_apart() {
    let world = World::new();
    world.raddle(["run", "--", "no-such-program"]).code(127).says("raddle: command not found: no-such-program");
    world.file("plain", "no program");
    world.raddle(["run", "--", "./plain"]).code(126).says("./plain");
    world.raddle(["run", "--", "/"]).code(126);
    world.raddle(["run", "--cwd", "absent", "--", "true"]).code(125).says("absent");
    world.raddle(["run", "--", ""]).code(2).says("names no program");
}

#[test]
fn arguments_that_are_not_text_are_refused() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let world = World::new();
    let odd = OsStr::from_bytes(b"caf\xe9");
    world.raddle([OsStr::new("run"), OsStr::new("--"), OsStr::new("echo"), odd]).code(2).says("UTF-8");
    world.raddle([OsStr::new("tid"), odd]).code(2);
    assert!(!world.path().join(".raddle").exists());
}

#[test]
fn a_name_with_shell_characters_harms_nobody() {
    let world = World::new();
    let name = "a; touch harm $(touch harm) `touch harm` \u{1f9f5} 'x' \"y\"";
    let tid = world.submit(&["--name", name, "--", "sh", "-c", "cat /proc/$PPID/cmdline | tr '\\0' ' '"]);
    world.raddle(["worker", "start", "--no-detach", "--idle-exit", "0", "--quiet"]).ok();
    let title = world.raddle(["result", &tid]).ok().text().to_owned();
    assert!(title.starts_with(&format!("raddle-{}:a__touch_harm_", &tid[9..])), "{title}");
    assert!(!title.trim().contains(|c: char| !c.is_ascii_alphanumeric() && !"-_.: ".contains(c)), "{title}");
    assert_eq!(world.task(&tid)["name"], name);
    assert!(world.raddle(["task", "list"]).ok().text().contains("touch harm"));
    assert!(!world.path().join("harm").exists());
    world.raddle(["run", "--name", "two\nlines", "--", "true"]).code(2).says("control character");
    world.raddle(["run", "--name", "", "--", "true"]).code(2).says("'name'");
}

#[test]
fn bad_ids_are_refused() {
    let world = World::new();
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
    let commands: [&[&str]; 6] = [&["tid"], &["result"], &["logs"], &["wait"], &["task", "status"], &["task", "kill"]];
    for command in commands {
        for tid in bad {
            let ran = world.raddle([command, &["--", tid]].concat()).code(2);
            assert!(ran.stderr.contains("not a task id"), "{command:?} {tid}: {}", ran.stderr);
        }
        world.raddle([command, &["0000000001"]].concat()).code(2).says("no task ends in 0000000001");
        world.raddle([command, &["1000000000000000001"]].concat()).code(2).says("no task 1000000000000000001");
    }
}

#[test]
fn a_project_file_says_where_the_work_is() {
    let world = World::new();
    world.file("raddle.toml", "queue_url = 'sqlite:work.db'\n");
    fs::create_dir(world.path().join("below")).unwrap();
    let ran = world.bash("cd below && raddle run -- pwd").ok();
    assert!(ran.text().trim().ends_with("/below"));
    assert!(world.path().join("work.db").exists() && !world.path().join("below/.raddle").exists());
    let ran = world.bash("cd below && QUEUE_URL=sqlite:here.db raddle submit -- true && raddle status --json").ok();
    assert!(ran.text().contains("work.db") && world.path().join("below/here.db").exists());
    world.file("raddle.toml", "queue = 1\n");
    world.raddle(["status"]).code(2).says("raddle.toml").says("queue");
}

#[test]
fn a_broker_in_memory_serves_one_process() {
    let world = World::new();
    let ran = world.raddle(["run", "--queue-url", "mem://", "--", "echo", "hello"]).ok();
    assert_eq!(ran.text(), "hello\n");
    assert!(!world.path().join(".raddle").exists());
}
