//! Those who run managers: systemd, compose, and what 'raddle doctor' says of them.

use std::{os::unix::net::UnixDatagram, path::Path, process::Command};

use super::*;
use crate::world::skip;

/// Units that tell systemd how they are, and what they say when they are ready.
const NOTIFYING: [(&str, &str); 2] = [
    ("raddle-groups.service", "READY=1\nSTATUS=2 processes up"),
    ("raddle-prime.service", "READY=1\nSTATUS=worker-prime "),
];

/// The test is what systemd would be: it runs the command of the unit, listens, and sends the
/// signal to the main process alone.
#[test]
fn notifies_systemd_of_ready_watchdog_and_stopping() {
    for (name, says) in NOTIFYING {
        let world = World::new();
        let file = world.file("groups.toml", TWO_OF_ONE).display().to_string();
        let unit = deployed(&format!("systemd/{name}"));
        let has = |line: &str| unit.lines().any(|one| one == line);
        assert!(
            has("Type=notify") && has("WatchdogSec=30s") && has("KillMode=mixed"),
            "{name}"
        );
        let command = unit
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart="))
            .unwrap();
        let command = command.replace("/usr/local/bin/raddle", env!("CARGO_BIN_EXE_raddle"));
        let command = command.replace("/etc/raddle/raddle.toml", &file);
        let socket = UnixDatagram::bind(world.path().join("notify.sock")).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let heard = || {
            let mut told = [0; 256];
            let length = socket.recv(&mut told).unwrap();
            String::from_utf8_lossy(&told[..length]).into_owned()
        };
        let environment =
            "NOTIFY_SOCKET=$PWD/notify.sock WATCHDOG_USEC=400000 QUEUE_URL=sqlite:$PWD/raddle.db";
        let manager = world.start_bash(&format!("{environment} exec {command}"));
        let mut alive = 0;
        let ready = loop {
            match heard() {
                said if said == "WATCHDOG=1" => alive += 1,
                said => break said,
            }
        };
        assert!(ready.starts_with(says), "{name}: {ready}");
        while alive < 5 {
            assert_eq!(heard(), "WATCHDOG=1", "{name}");
            alive += 1;
        }
        manager.signal(libc::SIGTERM);
        wait_until("it says that it stops", || heard() == "STOPPING=1");
        manager.finish().ok();
        assert_eq!(world.processes(), [], "{name}");
    }
}

/// A file of this repository.
fn deployed(name: &str) -> String {
    fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../deploy")
            .join(name),
    )
    .unwrap()
}

#[test]
fn systemd_accepts_the_units() {
    let world = World::new();
    for name in [
        "raddle-groups.service",
        "raddle-prime.service",
        "raddle-worker.service",
    ] {
        let unit = deployed(&format!("systemd/{name}"))
            .replace("/usr/local/bin/raddle", env!("CARGO_BIN_EXE_raddle"));
        let path = world.file(name, unit);
        let Ok(verified) = Command::new("systemd-analyze")
            .arg("verify")
            .arg(path)
            .output()
        else {
            return skip("systemd-analyze");
        };
        let said = String::from_utf8_lossy(&verified.stderr);
        assert!(verified.status.success() && !said.contains(name), "{said}");
    }
}

