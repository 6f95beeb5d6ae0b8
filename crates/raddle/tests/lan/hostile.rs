//! Forged records.

use std::{
    fs,
    io::Read,
    path::Path,
    process::{Child, Stdio},
    time::{Duration, Instant, SystemTime},
};

use raddle::{
    pool::WorkerUid,
    tls::issue::{Authority, Validity},
};
use raddle_testnet::{Host, Lan};
use serde_json::{Value, json};

use crate::{
    QUIET, SOON, command,
    forger::{Fake, forge},
    metadata_at,
    program::Program,
    seen_at, wait_until,
};

/// Accepts connections and prints the first bytes that it receives, without a reply.
const LISTENER: &str = "
import socket
s = socket.socket(); s.bind(('0.0.0.0', 7666)); s.listen(64)
print('ready', flush=True)
while True:
    c, _ = s.accept(); c.settimeout(2)
    try: print(c.recv(64).hex(), flush=True)
    except OSError: print('nothing', flush=True)
    c.close()
";

fn listener(host: &Host) -> Child {
    let mut command = host.command("python3");
    command
        .args(["-c", LISTENER])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Stops a listener and returns what it received.
fn received(mut listener: Child) -> Vec<String> {
    listener.kill().unwrap();
    let mut records = String::new();
    listener
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut records)
        .unwrap();
    listener.wait().unwrap();
    records
        .lines()
        .filter(|line| *line != "ready")
        .map(str::to_owned)
        .collect()
}

/// A CA, and credentials with the name of the workers.
pub(crate) fn credentials(directory: &Path) -> Value {
    let day = || Validity::days(SystemTime::now(), 1);
    let (authority, _) = Authority::new("test", day()).unwrap();
    let own = authority
        .issue(&["spiffe://test/worker".parse().unwrap()], day())
        .unwrap();
    let [ca, certificate, key] = ["ca.pem", "own.pem", "own.key"].map(|name| directory.join(name));
    fs::write(&ca, authority.certificate()).unwrap();
    fs::write(&certificate, &own.certificate).unwrap();
    fs::write(&key, own.key.as_bytes()).unwrap();
    json!([ca, certificate, key])
}

#[test]
fn a_pool_with_credentials_never_calls_a_fake_worker_in_plain() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let (lan, directory) = (Lan::new(), tempfile::tempdir().unwrap());
    let (here, there, evil) = (lan.host(), lan.host(), lan.host());
    let own = credentials(directory.path());
    let listener = listener(&evil);
    let honest = json!({"size": 1, "bind": "0.0.0.0:0", "publish": true, "credentials": own});
    let _serving = Program::pool(&there, "math", honest);
    let mut pool = Program::pool(&here, "math", json!({"discover": true, "credentials": own}));
    wait_until("the honest worker is found", SOON, || {
        pool.workers().len() == 1
    });
    let worker = pool.workers().remove(0);
    assert!(worker.secure);

    // A forged plain worker, and a forged TLS worker.
    let plain = Fake::new("math", evil.ipv4(), 7666);
    let secure = Fake::new("math", evil.ipv4(), 7666).with("secure", "secure=1");
    forge(&evil, [plain.to_record(), secure.to_record()]);
    wait_until("the forged TLS worker is tried", SOON, || {
        pool.workers().iter().any(|one| one.uid == secure.uid)
    });
    assert!(pool.workers().iter().all(|one| one.uid != plain.uid));
    for _ in 0..6 {
        let answer = pool.request("call");
        assert_eq!(answer[0], there.name(), "{answer}");
    }
    // A record that moves the honest worker to another address, without TLS: it is not called
    // there.
    let forged = Fake {
        uid: worker.uid,
        ..Fake::new("math", evil.ipv4(), 7666)
    };
    forge(&evil, [forged.to_record()]);
    std::thread::sleep(QUIET);
    for _ in 0..6 {
        pool.request("call");
    }
    let received = received(listener);
    assert!(!received.is_empty(), "the forged worker was tried");
    // A ClientHello at most.
    assert!(
        received
            .iter()
            .all(|bytes| bytes.starts_with("16") || bytes == "nothing" || bytes.is_empty()),
        "{received:?}"
    );
    // The next announcement corrects the forged record.
    wait_until("the honest worker is back", 2 * SOON, || {
        pool.workers().contains(&worker)
    });
}

