//! What the program says of itself.

use crate::{shape::snapshot, world::World};

const COMMANDS: &[&[&str]] = &[
    &[],
    &["run"],
    &["submit"],
    &["result"],
    &["logs"],
    &["status"],
    &["wait"],
    &["tid"],
    &["task"],
    &["task", "list"],
    &["task", "status"],
    &["task", "stop"],
    &["task", "kill"],
    &["task", "pause"],
    &["task", "resume"],
    &["task", "ping"],
    &["task", "retry"],
    &["task", "recover"],
    &["task", "tree"],
    &["task", "explain"],
    &["queue"],
    &["queue", "read"],
    &["queue", "peek"],
    &["queue", "write"],
    &["queue", "move"],
    &["queue", "list"],
    &["queue", "stats"],
    &["queue", "delete"],
    &["queue", "watch"],
    &["queue", "broadcast"],
    &["worker"],
    &["worker", "start"],
    &["worker", "list"],
    &["worker", "stop"],
    &["worker", "spawn"],
    &["schedule"],
    &["schedule", "add"],
    &["schedule", "list"],
    &["schedule", "show"],
    &["schedule", "pause"],
    &["schedule", "resume"],
    &["schedule", "run-now"],
    &["schedule", "remove"],
    &["schedule", "run"],
    &["manager"],
    &["manager", "start"],
    &["manager", "serve"],
    &["manager", "stop"],
    &["manager", "list"],
    &["manager", "status"],
    &["up"],
    &["group"],
    &["group", "list"],
    &["group", "off"],
    &["group", "on"],
    &["group", "scale"],
    &["group", "forget"],
    &["spawner"],
    &["spawner", "run"],
    #[cfg(feature = "pool")]
    &["pool"],
    #[cfg(feature = "pool")]
    &["pool", "list"],
    #[cfg(feature = "pool")]
    &["pool", "workers"],
    #[cfg(feature = "pool")]
    &["pool", "ping"],
    #[cfg(feature = "pool")]
    &["pool", "stop"],
    #[cfg(feature = "tls")]
    &["cert"],
    #[cfg(feature = "tls")]
    &["cert", "ca"],
    #[cfg(feature = "tls")]
    &["cert", "issue"],
    #[cfg(feature = "tls")]
    &["cert", "show"],
    &["metrics"],
    &["metrics", "serve"],
    &["requeue-orphans"],
    &["doctor"],
    &["completions"],
];

#[test]
fn every_command_has_help_with_an_example() {
    let world = World::new();
    for command in COMMANDS {
        let ran = world.raddle(command.iter().copied().chain(["--help"])).ok();
        let is_group = matches!(
            command,
            ["task"]
                | ["queue"]
                | ["worker"]
                | ["schedule"]
                | ["manager"]
                | ["group"]
                | ["spawner"]
                | ["pool"]
                | ["cert"]
                | ["metrics"]
        );
        assert!(is_group || ran.text().contains("Example"), "{command:?} has no example");
        assert_eq!(ran.stderr, "");
        let name = ["help"].iter().chain(*command).copied().collect::<Vec<_>>().join("_");
        snapshot!(name, ran.text());
    }
}

#[test]
fn the_version_and_completions_are_data() {
    let world = World::new();
    assert_eq!(world.raddle(["--version"]).ok().text(), concat!("raddle ", env!("CARGO_PKG_VERSION"), "\n"));
    for shell in ["bash", "zsh", "fish"] {
        assert!(world.raddle(["completions", shell]).ok().text().contains("raddle"));
    }
    let (text, json) = (world.raddle(["completions", "zsh"]).ok(), world.raddle(["completions", "zsh", "--json"]).ok());
    assert_eq!(json.json(), serde_json::json!({ "shell": "zsh", "script": text.text() }));
    assert!(!world.path().join(".raddle").exists(), "nothing was asked for that needs a folder");
}

#[test]
fn usage_errors_leave_with_two() {
    let world = World::new();
    let wrong: &[&[&str]] = &[
        &[],
        &["nonsense"],
        &["run"],
        &["run", "--"],
        &["run", "--priority", "x", "--", "true"],
        &["run", "--timeout", "soon", "--", "true"],
        &["run", "--env", "novalue", "--", "true"],
        &["run", "--delay", "1", "--run-at", "2030-01-01T00:00:00Z", "--", "true"],
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
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{args:?}: {ran:?}");
        assert!(!ran.stderr.contains("secret"), "{args:?}: {ran:?}");
    }
}
