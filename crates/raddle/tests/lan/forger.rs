//! A forger of mDNS records.

use std::process::Stdio;

use raddle::pool::WorkerUid;
use raddle_testnet::Host;
use serde_json::{Value, json};

/// Sends these records as mDNS responses from an address.
const FORGE: &str = r#"
import json, socket, struct, sys, time
def name(text):
    labels = text.rstrip(".").split(".")
    return b"".join(bytes([len(l.encode())]) + l.encode() for l in labels) + b"\0"
def record(owner, kind, flush, ttl, data):
    return name(owner) + struct.pack(">HHIH", kind, 0x8001 if flush else 1, ttl, len(data)) + data
def message(s):
    owner = s["name"]
    records = [record("_raddle._tcp.local", 12, False, s["ttl"], name(owner))]
    records.append(record(owner, 33, True, s["ttl"], struct.pack(">HHH", 0, 0, s["port"]) + name(s["host"])))
    texts = [bytes.fromhex(t[4:]) if t.startswith("hex:") else t.encode() for t in s["texts"]]
    records.append(record(owner, 16, True, s["ttl"], b"".join(bytes([min(len(t), 255)]) + t for t in texts)))
    for a in s["addresses"]:
        kind, family = (28, socket.AF_INET6) if ":" in a else (1, socket.AF_INET)
        records.append(record(s["host"], kind, True, s["ttl"], socket.inet_pton(family, a)))
    return struct.pack(">HHHHHH", 0, 0x8400, 0, len(records), 0, 0) + b"".join(records)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind(("", 5353))
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sys.argv[1]))
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
for line in sys.stdin:
    line = json.loads(line)
    data = bytes.fromhex(line["raw"]) if "raw" in line else message(line)
    s.sendto(data, ("224.0.0.251", 5353))
    time.sleep(line.get("pause", 0))
"#;

/// A forged worker.
#[derive(Clone, Debug)]
pub(crate) struct Fake {
    pub(crate) uid: WorkerUid,
    pub(crate) address: String,
    pub(crate) port: u16,
    pub(crate) texts: Vec<String>,
    pub(crate) ttl: u32,
}

impl Fake {
    /// A record without an error.
    pub(crate) fn new(namespace: &str, address: impl ToString, port: u16) -> Self {
        let texts = [
            "txtvers=1",
            &format!("ns={namespace}"),
            "version=1",
            "pid=1",
            "secure=0",
        ]
        .map(str::to_owned)
        .to_vec();
        Self {
            uid: WorkerUid::new(),
            address: address.to_string(),
            port,
            texts,
            ttl: 120,
        }
    }

    /// The same with another TXT entry.
    pub(crate) fn with(mut self, key: &str, text: &str) -> Self {
        self.texts
            .retain(|text| !text.starts_with(&format!("{key}=")));
        self.texts.push(text.to_owned());
        self
    }

    pub(crate) fn to_record(&self) -> Value {
        json!({
            "name": format!("{}._raddle._tcp.local", self.uid), "host": format!("{}.local", self.uid), "port": self.port,
            "texts": self.texts, "addresses": [self.address], "ttl": self.ttl,
        })
    }
}

/// Sends these records from a host.
pub(crate) fn forge(host: &Host, record: impl IntoIterator<Item = Value>) {
    let mut forger = host.command("python3");
    let mut forger = forger
        .args(["-c", FORGE, &host.ipv4().to_string()])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = forger.stdin.take().unwrap();
    for record in record {
        std::io::Write::write_all(&mut input, format!("{record}\n").as_bytes()).unwrap();
    }
    drop(input);
    assert!(forger.wait().unwrap().success());
}
