//! Tasks in a sandbox, from the command line to the result.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    thread,
};

use serde_json::json;

use crate::world::World;

#[test]
fn a_sandboxed_command_sees_nothing_of_the_host() {
    let world = World::new();
    let secret = world.file("secret", "the secret");
    let run = world.raddle([
        "run",
        "--isolation",
        "sandbox",
        "-e",
        "GIVEN=yes",
        "--",
        "sh",
        "-c",
        "pwd; id -u; echo $GIVEN; ls -d /root",
    ]);
    assert_eq!(run.code(2).text(), "/scratch\n1000\nyes\n");
    world
        .raddle([
            "run",
            "--isolation",
            "sandbox",
            "--",
            "cat",
            secret.to_str().unwrap(),
        ])
        .code(1);
}

#[test]
fn a_directory_for_a_sandbox_or_container_is_refused_at_submit() {
    let world = World::new();
    for command in ["run", "submit"] {
        for isolation in ["sandbox", "docker"] {
            let args = [
                command,
                "--isolation",
                isolation,
                "--cwd",
                "/tmp",
                "--",
                "true",
            ];
            world
                .raddle(args)
                .code(2)
                .stderr_contains("at 'cwd'")
                .stderr_contains("remove cwd");
        }
    }
    assert!(
        !world.path().join(".raddle").exists(),
        "nothing was submitted"
    );
}

#[test]
fn a_worker_takes_tasks_for_a_sandbox() {
    let world = World::new();
    let _worker = world.worker(&[]);
    let tid = world.submit(&[
        "--isolation",
        "sandbox",
        "--",
        "sh",
        "-c",
        "cat /proc/self/status | grep Seccomp:",
    ]);
    world.wait_for_state(&tid, "completed");
    assert_eq!(world.raddle(["logs", &tid]).ok().text(), "Seccomp:\t2\n");
}

#[test]
fn doctor_checks_the_sandbox() {
    let world = World::new();
    let report = world.raddle(["doctor"]).ok().text().to_owned();
    assert!(
        report.contains("sandbox") && report.contains("all layers hold"),
        "{report}"
    );
}

/// A program that says which of the host's things it sees.
const LOOK: &str = "id -u; pwd; ls -d /root 2>/dev/null; true";

#[test]
fn a_spec_sets_network_and_fallback_of_the_sandbox() {
    let world = World::new();
    let words = [
        "--isolation",
        "sandbox",
        "--isolation-fallback",
        "--network",
        "Example.org:443,[::1]:80",
        "--",
        "true",
    ];
    let tid = world.submit(&words);
    let spec = world.task(&tid)["spec"].clone();
    assert_eq!(
        (&spec["isolation_fallback"], &spec["network"]),
        (&json!(true), &json!(["example.org:443", "[::1]:80"]))
    );
    for (flags, said) in [
        (
            &["--network", "host"][..],
            "'network': means nothing without the isolation 'sandbox'",
        ),
        (
            &["--network", "none"],
            "'network': means nothing without the isolation 'sandbox'",
        ),
        (
            &["--isolation-fallback"],
            "'isolation_fallback': means nothing without the isolation 'sandbox'",
        ),
        (
            &["--isolation", "sandbox", "--network", "example.org"],
            "write HOST:PORT",
        ),
        (
            &["--isolation", "sandbox", "--network", ""],
            "write HOST:PORT",
        ),
    ] {
        world
            .raddle([&["submit"], flags, &["--", "true"]].concat())
            .code(2)
            .stderr_contains(said);
    }
}

#[test]
fn only_listed_endpoints_are_reachable() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(
                b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
            );
        }
    });
    let fetch = |network: &str| {
        let script = format!(
            "import urllib.request\nprint(urllib.request.urlopen('http://{address}/').read().decode())"
        );
        world.raddle([
            "run",
            "--isolation",
            "sandbox",
            "--network",
            network,
            "--",
            "python3",
            "-c",
            &script,
        ])
    };
    assert_eq!(fetch(&address.to_string()).ok().text(), "hello\n");
    assert_eq!(fetch("host").ok().text(), "hello\n");
    fetch("none").code(1);
    fetch("127.0.0.1:1").code(1).stderr_contains("403");
}

/// On a system without user namespaces, which is one in which as many are allowed as there are.
#[test]
fn refuses_a_task_without_a_layer_unless_fallback_is_set() {
    let world = World::new();
    let script = "raddle run --isolation sandbox -- echo ran; echo code $?
                  raddle run --isolation sandbox --isolation-fallback -- sh -c 'pwd; id -u; cat secret'; echo code $?
                  raddle doctor | grep -c 'its own namespaces (clone).*the other layers hold'";
    world.file("secret", "the secret");
    let refusing = "echo 0 > /proc/sys/user/max_user_namespaces && exec bash inner.sh";
    world.file("inner.sh", script);
    let ran = world.bash(&format!(
        "exec unshare --user --map-root-user sh -c '{refusing}'"
    ));
    let lines = ran.lines();
    assert_eq!(lines[0], "code 125", "{ran:?}");
    assert!(
        lines[1].contains("raddle-scratch-") && !fs::exists(lines[1]).unwrap(),
        "{ran:?}"
    );
    assert_eq!(lines[3..], ["code 1", "1"], "{ran:?}");
    let refused = "this system refuses the sandbox its own namespaces (clone)";
    assert_eq!(ran.stderr.matches(refused).count(), 2, "{}", ran.stderr);
    assert!(
        ran.stderr
            .contains("it runs without, as isolation_fallback says"),
        "{}",
        ran.stderr
    );
    assert!(!ran.text().contains("the secret"), "{ran:?}");
}

