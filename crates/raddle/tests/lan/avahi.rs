//! What others that speak mDNS see.

use std::{
    fs,
    path::Path,
    process::{Child, Stdio},
    time::Duration,
};

use raddle_testnet::{Host, Lan};

use crate::{at, program::Program, until, word};

/// A daemon and the bus that it is spoken to by, with nothing of the machine's: the directory that it wants to have is one that nobody else sees.
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

/// Begins to listen in a host. Ends with the host.
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

/// What `avahi-browse` shows of workers: a line for each, at each interface and for each kind of address.
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
fn avahi_sees_the_workers_that_are_announced() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let (lan, directory) = (Lan::new(), tempfile::tempdir().unwrap());
    let (here, there) = (lan.host(), lan.host());
    let mut daemon = avahi(&there, directory.path());
    let mut publisher = Program::publisher(&here, "math");
    let worker = at("[::]:7000");
    publisher.tell(&word("added", &worker));
    let mut seen = Vec::new();
    until(
        "it is seen, by either kind of address",
        Duration::from_secs(30),
        || {
            seen = browse(&there, directory.path());
            seen.len() >= 2
        },
    );
    let (uid, old, new) = (
        worker.uid.to_string(),
        here.ipv4().to_string(),
        here.ipv6().to_string(),
    );
    let field =
        |line: &str, place: usize| line.split(';').nth(place).unwrap_or_default().to_owned();
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
    publisher.tell(&word("dropped", &worker));
    until("it is gone", Duration::from_secs(10), || {
        browse(&there, directory.path()).is_empty()
    });
    there.kill();
    daemon.wait().unwrap();
}
