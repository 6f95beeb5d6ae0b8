//! Other mDNS implementations see the workers.

use std::{
    fs,
    path::Path,
    process::{Child, Stdio},
    time::Duration,
};

use raddle_testnet::{Host, Lan};

use crate::{command, metadata_at, program::Program, wait_until};

/// A daemon with its own D-Bus and its own `/run`, so that it does not touch the machine's.
const DAEMON: &str = r#"
mount -t tmpfs none /run
mkdir /run/avahi-daemon
dbus-daemon --nofork --nopidfile --config-file="$1/bus.conf" &
while [ ! -S "$1/bus" ]; do sleep 0.05; done
exec avahi-daemon --file="$1/avahi.conf" --no-drop-root --no-chroot --no-rlimits --no-proc-title
"#;
const AVAHI: &str = "
[server]
use-ipv4=yes
use-ipv6=yes
enable-dbus=yes
[publish]
disable-publishing=yes
[reflector]
[wide-area]
enable-wide-area=no
";

fn bus(directory: &Path) -> String {
    format!(
        r#"<busconfig><type>system</type><listen>unix:path={}/bus</listen><auth>EXTERNAL</auth>
        <policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy>
        </busconfig>"#,
        directory.display()
    )
}

/// Starts the daemon in a host. It ends with the host.
fn avahi(host: &Host, directory: &Path) -> Child {
    fs::write(directory.join("bus.conf"), bus(directory)).unwrap();
    fs::write(directory.join("avahi.conf"), AVAHI).unwrap();
    let mut command = host.command("unshare");
    command
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            DAEMON,
            "sh",
        ])
        .arg(directory);
    command
        .env("DBUS_SYSTEM_BUS_ADDRESS", address(directory))
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn address(directory: &Path) -> String {
    format!("unix:path={}/bus", directory.display())
}

/// The lines of `avahi-browse` for workers: one per interface and address family.
fn browse(host: &Host, directory: &Path) -> Vec<String> {
    let mut command = host.command("avahi-browse");
    command
        .args(["-rpt", "_raddle._tcp"])
        .env("DBUS_SYSTEM_BUS_ADDRESS", address(directory));
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .filter(|line| line.starts_with('='))
        .map(str::to_owned)
        .collect()
}

#[test]
fn avahi_browses_published_workers() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let (lan, directory) = (Lan::new(), tempfile::tempdir().unwrap());
    let (publisher_host, browser_host) = (lan.host(), lan.host());
    let mut daemon = avahi(&browser_host, directory.path());
    let mut publisher = Program::publisher(&publisher_host, "math");
    let worker = metadata_at("[::]:7000");
    publisher.run(&command("added", &worker));
    let mut seen = Vec::new();
    wait_until(
        "the worker is found by both address families",
        Duration::from_secs(30),
        || {
            seen = browse(&browser_host, directory.path());
            seen.len() >= 2
        },
    );
    let (uid, old, new) = (
        worker.uid.to_string(),
        publisher_host.ipv4().to_string(),
        publisher_host.ipv6().to_string(),
    );
    let field =
        |line: &str, index: usize| line.split(';').nth(index).unwrap_or_default().to_owned();
    for line in &seen {
        assert_eq!(
            [field(line, 1), field(line, 4), field(line, 5)],
            ["eth0", "_raddle._tcp", "local"],
            "{line}"
        );
        assert_eq!(
            [field(line, 6), field(line, 8)],
            [format!("{uid}.local"), "7000".to_owned()],
            "{line}"
        );
        assert!([&old, &new].contains(&&field(line, 7)), "{line}");
        for text in [
            "txtvers=1",
            "ns=math",
            "version=1.2.3",
            "pid=4711",
            "secure=0",
            "ttl=15",
            "tag0=gpu",
            "extra0=zone=b",
        ] {
            assert!(line.contains(&format!("\"{text}\"")), "{text}: {line}");
        }
    }
    assert!(
        [old, new]
            .iter()
            .all(|address| seen.iter().any(|line| field(line, 7) == *address)),
        "{seen:?}"
    );
    publisher.run(&command("dropped", &worker));
    wait_until(
        "the worker is no longer found",
        Duration::from_secs(10),
        || browse(&browser_host, directory.path()).is_empty(),
    );
    browser_host.kill();
    daemon.wait().unwrap();
}
