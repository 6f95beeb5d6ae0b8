//! TLS, passwords and client certificates, with and without sentinels.

use std::{fs, net::TcpListener, path::Path, process::Command};

use raddle_broker::Error;

use super::{redis_server::Server, support::*};

/// A self-signed certificate: CA, server and client in one.
struct Identity {
    directory: tempfile::TempDir,
}

impl Identity {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let made = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "2",
            ])
            .args([
                "-subj",
                "/CN=raddle",
                "-addext",
                "subjectAltName=IP:127.0.0.1",
            ])
            .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout"])
            .arg(directory.path().join("key.pem"))
            .arg("-out")
            .arg(directory.path().join("cert.pem"))
            .output()
            .expect("openssl is installed");
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        Self { directory }
    }

    fn file(&self, name: &str) -> String {
        self.directory
            .path()
            .join(name)
            .to_str()
            .expect("temporary directories have plain names")
            .to_owned()
    }

    /// The settings of a server with this certificate.
    fn server(&self, port: u16, clients: &str) -> Vec<(&'static str, String)> {
        vec![
            ("tls-port", port.to_string()),
            ("tls-cert-file", self.file("cert.pem")),
            ("tls-key-file", self.file("key.pem")),
            ("tls-ca-cert-file", self.file("cert.pem")),
            ("tls-auth-clients", clients.into()),
        ]
    }

    /// The URL parameters of a client with this certificate.
    fn client(&self) -> String {
        format!(
            "ca={}&cert={}&key={}",
            self.file("cert.pem"),
            self.file("cert.pem"),
            self.file("key.pem")
        )
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// A server with an append-only file and these settings.
fn start(settings: &[(&'static str, String)]) -> Server {
    let mut args = vec!["--appendonly".to_owned(), "yes".into()];
    for (name, value) in settings {
        args.extend([format!("--{name}"), value.clone()]);
    }
    Server::with(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

fn start_sentinel(
    directory: &Path,
    settings: &[(&'static str, String)],
    monitor: &[String],
) -> Server {
    let mut lines: Vec<String> = settings
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    lines.extend_from_slice(monitor);
    let config = directory.join("sentinel.conf");
    fs::write(&config, lines.join("\n")).unwrap();
    Server::sentinel(&config)
}

#[tokio::test]
async fn trusts_only_the_authority_in_the_url() {
    let (identity, port) = (Identity::new(), free_port());
    let _server = start(&identity.server(port, "no"));
    let url = format!("rediss://127.0.0.1:{port}?namespace=x");
    let broker = open(&format!("{url}&ca={}", identity.file("cert.pem")))
        .await
        .unwrap();
    broker.submit(vec![task("one")]).await.unwrap();
    let error = open_error(&url).await;
    assert!(
        matches!(error, Error::Unreachable { .. } | Error::Server { .. }),
        "{error}"
    );
    let error = open_error(&format!("{url}&ca=/nowhere/ca.pem")).await;
    assert!(error.to_string().contains("/nowhere/ca.pem"), "{error}");
}

#[tokio::test]
async fn presents_its_client_certificate() {
    let (identity, port) = (Identity::new(), free_port());
    let _server = start(&identity.server(port, "yes"));
    let url = format!("rediss://127.0.0.1:{port}?namespace=x&give_up_after=1s");
    let broker = open(&format!("{url}&{}", identity.client())).await.unwrap();
    broker.submit(vec![task("one")]).await.unwrap();
    let error = open_error(&format!("{url}&ca={}", identity.file("cert.pem"))).await;
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

/// Master and sentinel have a password each, and require TLS with a client certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reaches_sentinel_and_master_by_password_and_certificate() {
    let (identity, master_port, sentinel_port) = (Identity::new(), free_port(), free_port());
    let mut settings = identity.server(master_port, "yes");
    settings.push(("requirepass", "of-master".into()));
    let _master = start(&settings);
    let mut settings = identity.server(sentinel_port, "yes");
    settings.extend([
        ("tls-replication", "yes".into()),
        ("requirepass", "of-sentinel".into()),
    ]);
    let monitor = [
        format!("sentinel monitor main 127.0.0.1 {master_port} 1"),
        "sentinel auth-pass main of-master".into(),
    ];
    let _sentinel = start_sentinel(identity.directory.path(), &settings, &monitor);

    let url = |master: &str, sentinel: &str, files: &str| {
        format!(
            "rediss+sentinel://:{master}@127.0.0.1:{sentinel_port}/main?namespace=x&give_up_after=1s&sentinel_password={sentinel}&{files}"
        )
    };
    let broker = open(&url("of-master", "of-sentinel", &identity.client()))
        .await
        .unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    let tid = broker.submit(vec![task("one")]).await.unwrap()[0].tid();
    assert_eq!(
        broker.claim(request(worker, 1)).await.unwrap()[0]
            .attempt_id
            .tid,
        tid
    );

    let error = open_error(&url("of-master", "wrong", &identity.client())).await;
    assert!(
        error.to_string().contains("sentinel") && error.to_string().contains("password"),
        "{error}"
    );
    let error = open_error(&url("wrong", "of-sentinel", &identity.client())).await;
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    let error = open_error(&url(
        "of-master",
        "of-sentinel",
        &format!("ca={}", identity.file("cert.pem")),
    ))
    .await;
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}
