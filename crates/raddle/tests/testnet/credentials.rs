//! Hosts with valid, expired and foreign certificates.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use raddle::tls::issue::{Authority, IssuedCertificate, Validity};
use raddle_testnet::Lan;

use crate::{Load, Machine, Settings, load::failed_calls, pause};

struct TestCa(Authority);

impl TestCa {
    fn new() -> Self {
        Self(
            Authority::new("test", Validity::days(SystemTime::now(), 1))
                .unwrap()
                .0,
        )
    }

    /// Writes the files of a machine: a certificate valid until `until`, and the CA of `others` as
    /// the trusted one.
    fn files(
        &self,
        directory: &Path,
        name: &str,
        until: SystemTime,
        others: &Self,
    ) -> [PathBuf; 3] {
        let validity = Validity {
            from: SystemTime::now() - Duration::from_secs(7_200),
            until,
        };
        let IssuedCertificate {
            certificate, key, ..
        } = self.0.issue(&[name.parse().unwrap()], validity).unwrap();
        let files = ["ca.pem", "own.pem", "own.key"].map(|file| directory.join(file));
        for (file, text) in files
            .iter()
            .zip([others.0.certificate(), &certificate, &key])
        {
            std::fs::write(file, text).unwrap();
        }
        files
    }
}

const CREDENTIALS: [&str; 8] = [
    "--workers",
    "1",
    "--credentials-ca",
    "ca.pem",
    "--credentials-cert",
    "own.pem",
    "--credentials-key",
    "own.key",
];

#[test]
fn calls_only_hosts_with_valid_certificates() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let (lan, trust, other_ca) = (Lan::new(), TestCa::new(), TestCa::new());
    let (now, hour) = (SystemTime::now(), Duration::from_secs(3_600));
    let mut machines = [(); 4].map(|()| Machine::new(&lan));
    let caller = Machine::new(&lan);
    let mut workers = Vec::new();
    for (machine, (ca, until, name)) in machines.iter_mut().zip([
        (&trust, now + hour, None),
        (&trust, now - hour, None),
        (&other_ca, now + hour, None),
        (&trust, now + hour, Some("other.host")),
    ]) {
        let own = machine.host.ipv4().to_string();
        ca.files(machine.path(), name.unwrap_or(&own), until, &trust);
        workers.extend(machine.serve(&CREDENTIALS));
    }
    let settings = Settings {
        workers: Some(workers),
        ..Settings::default()
    };
    let credentials = Some(trust.files(caller.path(), "web.internal", now + hour, &trust));
    let load = Load::start(
        &caller,
        &Settings {
            credentials,
            ..settings.clone()
        },
    );
    load.wait_until_only(&[machines[0].name()]);
    pause(1_500);
    let calls = load.stop();
    assert!(
        failed_calls(&calls).is_empty(),
        "{:#?}",
        failed_calls(&calls)
    );
    assert!(
        calls
            .iter()
            .all(|call| call.host.as_deref() == Some(machines[0].name()))
    );
    // The reverse: the caller's certificate is invalid.
    for (ca, until) in [(&trust, now - hour), (&other_ca, now + hour)] {
        let credentials = Some(ca.files(caller.path(), "web.internal", until, &trust));
        let load = Load::start(
            &caller,
            &Settings {
                credentials,
                timeout: Some(5_000),
                ..settings.clone()
            },
        );
        pause(1_500);
        let calls = load.stop();
        assert!(
            !calls.is_empty() && failed_calls(&calls).len() == calls.len(),
            "{calls:#?}"
        );
        assert!(
            calls
                .iter()
                .all(|call| !call.may_have_begun && call.ended - call.began < 2_000),
            "{calls:#?}"
        );
    }
}
