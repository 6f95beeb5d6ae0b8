//! The help of the program.

use crate::{shape::snapshot, world::World};

/// The commands that a page of help lists, in its order; none for one that does something itself.
fn listed(page: &str) -> Vec<String> {
    let lines = page
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty());
    // Continuation lines are indented further.
    let names = lines.filter_map(|line| {
        line.strip_prefix("  ")
            .filter(|line| !line.starts_with(' '))
    });
    names
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_command_has_help_with_an_example() {
    let world = World::new();
    let (mut left, mut leaves) = (vec![Vec::new()], Vec::new());
    while let Some(command) = left.pop() {
        let ran = world
            .raddle(command.iter().map(String::as_str).chain(["--help"]))
            .ok();
        let below = listed(ran.text());
        assert!(
            !below.is_empty() || ran.text().contains("Example"),
            "{command:?} has no example"
        );
        assert_eq!(ran.stderr, "");
        snapshot!(
            [&["help".to_owned()], &command[..]].concat().join("_"),
            ran.text()
        );
        left.extend(
            below
                .iter()
                .map(|name| [&command[..], std::slice::from_ref(name)].concat()),
        );
        if below.is_empty() {
            leaves.push(command.join(" "));
        }
    }
    // They were found at all.
    let known = ["run", "task list", "queue broadcast", "doctor"].into_iter();
    let pool = ["pool serve", "pool ping"]
        .into_iter()
        .filter(|_| cfg!(feature = "pool"));
    for command in known.chain(pool) {
        assert!(
            leaves.iter().any(|leaf| leaf == command),
            "{command} is not among {leaves:?}"
        );
    }
}

#[test]
fn the_version_and_completions_are_data() {
    let world = World::new();
    assert_eq!(
        world.raddle(["--version"]).ok().text(),
        concat!("raddle ", env!("CARGO_PKG_VERSION"), "\n")
    );
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            world
                .raddle(["completions", shell])
                .ok()
                .text()
                .contains("raddle")
        );
    }
    let (text, json) = (
        world.raddle(["completions", "zsh"]).ok(),
        world.raddle(["completions", "zsh", "--json"]).ok(),
    );
    assert_eq!(
        json.json(),
        serde_json::json!({ "shell": "zsh", "script": text.text() })
    );
    assert!(
        !world.path().join(".raddle").exists(),
        "nothing was asked for that needs a directory"
    );
}

#[test]
fn usage_errors_exit_with_two() {
    let world = World::new();
    let wrong: &[&[&str]] = &[
        &[],
        &["nonsense"],
        &["run"],
        &["run", "--"],
        &["run", "--priority", "x", "--", "true"],
        &["run", "--timeout", "soon", "--", "true"],
        &["run", "--env", "novalue", "--", "true"],
        &[
            "run",
            "--delay",
            "1",
            "--run-at",
            "2030-01-01T00:00:00Z",
            "--",
            "true",
        ],
        &["submit"],
        &["submit", "--file", "x", "--", "true"],
        &["submit", "--array", "9-1", "--", "true"],
        &["submit", "--array", "1", "--each-line", "x", "--", "true"],
        &["task", "list", "--status", "sleeping"],
        &["task", "retry"],
        &["worker", "start", "--concurrency", "0"],
        &["worker", "stop"],
        &["pool", "ping"],
        &["pool", "ping", "--count", "0", "x"],
        &["pool", "stop", "--timeout", "soon", "x"],
        &["cert", "ca"],
        &["cert", "issue", "--ca", "certs"],
        &["cert", "issue", "host:80", "--ca", "certs"],
        &["cert", "issue", "a", "--ca", "certs", "--days", "0"],
        &["cert", "show"],
        &["completions", "cmd.exe"],
        &["--queue-url", "redis://:secret@host:port", "status"],
        &["--queue-url", "nats://:secret@host", "status"],
        &["-q", "-v", "status"],
    ];
    for args in wrong {
        let ran = world.raddle(*args).code(2);
        assert!(
            ran.stdout.is_empty() && !ran.stderr.is_empty(),
            "{args:?}: {ran:?}"
        );
        assert!(!ran.stderr.contains("secret"), "{args:?}: {ran:?}");
    }
}