#[test]
fn a_pool_ignores_forged_records_of_its_own_workers() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, evil) = (lan.host(), lan.host());
    let pool = json!({"size": 1, "bind": "0.0.0.0:0", "publish": true, "discover": true});
    let mut pool = Program::pool(&here, "math", pool);
    let own = pool.workers();
    let before = pool.request("call");
    assert_eq!(before[0], here.name());
    let forged = Fake {
        uid: own[0].uid,
        ..Fake::new("math", evil.ipv4(), 7666)
    };
    let goodbye = Fake {
        ttl: 0,
        ..forged.clone()
    };
    let secure = forged.clone().with("secure", "secure=1");
    for records in [forged, secure, goodbye] {
        forge(&evil, [records.to_record()]);
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(pool.workers(), own);
        assert_eq!(pool.request("call"), before, "the same process answers");
    }
}

#[test]
fn ignores_invalid_records() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, there, evil) = (lan.host(), lan.host(), lan.host());
    let mut watcher = Program::watch(&here, "math");
    let good = || Fake::new("math", evil.ipv4(), 7666);
    let mut bad: Vec<_> = [
        "127.0.0.1",
        "0.0.0.0",
        "224.0.0.251",
        "255.255.255.255",
        "::1",
        "fe80::1",
        "::ffff:127.0.0.1",
    ]
    .map(|address| Fake {
        address: address.into(),
        ..good()
    })
    .to_vec();
    bad.push(Fake { port: 0, ..good() });
    for (key, text) in [
        ("address", "address=unix:/run/docker.sock"),
        ("address", "address=127.0.0.1:22"),
        ("address", "address=[::1]:22"),
        ("address", "address=localhost:22"),
        ("txtvers", "txtvers=2"),
        ("txtvers", "more=txtvers"),
        ("ns", "ns=other"),
        ("ns", "ns=../math"),
        ("secure", "secure=maybe"),
        ("pid", "pid=-1"),
        ("ttl", "ttl=10"),
        ("ttl", "ttl=99999999999999999999"),
        ("version", "version=\u{1b}[2J"),
        ("tag0", "hex:746167303dfffefd"),
        ("extra0", "extra0=nothing"),
    ] {
        bad.push(good().with(key, text));
    }
    bad.push(Fake {
        texts: vec![],
        ..good()
    });
    let mut long = good();
    long.texts
        .extend((0..64).map(|n| format!("tag{n}={}", "x".repeat(100))));
    bad.push(long);
    let mut records: Vec<_> = bad.iter().map(Fake::to_record).collect();
    let mut wrong_name = good().to_record();
    wrong_name["name"] = json!("not a uid._raddle._tcp.local");
    records.push(wrong_name);
    let mut uppercase = good().to_record();
    uppercase["name"] = json!(format!(
        "{}._raddle._tcp.local",
        WorkerUid::new().to_string().to_uppercase()
    ));
    records.push(uppercase);
    // Invalid messages: truncated ones, and one that points to itself.
    for raw in [
        "",
        "00",
        "0000840000000001000000",
        "000084000000000100000000c00c000c0001000000780002c00c",
        &"ff".repeat(1000),
    ] {
        records.push(json!({ "raw": raw }));
    }
    forge(&evil, records);
    assert_eq!(watcher.next_event(QUIET), None);

    // A record without the error is accepted, and so is an honest worker.
    let fake = good();
    forge(&evil, [fake.to_record()]);
    let (event, worker) = watcher.next_event(SOON).unwrap();
    assert_eq!(
        (event.as_str(), worker.uid, worker.address),
        ("added", fake.uid, format!("{}:7666", evil.ipv4()))
    );
    let mut publisher = Program::publisher(&there, "math");
    let worker = metadata_at("0.0.0.0:7000");
    publisher.run(&command("added", &worker));
    watcher.expect(
        "added",
        &seen_at(&worker, format!("{}:7000", there.ipv4())),
        SOON,
    );
    // A worker whose record becomes invalid is dropped.
    forge(
        &evil,
        [Fake {
            uid: fake.uid,
            ..good()
        }
        .with("txtvers", "txtvers=2")
        .to_record()],
    );
    assert_eq!(
        watcher
            .next_event(SOON)
            .map(|(event, worker)| (event, worker.uid)),
        Some(("dropped".into(), fake.uid))
    );
}