#[test]
fn doctor_compares_stop_timeouts_of_service_managers() {
    let world = World::new();
    world.file("raddle.toml", deployed("compose/mail.toml"));
    world.file("compose.yaml", deployed("compose/compose.yaml"));
    fs::create_dir_all(world.path().join("deploy/systemd")).unwrap();
    world.file(
        "deploy/systemd/raddle.service",
        deployed("systemd/raddle-groups.service"),
    );
    let findings = || {
        let checks = world.raddle(["doctor", "--json"]).json()["checks"]
            .as_array()
            .unwrap()
            .clone();
        checks
            .into_iter()
            .filter(|check| check["area"] == "groups")
            .collect::<Vec<_>>()
    };
    let found = findings();
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(
        found.iter().all(|check| check["ok"] == true),
        "what is in the repository is right: {found:?}"
    );
    world.file(
        "compose.yaml",
        deployed("compose/compose.yaml")
            .replace("stop_grace_period: 82s", "stop_grace_period: 30s"),
    );
    let found = findings();
    let wrong: Vec<_> = found.iter().filter(|check| check["ok"] == false).collect();
    assert_eq!(wrong.len(), 2, "{found:?}");
    assert_eq!(
        wrong[0]["fix"],
        "write 'stop_grace_period: 82s' there: otherwise running tasks are killed"
    );
    // Where the work is kept says nothing of who does it.
    let elsewhere = world
        .bash("QUEUE_URL=sqlite:$PWD/other.db raddle doctor --json")
        .json();
    let of_groups = |checks: &Value| {
        let found = checks["checks"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|check| check["area"] == "groups");
        found.cloned().collect::<Vec<_>>()
    };
    assert_eq!(of_groups(&elsewhere), found);
    fs::create_dir_all(world.path().join("shop")).unwrap();
    world.file("shop/mail.toml", deployed("compose/mail.toml"));
    world.file("shop/compose.yaml", deployed("compose/compose.yaml"));
    let named = of_groups(
        &world
            .raddle(["doctor", "--json", "-f", "shop/mail.toml"])
            .json(),
    );
    assert!(
        named.len() == 2 && named.iter().all(|check| check["ok"] == true),
        "{named:?}"
    );
    world
        .raddle(["doctor", "-f", "none.toml"])
        .code(2)
        .stderr_contains("none.toml: there is no such file");
}

#[cfg(feature = "docker")]
#[test]
fn starts_and_stops_the_compose_file() {
    use crate::worker_containers::{docker, image_with};

    let compose = |world: &World, image: &str, args: &[&str]| {
        let mut command = Command::new("docker-compose");
        command.args([
            "--project-name",
            &world
                .path()
                .file_name()
                .unwrap()
                .to_string_lossy()
                .replace('.', ""),
        ]);
        command
            .args(args)
            .current_dir(world.path())
            .env("RADDLE_IMAGE", image)
            .env("REDIS_IMAGE", image);
        command.output()
    };
    let Some(image) = image_with(&["sh", "sleep", "cat", "redis-server"], "compose") else {
        return;
    };
    let world = World::new();
    for name in ["compose.yaml", "mail.toml", "stock.toml"] {
        world.file(name, deployed(&format!("compose/{name}")));
    }
    let Ok(up) = compose(&world, &image, &["up", "--detach"]) else {
        docker(&["rmi", &image]);
        return skip("docker-compose");
    };
    assert!(
        up.status.success(),
        "{}",
        String::from_utf8_lossy(&up.stderr)
    );
    let ask = |args: &[&str]| {
        let all = [&["exec", "-T", "mail", "raddle"], args].concat();
        String::from_utf8_lossy(&compose(&world, &image, &all).unwrap().stdout).into_owned()
    };
    let live = || {
        let views: Value =
            serde_json::from_str(&ask(&["group", "list", "--json"])).unwrap_or_default();
        let of = |slug: &str| {
            let view = views
                .as_array()
                .and_then(|views| views.iter().find(|view| view["slug"] == slug));
            view.and_then(|view| view["live"].as_u64())
                .unwrap_or_default()
        };
        (of("mail"), of("stock"))
    };
    wait_until("both groups are up", || live() == (2, 1));
    ask(&["queue", "write", "orders", "hello"]);
    wait_until("each has had its event", || {
        let tasks: Value =
            serde_json::from_str(&ask(&["task", "list", "--json"])).unwrap_or_default();
        tasks.as_array().is_some_and(|tasks| {
            tasks.len() == 2 && tasks.iter().all(|task| task["state"] == "completed")
        })
    });
    let down = compose(&world, &image, &["down", "--volumes"]).unwrap();
    assert!(
        down.status.success(),
        "{}",
        String::from_utf8_lossy(&down.stderr)
    );
    docker(&["rmi", &image]);
}