#[test]
fn a_worker_may_demand_a_sandbox_for_every_task() {
    let world = World::new();
    world
        .raddle(["worker", "start", "--min-isolation", "vm"])
        .code(2)
        .stderr_contains("use 'shared', 'process', 'sandbox' or 'docker'");
    world.worker(&["--min-isolation", "sandbox"]);
    let tid = world.submit(&["--", "sh", "-c", LOOK]);
    world.wait_for_state(&tid, "completed");
    assert_eq!(world.raddle(["logs", &tid]).ok().text(), "1000\n/scratch\n");
    assert!(
        world.task(&tid)["spec"].get("isolation").is_none(),
        "a submitted spec stays as it was"
    );
    // Nor can it ask for more than others.
    for network in ["host", "127.0.0.1:6379"] {
        let tid = world.submit(&["--isolation", "sandbox", "--network", network, "--", "true"]);
        world.wait_for_state(&tid, "failed");
        let message = world.task(&tid)["report"]["exit"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(
            message.contains("gives no task its host's network"),
            "{message}"
        );
    }
}

#[test]
fn the_variable_for_min_isolation_applies_to_workers_of_a_spawner() {
    let world = World::new();
    world
        .bash("WORKER_MIN_ISOLATION=sandbox raddle worker start --once")
        .ok();
    let tid = world.submit(&["--", "sh", "-c", LOOK]);
    world.wait_for_state(&tid, "completed");
    assert_eq!(world.raddle(["logs", &tid]).ok().text(), "1000\n/scratch\n");
    world.file(
        "spawner.toml",
        "[spawner]\nwarm_pool = 1\nmin_isolation = 'sandbox'\n",
    );
    let spawner = world.start(["spawner", "run", "--config", "spawner.toml"]);
    spawner.tid();
    let tid = world.submit(&["--", "sh", "-c", LOOK]);
    world.wait_for_state(&tid, "completed");
    assert_eq!(world.raddle(["logs", &tid]).ok().text(), "1000\n/scratch\n");
    spawner.stop().ok();
}

#[test]
fn a_handler_runs_in_a_sandbox_with_its_directory() {
    let world = World::new();
    fs::set_permissions(world.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(world.path().join("handlers")).unwrap();
    let script = "#!/bin/sh\nread task; touch new 2>/dev/null && echo written >&2; echo \"{\\\"result\\\": [\\\"$(pwd)\\\", $(id -u)]}\"\n";
    let program = world.file("handlers/look.sh", script);
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    world.file(
        "handlers/look.handler.toml",
        "name = 'look'\ncommand = ['./look.sh']\n",
    );
    world.worker(&["--handlers", "handlers"]);
    let tid = world.submit(&["--isolation", "sandbox", "--handler", "look"]);
    world.raddle(["wait", "--timeout", "30", &tid]).ok();
    assert_eq!(
        world.task(&tid)["report"]["value"],
        json!(["/handler", 1000])
    );
    assert!(!world.path().join("handlers/new").exists());
}

#[test]
fn mounts_files_and_returns_output_in_out() {
    let world = World::new();
    fs::set_permissions(world.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(world.path().join("data")).unwrap();
    world.file("data/input", "from the host\n");
    let file = world.file("one", "a file\n");
    let file = format!("{}:/in/one", file.display());
    let script = "cat /data/input /in/one; touch /data/new /in/one 2>/dev/null && echo written; cat /data/input > /out/copy; ls /";
    let flags = [
        "run",
        "--isolation",
        "sandbox",
        "--mount",
        "data:/data",
        "--mount",
        &file,
        "--out",
        "results",
    ];
    let ran = world
        .raddle([&flags[..], &["--", "sh", "-c", script]].concat())
        .ok();
    let lines = ran.lines();
    assert_eq!(lines[..2], ["from the host", "a file"]);
    assert!(
        !lines.contains(&"written") && lines.contains(&"out") && lines.contains(&"in"),
        "{lines:?}"
    );
    assert_eq!(world.read("results/copy"), "from the host\n");
    assert!(!world.path().join("data/new").exists());
    // A worker elsewhere finds the same files.
    fs::create_dir(world.path().join("elsewhere")).unwrap();
    world
        .bash("cd elsewhere && raddle --queue-url sqlite:../.raddle/raddle.db worker start")
        .ok();
    let tid = world.submit(&[
        "--isolation",
        "sandbox",
        "--mount",
        "data:/data",
        "--",
        "cat",
        "/data/input",
    ]);
    assert_eq!(
        world.raddle(["result", "--wait", &tid]).ok().text(),
        "from the host\n"
    );
}

#[test]
fn refuses_invalid_mounts() {
    let world = World::new();
    let refused = |flags: &[&str], why: &str| {
        world
            .raddle([&["submit"], flags, &["--", "true"]].concat())
            .code(2)
            .stderr_contains(why);
    };
    refused(&["--mount", "a:/b"], "'mounts'");
    refused(
        &[
            "--isolation",
            "sandbox",
            "--isolation-fallback",
            "--mount",
            "a:/b",
        ],
        "'mounts'",
    );
    refused(
        &["--isolation", "sandbox", "--mount", "a:/usr/x"],
        "has already",
    );
    refused(
        &["--isolation", "sandbox", "--mount", "a"],
        "is not a mount",
    );
    world
        .raddle([
            "run",
            "--isolation",
            "sandbox",
            "--mount",
            "absent:/b",
            "--",
            "true",
        ])
        .code(125)
        .stderr_contains("absent of the host")
        .stderr_contains("No such file");
}
