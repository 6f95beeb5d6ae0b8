//! Records that somebody has made up.

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
    QUIET, SOON, at,
    forger::{Fake, forge},
    program::Program,
    seen_at, until, word,
};

/// Accepts whoever comes, and says what it hears first, without an answer.
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

/// What a listener has heard, when it is ended.
fn heard(mut listener: Child) -> Vec<String> {
    listener.kill().unwrap();
    let mut said = String::new();
    listener
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    listener.wait().unwrap();
    said.lines()
        .filter(|line| *line != "ready")
        .map(str::to_owned)
        .collect()
}

/// A CA, and the files of somebody with the name that workers have.
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
fn a_fake_worker_is_never_spoken_to_in_plain_by_a_pool_with_credentials() {
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
    until("the honest one is found", SOON, || {
        pool.workers().len() == 1
    });
    let worker = pool.workers().remove(0);
    assert!(worker.secure);

    // One that says that it is plain, and one that says that it is not.
    let plain = Fake::new("math", evil.ipv4(), 7666);
    let secure = Fake::new("math", evil.ipv4(), 7666).with("secure", "secure=1");
    forge(&evil, [plain.said(), secure.said()]);
    until(
        "who says that it can prove who it is is tried",
        SOON,
        || pool.workers().iter().any(|one| one.uid == secure.uid),
    );
    assert!(pool.workers().iter().all(|one| one.uid != plain.uid));
    for _ in 0..6 {
        let answer = pool.ask("call");
        assert_eq!(answer[0], there.name(), "{answer}");
    }
    // One that says of the honest one that it is plain, and elsewhere: it is not called there.
    let stolen = Fake {
        uid: worker.uid,
        ..Fake::new("math", evil.ipv4(), 7666)
    };
    forge(&evil, [stolen.said()]);
    std::thread::sleep(QUIET);
    for _ in 0..6 {
        pool.ask("call");
    }
    let heard = heard(listener);
    assert!(!heard.is_empty(), "the one that was tried");
    // A greeting of TLS, and nothing else.
    assert!(
        heard
            .iter()
            .all(|bytes| bytes.starts_with("16") || bytes == "nothing" || bytes.is_empty()),
        "{heard:?}"
    );
    // What was made up is corrected by the next sign of life.
    until("the honest one is believed again", 2 * SOON, || {
        pool.workers().contains(&worker)
    });
}

#[test]
fn what_is_said_of_its_own_workers_means_nothing_to_a_pool() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, evil) = (lan.host(), lan.host());
    let pool = json!({"size": 1, "bind": "0.0.0.0:0", "publish": true, "discover": true});
    let mut pool = Program::pool(&here, "math", pool);
    let own = pool.workers();
    let before = pool.ask("call");
    assert_eq!(before[0], here.name());
    let stolen = Fake {
        uid: own[0].uid,
        ..Fake::new("math", evil.ipv4(), 7666)
    };
    let goodbye = Fake {
        ttl: 0,
        ..stolen.clone()
    };
    let secure = stolen.clone().with("secure", "secure=1");
    for said in [stolen, secure, goodbye] {
        forge(&evil, [said.said()]);
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(pool.workers(), own);
        assert_eq!(
            pool.ask("call"),
            before,
            "the same process, which nobody has ended"
        );
    }
}

