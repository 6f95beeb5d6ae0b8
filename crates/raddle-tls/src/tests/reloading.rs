//! Tests of files that change under credentials in use.

use std::{
    fs,
    io::{Read as _, Write as _},
};

use rustls::{ClientConnection, ServerConnection};

use super::{
    super::{CredentialsError, HandshakeError, HandshakeErrorKind},
    *,
};
use raddle_process::testing::capture_logs;

struct Files {
    home: tempfile::TempDir,
    paths: [PathBuf; 3],
    credentials: WorkerCredentials,
}

fn loaded(ca: &Authority, own: &IssuedCertificate) -> Files {
    let home = tempfile::tempdir().unwrap();
    let paths = files(home.path(), ca, own);
    let credentials = WorkerCredentials::from_files(&paths[0], &paths[1], &paths[2]).unwrap();
    Files {
        home,
        paths,
        credentials,
    }
}

#[test]
fn changed_files_are_used_by_new_connections_only() {
    let (old, new) = (authority(), authority());
    let worker = loaded(&old, &issue(&old, &[HOST], a_day()));
    let server = serve(&worker.credentials);
    let connect = |caller: &WorkerCredentials| {
        let name = WorkerCredentials::server_name(HOST).unwrap();
        let client = ClientConnection::new(caller.client_config(PROTOCOLS), name).unwrap();
        run_handshake(client, ServerConnection::new(server.clone()).unwrap())
    };
    let (before, after) = (
        credentials(&old, &["web.internal"]),
        credentials(&new, &["web.internal"]),
    );
    let mut met = connect(&before).unwrap();
    assert!(connect(&after).is_err());
    files(worker.home.path(), &new, &issue(&new, &[HOST], a_day()));
    assert!(connect(&before).is_ok(), "not reloaded yet");
    worker.credentials.make_check_due();
    assert!(connect(&after).is_ok());
    assert!(matches!(
        connect(&before).err().unwrap().caller,
        Some(HandshakeError::Ours(HandshakeErrorKind::UnknownIssuer))
    ));
    // The open connection goes on.
    let mut received = [0; 5];
    met.client.writer().write_all(b"still").unwrap();
    let mut log = Vec::new();
    met.client.write_tls(&mut log).unwrap();
    met.server.read_tls(&mut &log[..]).unwrap();
    met.server.process_new_packets().unwrap();
    met.server.reader().read_exact(&mut received).unwrap();
    assert_eq!(&received, b"still");
}

#[test]
fn callers_present_their_new_certificate() {
    let ca = authority();
    let caller = loaded(&ca, &issue(&ca, &["old.internal"], a_day()));
    let worker = credentials(&ca, &[HOST]);
    let name = || {
        handshake(&worker, &caller.credentials)
            .unwrap()
            .caller()
            .unwrap()
            .to_string()
    };
    assert_eq!(name(), "old.internal");
    files(
        caller.home.path(),
        &ca,
        &issue(&ca, &["new.internal"], a_day()),
    );
    caller.credentials.make_check_due();
    assert_eq!(name(), "new.internal");
}

#[test]
fn invalid_files_keep_the_previous_credentials() {
    let ca = authority();
    let worker = loaded(&ca, &issue(&ca, &[HOST], a_day()));
    let [_, certificate, key] = &worker.paths;
    let next = issue(&ca, &[HOST, "spiffe://prod/new"], a_day());
    let caller = credentials(&ca, &["web.internal"]);
    let serves = |new: bool| {
        worker.credentials.make_check_due();
        let met = handshake(&worker.credentials, &caller).unwrap();
        let shown = Identity::from_peer_chain(met.client.peer_certificates())
            .unwrap()
            .unwrap();
        assert_eq!(
            shown.to_string().contains("spiffe://prod/new"),
            new,
            "{shown}"
        );
    };
    serves(false);
    fs::write(certificate, &next.certificate).unwrap();
    serves(false);
    assert!(matches!(
        worker.credentials.reload(),
        Err(CredentialsError::Mismatch { .. })
    ));
    for torn in ["", &next.key[..40], &next.key[..next.key.len() - 20]] {
        fs::write(key, torn).unwrap();
        serves(false);
    }
    fs::remove_file(key).unwrap();
    serves(false);
    assert!(matches!(
        worker.credentials.reload(),
        Err(CredentialsError::Unreadable { .. })
    ));
    fs::write(key, &next.key).unwrap();
    serves(true);
    assert!(
        !worker.credentials.reload().unwrap(),
        "there is nothing new"
    );
}

