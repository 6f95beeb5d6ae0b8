//! `TargetServer`: a worker under attack, with its metrics, log and memory.

use std::{fs::File, path::Path, process::Command, time::SystemTime};

use raddle::{
    pool::WorkerMetadata,
    tls::{
        CredentialSource, PeerName, PemSource, WorkerCredentials,
        issue::{Authority, IssuedCertificate, Validity},
    },
};

use crate::{
    server::{PoolServer, ServerDir, http_get},
    wait_until,
};

/// A secret that must not appear in the log.
pub(crate) const SECRET: &str = "hunter2-hunter2";

/// A worker on a TCP port of this machine.
pub(crate) struct TargetServer {
    served: PoolServer,
    worker: WorkerMetadata,
    trust: Trust,
    is_secure: bool,
}

/// The CA that the worker trusts.
pub(crate) struct Trust {
    pub(crate) authority: Authority,
    /// The CA's own certificate, which a peer may present.
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

    /// Credentials that trust this CA and expect a test worker, without a certificate.
    pub(crate) fn source(&self) -> CredentialSource {
        let expected: PeerName = "spiffe://test/worker".parse().unwrap();
        CredentialSource::new(PemSource::bytes(self.authority.certificate())).expecting([expected])
    }

    /// The same with this certificate.
    pub(crate) fn with_identity(&self, own: &IssuedCertificate) -> CredentialSource {
        self.source().identity(
            PemSource::bytes(&own.certificate),
            PemSource::bytes(&own.key),
        )
    }

    pub(crate) fn caller(&self, name: &str) -> WorkerCredentials {
        self.with_identity(&self.issue(name)).load().unwrap()
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

impl TargetServer {
    /// A worker without TLS.
    pub(crate) async fn plain() -> Self {
        Self::start(&[], None, Trust::new(), "spiffe://test/worker").await
    }

    /// The same with a limit of open descriptors.
    pub(crate) async fn with_fd_limit(descriptors: u32) -> Self {
        Self::start(&[], Some(descriptors), Trust::new(), "spiffe://test/worker").await
    }

    /// A worker with mutual TLS.
    pub(crate) async fn secure(args: &[&str]) -> Self {
        Self::named("spiffe://test/worker", Trust::new(), args).await
    }

    /// The same with this name and CA.
    pub(crate) async fn named(name: &str, trust: Trust, args: &[&str]) -> Self {
        Self::start(&[&CREDENTIALS, args].concat(), None, trust, name).await
    }

    async fn start(args: &[&str], descriptors: Option<u32>, trust: Trust, name: &str) -> Self {
        let world = ServerDir::new();
        trust.files(world.path(), name);
        let mut command = world.command(&[&COMMON[..], &["127.0.0.1:0"], args].concat());
        if let Some(descriptors) = descriptors {
            command = limit_fds(&command, descriptors);
        }
        command.stderr(File::create(world.path().join("log")).unwrap());
        let served = PoolServer::start_command(world, command).await;
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

    /// The credentials of an honest caller, if it needs any.
    pub(crate) fn honest(&self) -> Option<WorkerCredentials> {
        self.is_secure
            .then(|| self.trust.caller("spiffe://test/honest"))
    }

    /// The value of a metric.
    pub(crate) async fn metric(&self, series: &str) -> u64 {
        let url = self.served.ready["metrics"].as_str().unwrap().to_owned();
        let (_, metrics_text) = tokio::task::spawn_blocking(move || http_get(&url, "/metrics"))
            .await
            .unwrap();
        let found = metrics_text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        found
            .unwrap_or_else(|| panic!("{series} is not in:\n{metrics_text}"))
            .parse()
            .unwrap()
    }

    /// The number of refusals for these reasons.
    pub(crate) async fn refused(&self, reasons: &[&str]) -> u64 {
        let mut sum = 0;
        for reason in reasons {
            sum += self
                .metric(&format!("raddle_pool_refused_total{{reason=\"{reason}\"}}"))
                .await;
        }
        sum
    }

    /// Waits until this many refusals for these reasons are counted and one is logged.
    pub(crate) async fn wait_until_refused(&self, reasons: &[&str], count: u64) {
        wait_until(
            &format!("{count} refusals are counted: {reasons:?}"),
            async || self.refused(reasons).await >= count,
        )
        .await;
        let is_logged = |log: &str| {
            reasons
                .iter()
                .any(|reason| log.contains(&format!("reason=\"{reason}\"")))
        };
        wait_until(&format!("{reasons:?} are logged"), async || {
            is_logged(&self.log())
        })
        .await;
    }

    /// The log, which is checked for secrets and control characters.
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

    /// Memory of the worker in MiB: `VmRSS` is resident, `VmSize` is reserved.
    pub(crate) fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.worker.pid)).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
    }

    /// Checks that the worker was never replaced and logged little, and stops it.
    pub(crate) async fn assert_healthy_and_stop(self) {
        assert_eq!(
            self.metric("raddle_pool_worker_losses_total").await,
            0,
            "{}",
            self.log()
        );
        let log = self.log();
        assert!(log.lines().count() < 100, "the log is flooded:\n{log}");
        self.served.terminate().assert_ends(0).await;
    }
}

/// The same command under a `ulimit` of descriptors.
fn limit_fds(command: &Command, descriptors: u32) -> Command {
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