#[test]
fn a_flood_of_workers_is_bounded() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    const MANY: usize = 1024;
    let lan = Lan::new();
    let (here, there, evil) = (lan.host(), lan.host(), lan.host());
    let mut watcher = Program::watch(&here, "math");
    let mut publisher = Program::publisher(&there, "math");
    let honest = metadata_at("0.0.0.0:7000");
    publisher.run(&command("added", &honest));
    watcher.expect(
        "added",
        &seen_at(&honest, format!("{}:7000", there.ipv4())),
        SOON,
    );
    let flood = (0..20_000).map(|_| {
        Fake {
            ttl: 4_000_000,
            ..Fake::new("math", evil.ipv4(), 7666)
        }
        .to_record()
    });
    forge(&evil, flood);
    let (mut known, until) = (1_isize, Instant::now() + 6 * SOON);
    while let Some((event, worker)) = watcher.next_event(QUIET) {
        known += match event.as_str() {
            "added" => 1,
            "dropped" => -1,
            _ => 0,
        };
        assert!(
            event != "dropped" || worker.uid != honest.uid,
            "the honest worker stays"
        );
        assert!(known <= MANY as isize && Instant::now() < until);
    }
    assert!(known > 1, "some forged workers are accepted");
    let status = fs::read_to_string(format!("/proc/{}/status", watcher.pid())).unwrap();
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    let resident: u32 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    println!("{resident} kB");
    assert!(resident < 150_000, "{resident} kB");
}

/// Records of no worker, which the library caches for as long as their TTL.
#[test]
fn a_flood_of_foreign_records_is_evicted() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, there, evil) = (lan.host(), lan.host(), lan.host());
    let mut watcher = Program::watch(&here, "math");
    let mut publisher = Program::publisher(&there, "math");
    let honest = metadata_at("0.0.0.0:7000");
    publisher.run(&command("added", &honest));
    watcher.expect(
        "added",
        &seen_at(&honest, format!("{}:7000", there.ipv4())),
        SOON,
    );
    // Each message has 40 addresses of unknown hosts: as many as are cached, and not faster than
    // they are read.
    let message = |n: u32| {
        let record = |place: u32| {
            let name = format!("{:08x}", n * 40 + place);
            let label: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
            format!(
                "08{label}056c6f63616c0000018001003d09000004{:08x}",
                0x0a00_0000 + place
            )
        };
        let records: String = (0..40).map(record).collect();
        json!({ "raw": format!("000084000000002800000000{records}"), "pause": 0.001 })
    };
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", watcher.pid())).unwrap();
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap();
        resident
            .trim()
            .trim_end_matches(" kB")
            .parse::<u32>()
            .unwrap()
    };
    let before = resident();
    let flood = |which: u32| {
        forge(&evil, (1_000 * which..1_000 * (which + 1)).map(message));
        std::thread::sleep(QUIET);
        resident().saturating_sub(before)
    };
    let growth: Vec<u32> = (0..12).map(flood).collect();
    println!("{before} kB, and then {growth:?} more");
    // Memory rises until records are evicted and then falls, so peaks are compared. Without
    // eviction it would be 2.4 times as much.
    let peak = |floods: &[u32]| floods.iter().copied().max().unwrap();
    assert!(
        peak(&growth[..5]) > 4_000,
        "the records are cached: {growth:?} kB"
    );
    assert!(
        peak(&growth[8..]) < 2 * peak(&growth[..5]),
        "{growth:?} kB more than {before}"
    );
    // The known worker stays, and new ones are found.
    let other = metadata_at("0.0.0.0:7001");
    publisher.run(&command("added", &other));
    watcher.expect(
        "added",
        &seen_at(&other, format!("{}:7001", there.ipv4())),
        2 * SOON,
    );
}