#[test]
fn what_cannot_be_a_worker_is_not_believed_and_does_no_harm() {
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
    let mut said: Vec<_> = bad.iter().map(Fake::said).collect();
    let mut misnamed = good().said();
    misnamed["name"] = json!("not a uid._raddle._tcp.local");
    said.push(misnamed);
    let mut shouting = good().said();
    shouting["name"] = json!(format!(
        "{}._raddle._tcp.local",
        WorkerUid::new().to_string().to_uppercase()
    ));
    said.push(shouting);
    // No message at all: torn ones, and one that points to itself.
    for raw in [
        "",
        "00",
        "0000840000000001000000",
        "000084000000000100000000c00c000c0001000000780002c00c",
        &"ff".repeat(1000),
    ] {
        said.push(json!({ "raw": raw }));
    }
    forge(&evil, said);
    assert_eq!(watcher.hears(QUIET), None);

    // One that is like them in all but what is wrong is believed; and so is an honest one.
    let fake = good();
    forge(&evil, [fake.said()]);
    let (event, worker) = watcher.hears(SOON).unwrap();
    assert_eq!(
        (event.as_str(), worker.uid, worker.address),
        ("added", fake.uid, format!("{}:7666", evil.ipv4()))
    );
    let mut publisher = Program::publisher(&there, "math");
    let worker = at("0.0.0.0:7000");
    publisher.tell(&word("added", &worker));
    watcher.expect(
        "added",
        &seen_at(&worker, format!("{}:7000", there.ipv4())),
        SOON,
    );
    // One that becomes unbelievable is gone.
    forge(
        &evil,
        [Fake {
            uid: fake.uid,
            ..good()
        }
        .with("txtvers", "txtvers=2")
        .said()],
    );
    assert_eq!(
        watcher
            .hears(SOON)
            .map(|(event, worker)| (event, worker.uid)),
        Some(("dropped".into(), fake.uid))
    );
}

#[test]
fn a_flood_of_workers_takes_no_more_room_than_there_is() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    const MANY: usize = 1024;
    let lan = Lan::new();
    let (here, there, evil) = (lan.host(), lan.host(), lan.host());
    let mut watcher = Program::watch(&here, "math");
    let mut publisher = Program::publisher(&there, "math");
    let honest = at("0.0.0.0:7000");
    publisher.tell(&word("added", &honest));
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
        .said()
    });
    forge(&evil, flood);
    let (mut there_are, until) = (1_isize, Instant::now() + 6 * SOON);
    while let Some((event, worker)) = watcher.hears(QUIET) {
        there_are += match event.as_str() {
            "added" => 1,
            "dropped" => -1,
            _ => 0,
        };
        assert!(
            event != "dropped" || worker.uid != honest.uid,
            "the honest one is there"
        );
        assert!(there_are <= MANY as isize && Instant::now() < until);
    }
    assert!(there_are > 1, "some are believed");
    let status = fs::read_to_string(format!("/proc/{}/status", watcher.pid())).unwrap();
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    let resident: u32 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    println!("{resident} kB");
    assert!(resident < 150_000, "{resident} kB");
}

/// Records that are nobody's, and that the library keeps for as long as they say.
#[test]
fn a_flood_of_other_records_is_forgotten() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let (here, there, evil) = (lan.host(), lan.host(), lan.host());
    let mut watcher = Program::watch(&here, "math");
    let mut publisher = Program::publisher(&there, "math");
    let honest = at("0.0.0.0:7000");
    publisher.tell(&word("added", &honest));
    watcher.expect(
        "added",
        &seen_at(&honest, format!("{}:7000", there.ipv4())),
        SOON,
    );
    // Each message has 40 addresses of hosts that nobody has asked for, and that nobody has heard of before: as many as are kept, and not
    // faster than they are read.
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
    let taken: Vec<u32> = (0..12).map(flood).collect();
    println!("{before} kB, and then {taken:?} more");
    // Memory rises until records are dropped, and falls then, so peaks are compared. Records that are kept would take 2.4 times as much.
    let peak = |floods: &[u32]| floods.iter().copied().max().unwrap();
    assert!(peak(&taken[..5]) > 4_000, "they are heard: {taken:?} kB");
    assert!(
        peak(&taken[8..]) < 2 * peak(&taken[..5]),
        "{taken:?} kB more than {before}"
    );
    // Who was there is there all the while, and who comes is heard of.
    let other = at("0.0.0.0:7001");
    publisher.tell(&word("added", &other));
    watcher.expect(
        "added",
        &seen_at(&other, format!("{}:7001", there.ipv4())),
        2 * SOON,
    );
}