/// As Kubernetes replaces a secret: the files are links into a directory that is itself a link, and
/// only that one is replaced.
#[test]
fn replaced_symbolic_link_is_noticed() {
    use std::os::unix::fs::symlink;
    let ca = authority();
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let put = |name: &str, host: &str| {
        fs::create_dir(at(name)).unwrap();
        files(&at(name), &ca, &issue(&ca, &[host], a_day()));
    };
    put("1", "one.internal");
    put("2", "two.internal");
    symlink("1", at("data")).unwrap();
    for name in ["ca.pem", "own-cert.pem", "own-key.pem"] {
        symlink(Path::new("data").join(name), at(name)).unwrap();
    }
    let caller =
        WorkerCredentials::from_files(at("ca.pem"), at("own-cert.pem"), at("own-key.pem")).unwrap();
    symlink("2", at("next")).unwrap();
    fs::rename(at("next"), at("data")).unwrap();
    assert!(caller.reload().unwrap());
    let met = handshake(&credentials(&ca, &[HOST]), &caller).unwrap();
    assert_eq!(met.caller().unwrap().to_string(), "two.internal");
}

/// The mtime may be equal to the previous one, if a file is restored, or written within a clock
/// tick.
#[test]
fn change_with_an_equal_mtime_is_noticed() {
    let ca = authority();
    let worker = loaded(&ca, &issue(&ca, &[HOST], a_day()));
    for _ in 0..3 {
        let times: Vec<_> = worker
            .paths
            .iter()
            .map(|path| fs::metadata(path).unwrap().modified().unwrap())
            .collect();
        let next = issue(&ca, &[HOST], a_day());
        fs::write(&worker.paths[1], &next.certificate).unwrap();
        fs::write(&worker.paths[2], &next.key).unwrap();
        for (path, time) in worker.paths.iter().zip(times) {
            fs::File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_modified(time)
                .unwrap();
        }
        assert!(worker.credentials.reload().unwrap());
    }
}

#[test]
fn error_is_logged_once_without_secrets() {
    let ca = authority();
    let worker = loaded(&ca, &issue(&ca, &[HOST], a_day()));
    let next = issue(&ca, &[HOST], a_day());
    let key = &worker.paths[2];
    let reload_log = || capture_logs(|| drop(worker.credentials.reload()));
    fs::write(key, &next.key).unwrap();
    let log = reload_log();
    assert!(
        log.contains("WARN")
            && log.contains(key.to_str().unwrap())
            && log.contains("keeping the previous"),
        "{log}"
    );
    assert_eq!(reload_log(), "", "unchanged");
    fs::write(key, &next.key[..next.key.len() - 30]).unwrap();
    let log = reload_log();
    assert!(log.contains("ends in the middle"), "{log}");
    let secret = &next.key.lines().nth(1).unwrap()[..12];
    assert!(!log.contains(secret), "{log}");
    fs::write(key, &next.key).unwrap();
    fs::write(&worker.paths[1], &next.certificate).unwrap();
    assert!(reload_log().contains("credentials changed; new connections"));
}

#[test]
fn unusable_certificate_is_logged_at_load() {
    let ca = authority();
    let old = source(&ca, &issue(&ca, &[HOST], yesterday()));
    let log = capture_logs(|| drop(old.load().unwrap()));
    assert!(log.contains("WARN") && log.contains("has expired"), "{log}");
    let good = source(&ca, &issue(&ca, &[HOST], a_day()));
    assert_eq!(capture_logs(|| drop(good.load().unwrap())), "");
}
