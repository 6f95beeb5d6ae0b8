//! Hosts are isolated from this machine, reach each other, and leave nothing behind.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::IpAddr,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use raddle_testnet::{Host, Lan};

/// Echoes datagrams on all addresses.
const ECHO: &str = "
import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.bind(('::', 7))
print('ready', flush=True)
while True: s.sendto(*s.recvfrom(100))
";
/// Sends a hundred datagrams to an address, and prints how many came back.
const COUNT_ECHOES: &str = "
import socket, sys, time
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
for n in range(100):
    try: s.sendto(b'%d' % n, (sys.argv[1], 7))
    except OSError: pass
    time.sleep(0.002)
back = set()
s.settimeout(0.5)
try:
    while len(back) < 100: back.add(s.recv(100))
except OSError: pass
print(len(back))
";

fn echo(host: &Host) -> Child {
    let mut echo = host
        .command("python3")
        .args(["-c", ECHO])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(echo.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    echo
}

/// How many of a hundred datagrams came back.
fn count_echoes(client: &Host, address: IpAddr) -> u32 {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let output = client
        .command("python3")
        .args(["-c", COUNT_ECHOES, &address.to_string()])
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    stdout
        .trim()
        .parse()
        .unwrap_or_else(|_| panic!("{stdout} {}", String::from_utf8_lossy(&output.stderr)))
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn hosts_reach_only_each_other() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (one, two) = (lan.host(), lan.host());
    let stranger = Lan::new().host();
    let mut echo = echo(&one);
    for address in [IpAddr::V4(one.ipv4()), IpAddr::V6(one.ipv6())] {
        assert_eq!(count_echoes(&two, address), 100);
        assert_eq!(count_echoes(&stranger, address), 0);
    }
    let name = two
        .command("cat")
        .arg("/proc/sys/kernel/hostname")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(name.stdout).unwrap().trim(), two.name());
    one.kill();
    echo.wait().unwrap();
    assert_eq!(one.processes(), [0; 0]);
}

#[test]
fn host_joins_two_networks() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let (lan, other) = (Lan::new(), Lan::new());
    let mut both = lan.host();
    both.join(&other);
    let mut echo = echo(&both);
    let far = both.cables()[1].ipv4();
    assert_eq!(both.cables()[1].interface(), "eth1");
    assert_eq!(count_echoes(&lan.host(), both.ipv4().into()), 100);
    assert_eq!(count_echoes(&other.host(), far.into()), 100);
    drop(both);
    echo.wait().unwrap();
}

#[test]
fn cables_unplug_and_lose_frames_in_each_direction() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (one, two, three) = (lan.host(), lan.host(), lan.host());
    let (mut echo, address) = (echo(&one), IpAddr::from(one.ipv4()));
    one.cable().pull();
    assert_eq!(count_echoes(&two, address), 0);
    one.cable().plug();
    assert_eq!(count_echoes(&two, address), 100);

    two.cable().lose_to_host(100);
    assert_eq!(
        (count_echoes(&two, address), count_echoes(&three, address)),
        (0, 100),
        "one way, and one host"
    );
    two.cable().lose_to_host(0);
    two.cable().lose_from_host(100);
    assert_eq!(
        (count_echoes(&two, address), count_echoes(&three, address)),
        (0, 100)
    );
    two.cable().lose_from_host(0);
    assert_eq!(count_echoes(&two, address), 100);

    two.cable().lose_from_host(50);
    let arrived = count_echoes(&two, address);
    assert!(
        (15..=85).contains(&arrived),
        "{arrived} of 100 with half of them lost"
    );
    drop(one);
    echo.wait().unwrap();
}

/// Sends ten million bytes over a connection, and waits until they have arrived.
const SEND: &str = "
import socket, sys, threading
l = socket.create_server(('0.0.0.0', 8)) if len(sys.argv) == 1 else None
if l:
    print('ready', flush=True)
    c, n = l.accept()[0], 0
    while n < 10_000_000: n += len(c.recv(1 << 20))
    c.sendall(b'!')
else:
    s = socket.create_connection((sys.argv[1], 8))
    s.sendall(bytes(10_000_000))
    print(s.recv(1).decode())
";
/// Round-trip time in milliseconds: the minimum of several.
const PING: &str = "
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(5)
def ping():
    began = time.monotonic()
    s.sendto(b'x', (sys.argv[1], 7)); s.recv(9)
    return time.monotonic() - began
