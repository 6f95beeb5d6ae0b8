//! Workers with credentials and rules.

use std::{path::Path, time::SystemTime};

use raddle::{
    CallError,
    tls::{
        WorkerCredentials,
        issue::{Authority, IssuedCertificate, Validity},
    },
};

use crate::{
    routines,
    server::{PoolServer, ServerDir},
    within,
};

pub(crate) struct Trust(Authority);

impl Trust {
    pub(crate) fn new() -> Self {
        Self(
            Authority::new("test", Validity::days(SystemTime::now(), 1))
                .unwrap()
                .0,
        )
    }

    /// Writes credentials with these names.
    pub(crate) fn files(&self, directory: &Path, name: &str, names: &[&str]) {
        let names: Vec<_> = names.iter().map(|name| name.parse().unwrap()).collect();
        let IssuedCertificate {
            certificate, key, ..
        } = self
            .0
            .issue(&names, Validity::days(SystemTime::now(), 1))
            .unwrap();
        std::fs::write(directory.join("ca.pem"), self.0.certificate()).unwrap();
        std::fs::write(directory.join(format!("{name}.pem")), certificate).unwrap();
        std::fs::write(directory.join(format!("{name}.key")), key).unwrap();
    }
}

fn load_credentials(directory: &Path, name: &str) -> WorkerCredentials {
    let file = |name: String| directory.join(name);
    WorkerCredentials::from_files(
        file("ca.pem".into()),
        file(format!("{name}.pem")),
        file(format!("{name}.key")),
    )
    .unwrap()
}

pub(crate) const CREDENTIALS: [&str; 6] = [
    "--credentials-ca",
    "ca.pem",
    "--credentials-cert",
    "worker.pem",
    "--credentials-key",
    "worker.key",
];

#[tokio::test(flavor = "multi_thread")]
async fn authenticates_and_authorizes_callers() {
    within(120, async {
        let world = ServerDir::new();
        let trust = Trust::new();
        trust.files(world.path(), "worker", &["127.0.0.1"]);
        trust.files(world.path(), "web", &["spiffe://test/web"]);
        std::fs::write(
            world.path().join("rules"),
            "# callers\nspiffe://test/web = add\n",
        )
        .unwrap();
        let rules = [
            "--json",
            "--workers",
            "1",
            "--allow-file",
            "rules",
            "--allow",
            "spiffe://test/ops = @stop",
        ];
        let command = world.command(&[&rules[..], &CREDENTIALS].concat());
        let served = PoolServer::start_command(world, command).await;
        let worker = served.workers().remove(0);
        assert!(
            worker.secure && worker.address.starts_with("127.0.0.1:"),
            "{worker:?}"
        );
        let pool = served
            .pool()
            .credentials(load_credentials(served.path(), "web"))
            .start()
            .await
            .unwrap();
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        let denied = routines::pid().on(&pool).await;
        assert!(matches!(denied, Err(CallError::Denied(_))), "{denied:?}");
        let plain = served.pool().start().await.unwrap();
        assert!(
            plain.workers().is_empty(),
            "without credentials no worker is usable"
        );
        // Signals stop the server whatever the rules are.
        served.interrupt().assert_ends(0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn public_workers_are_reached_by_their_certificate_name() {
    within(120, async {
        let world = ServerDir::new();
        let trust = Trust::new();
        trust.files(world.path(), "worker", &["localhost"]);
        trust.files(world.path(), "web", &["web.internal"]);
        let open = [
            "--json",
            "--workers",
            "2",
            "--bind",
            "0.0.0.0:0",
            "--advertise",
            "localhost",
        ];
        let command = world.command(&[&open[..], &CREDENTIALS].concat());
        let served = PoolServer::start_command(world, command).await;
        let pool = served
            .pool()
            .credentials(load_credentials(served.path(), "web"))
            .start()
            .await
            .unwrap();
        for _ in 0..4 {
            assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        }
        served.terminate().assert_ends(0).await;
    })
    .await;
}
