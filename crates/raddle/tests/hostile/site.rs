//! Workers that are attacked: what they count, what they say, and how much they take.

use std::{fs::File, path::Path, process::Command, time::SystemTime};

use raddle::{
    pool::WorkerMetadata,
    tls::{
        CredentialSource, PeerName, PemSource, WorkerCredentials,
        issue::{Authority, IssuedCertificate, Validity},
    },
};

use crate::{
    served::{Served, World, page},
    until,
};

/// What nobody may find in a log.
pub(crate) const SECRET: &str = "hunter2-hunter2";

/// A worker that serves at a port of this machine.
pub(crate) struct Site {
    served: Served,
    worker: WorkerMetadata,
    trust: Trust,
    is_secure: bool,
}

/// Whoever has a certificate of it is believed.
pub(crate) struct Trust {
    pub(crate) authority: Authority,
    /// As somebody shows it who is no CA.
    pub(crate) own: IssuedCertificate,
}

impl Trust {
    pub(crate) fn new() -> Self {
        let (authority, own) =
            Authority::new("test", Validity::days(SystemTime::now(), 1)).unwrap();
        Self { authority, own }
    }

    pub(crate) fn issue(&self, name: &str) -> IssuedCertificate {
        self.authority
            .issue(
                &[name.parse().unwrap()],
                Validity::days(SystemTime::now(), 1),
            )
            .unwrap()
    }

    /// Of somebody who believes this, expects a worker of the tests, and shows nothing yet.
    pub(crate) fn recipe(&self) -> CredentialSource {
        let expected: PeerName = "spiffe://test/worker".parse().unwrap();
        CredentialSource::new(PemSource::bytes(self.authority.certificate())).expecting([expected])
    }

    /// The same, of somebody who shows this.
    pub(crate) fn shows(&self, own: &IssuedCertificate) -> CredentialSource {
        self.recipe().identity(
            PemSource::bytes(&own.certificate),
            PemSource::bytes(&own.key),
        )
    }

    pub(crate) fn caller(&self, name: &str) -> WorkerCredentials {
        self.shows(&self.issue(name)).load().unwrap()
    }

    fn files(&self, directory: &Path, name: &str) {
        let IssuedCertificate {
            certificate, key, ..
        } = self.issue(name);
        let files = [
            ("ca.pem", self.authority.certificate()),
            ("own.pem", &certificate),
            ("own.key", &key),
        ];
        files
            .iter()
            .for_each(|(file, text)| std::fs::write(directory.join(file), text).unwrap());
    }
}

const COMMON: [&str; 6] = [
    "--json",
    "--workers",
    "1",
    "--metrics-addr",
    "127.0.0.1:0",
    "--bind",
];
const CREDENTIALS: [&str; 6] = [
    "--credentials-ca",
    "ca.pem",
    "--credentials-cert",
    "own.pem",
    "--credentials-key",
    "own.key",
];

impl Site {
    /// One that whoever comes can call.
    pub(crate) async fn plain() -> Self {
        Self::start(&[], None, Trust::new(), "spiffe://test/worker").await
    }

    /// The same, with no more descriptors than this.
    pub(crate) async fn narrow(descriptors: u32) -> Self {
        Self::start(&[], Some(descriptors), Trust::new(), "spiffe://test/worker").await
    }

    /// One that has everybody prove who they are.
    pub(crate) async fn secure(args: &[&str]) -> Self {
        Self::named("spiffe://test/worker", Trust::new(), args).await
    }

    /// The same, of this name and trust.
    pub(crate) async fn named(name: &str, trust: Trust, args: &[&str]) -> Self {
        Self::start(&[&CREDENTIALS, args].concat(), None, trust, name).await
    }

    async fn start(args: &[&str], descriptors: Option<u32>, trust: Trust, name: &str) -> Self {
        let world = World::new();
        trust.files(world.path(), name);
        let mut command = world.command(&[&COMMON[..], &["127.0.0.1:0"], args].concat());
        if let Some(descriptors) = descriptors {
            command = narrowed(&command, descriptors);
        }
        command.stderr(File::create(world.path().join("log")).unwrap());
        let served = Served::started(world, command).await;
        let worker = served.workers().remove(0);
        Self {
            served,
            worker,
            trust,
            is_secure: !args.is_empty(),
        }
    }

    pub(crate) fn trust(&self) -> &Trust {
        &self.trust
    }

    pub(crate) fn worker(&self) -> WorkerMetadata {
        self.worker.clone()
    }

    pub(crate) fn address(&self) -> &str {
        &self.worker.address
    }

    /// What an honest caller has, if it needs anything.
    pub(crate) fn honest(&self) -> Option<WorkerCredentials> {
        self.is_secure
            .then(|| self.trust.caller("spiffe://test/honest"))
    }

    /// What its metrics say of this.
    pub(crate) async fn number(&self, series: &str) -> u64 {
        let url = self.served.said["metrics"].as_str().unwrap().to_owned();
        let (_, shown) = tokio::task::spawn_blocking(move || page(&url, "/metrics"))
            .await
            .unwrap();
        let found = shown
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        found
            .unwrap_or_else(|| panic!("{series} is not in:\n{shown}"))
            .parse()
            .unwrap()
    }

    /// How many were refused for one of these reasons.
    pub(crate) async fn refused(&self, reasons: &[&str]) -> u64 {
        let mut sum = 0;
        for reason in reasons {
            sum += self
                .number(&format!("raddle_pool_refused_total{{reason=\"{reason}\"}}"))
                .await;
        }
        sum
    }

    /// Waits until so many were refused for one of these reasons, and the log tells of it.
    pub(crate) async fn tells(&self, reasons: &[&str], count: u64) {
        until(&format!("{count} are refused: {reasons:?}"), async || {
            self.refused(reasons).await >= count
        })
        .await;
        let told = |log: &str| {
            reasons
                .iter()
                .any(|reason| log.contains(&format!("reason=\"{reason}\"")))
        };
        until(&format!("the log tells of {reasons:?}"), async || {
            told(&self.log())
        })
        .await;
    }

    /// What it has logged, in which there is nothing that is nobody's business.
    pub(crate) fn log(&self) -> String {
        let log = std::fs::read_to_string(self.served.path().join("log")).unwrap();
        let key = std::fs::read_to_string(self.served.path().join("own.key")).unwrap();
        let line = key.lines().nth(1).unwrap();
        for secret in [SECRET, line, "PRIVATE KEY", "BEGIN CERTIFICATE"] {
            assert!(!log.contains(secret), "{secret} is in the log:\n{log}");
        }
        assert!(
            !log.contains(|char: char| char.is_control() && char != '\n'),
            "{log:?}"
        );
        log
    }

    /// Memory of the worker, in MiB: `VmRSS` is what it has, `VmSize` what it has asked for.
    pub(crate) fn memory(&self, what: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.worker.pid)).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(what)?.strip_prefix(':'))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
    }

    /// It is the same process as ever, says little, and ends in good order.
    pub(crate) async fn ends(self) {
        assert_eq!(
            self.number("raddle_pool_worker_losses_total").await,
            0,
            "{}",
            self.log()
        );
        let log = self.log();
        assert!(log.lines().count() < 100, "the log is flooded:\n{log}");
        self.served.terminate().ends(0).await;
    }
}

/// The same command by a shell that has no more descriptors than this to give.
fn narrowed(command: &Command, descriptors: u32) -> Command {
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        &format!("ulimit -n {descriptors} && exec \"$0\" \"$@\""),
    ]);
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
        .current_dir(command.get_current_dir().unwrap())
        .stdin(std::process::Stdio::null());
    shell
}