print(int(1000 * min(ping() for _ in range(5))))
";

#[test]
fn cables_delay_frames_in_each_direction() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (one, two, three) = (lan.host(), lan.host(), lan.host());
    let mut echo = echo(&one);
    let address = one.ipv4().to_string();
    let run = |host: &Host, what: &str| {
        let output = host
            .command("python3")
            .args(["-c", what, &address])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let ping = |host: &Host| run(host, PING).parse::<u32>().unwrap();
    two.cable().delay_to_host(Duration::from_millis(100));
    let (slow, quick) = (ping(&two), ping(&three));
    assert!((100..180).contains(&slow) && quick < 80, "{slow} {quick}");
    two.cable().delay_from_host(Duration::from_millis(50));
    let slow = ping(&two);
    assert!((150..230).contains(&slow), "{slow}");
    two.cable().delay_to_host(Duration::ZERO);
    two.cable().delay_from_host(Duration::from_millis(10));
    // Frames that the kernel has not segmented yet are carried as well.
    let mut server = one
        .command("python3")
        .args(["-c", SEND])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    server
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut ready)
        .unwrap();
    assert_eq!(run(&two, SEND), "!");
    server.wait().unwrap();
    // Loss and unplugging work together with delays.
    two.cable().lose_to_host(100);
    assert_eq!(count_echoes(&two, one.ipv4().into()), 0);
    two.cable().lose_to_host(0);
    assert_eq!(count_echoes(&two, one.ipv4().into()), 100);
    two.cable().pull();
    assert_eq!(count_echoes(&two, one.ipv4().into()), 0);
    two.cable().plug();
    assert_eq!(count_echoes(&two, one.ipv4().into()), 100);
    drop(one);
    echo.wait().unwrap();
}

#[test]
fn leaves_nothing_after_a_drop_or_a_panic() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let host = lan.host();
    // A process that has left its session and its parent is found as well.
    let daemon = "setsid sh -c 'echo $$; exec sleep 600' & exit";
    let run = |host: &Host| {
        let child = host
            .command("sh")
            .args(["-c", daemon])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = String::from_utf8(read_line(child)).unwrap();
        stdout.trim().parse::<u32>().unwrap()
    };
    let pid = run(&host);
    assert_eq!(host.processes(), [pid]);
    host.cut_power();
    until("it is killed with its host", || !is_alive(pid));

    let host = lan.host();
    let pid = run(&host);
    let panicking = thread::spawn(move || {
        let _host = host;
        panic!("as a test may");
    });
    assert!(panicking.join().is_err());
    until("it is killed after a panic", || !is_alive(pid));
}

fn read_line(mut child: Child) -> Vec<u8> {
    let mut line = Vec::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_until(b'\n', &mut line)
        .unwrap();
    child.wait().unwrap();
    line
}

#[test]
fn leaves_nothing_when_the_test_is_killed() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    if std::env::var_os("TO_BE_KILLED").is_some() {
        let lan = Lan::new();
        let host = lan.host();
        let mut child = host.command("sleep").arg("600").spawn().unwrap();
        println!("\npid {}", child.id());
        child.wait().unwrap();
        return;
    }
    let mut test = Command::new("/proc/self/exe");
    test.args([
        "--exact",
        "leaves_nothing_when_the_test_is_killed",
        "--nocapture",
    ])
    .env("TO_BE_KILLED", "1");
    let mut test = test.stdout(Stdio::piped()).spawn().unwrap();
    let stdout = BufReader::new(test.stdout.take().unwrap());
    let pid = stdout
        .lines()
        .find_map(|line| line.unwrap().strip_prefix("pid ")?.parse().ok())
        .unwrap();
    assert!(is_alive(pid));
    let keepers = || {
        let all = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|p| p.file_name().to_str()?.parse::<u32>().ok());
        let status =
            |pid: u32| fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        all.filter(|pid| status(*pid).contains(&format!("\nPPid:\t{}\n", test.id())))
            .collect::<Vec<_>>()
    };
    let (before, mut left) = (keepers(), keepers());
    assert_eq!(before.len(), 3, "a switch, a host, and what runs there");
    test.kill().unwrap();
    test.wait().unwrap();
    until("the processes of the host and its keeper are gone", || {
        left.retain(|pid| is_alive(*pid));
        left.is_empty()
    });
}
