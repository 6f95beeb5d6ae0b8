//! Files that change under credentials in use.

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
fn what_changes_is_used_by_the_next_connection_and_the_last_one_goes_on() {
    let (old, new) = (authority(), authority());
    let worker = loaded(&old, &issue(&old, &[HOST], a_day()));
    let server = serve(&worker.credentials);
    let connect = |caller: &WorkerCredentials| {
        let name = WorkerCredentials::server_name(HOST).unwrap();
        let client = ClientConnection::new(caller.client_config(PROTOCOLS), name).unwrap();
        shake(client, ServerConnection::new(server.clone()).unwrap())
    };
    let (before, after) = (
        credentials(&old, &["web.internal"]),
        credentials(&new, &["web.internal"]),
    );
    let mut met = connect(&before).unwrap();
    assert!(connect(&after).is_err());
    files(worker.home.path(), &new, &issue(&new, &[HOST], a_day()));
    assert!(connect(&before).is_ok(), "nobody has looked yet");
    worker.credentials.is_due();
    assert!(connect(&after).is_ok());
    assert!(matches!(
        connect(&before).err().unwrap().caller,
        Some(HandshakeError::Ours(HandshakeErrorKind::UnknownIssuer))
    ));
    // What was up is up.
    let mut heard = [0; 5];
    met.client.writer().write_all(b"still").unwrap();
    let mut said = Vec::new();
    met.client.write_tls(&mut said).unwrap();
    met.server.read_tls(&mut &said[..]).unwrap();
    met.server.process_new_packets().unwrap();
    met.server.reader().read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"still");
}

#[test]
fn callers_show_their_new_certificate_too() {
    let ca = authority();
    let caller = loaded(&ca, &issue(&ca, &["old.internal"], a_day()));
    let worker = credentials(&ca, &[HOST]);
    let name = || {
        meet(&worker, &caller.credentials)
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
    caller.credentials.is_due();
    assert_eq!(name(), "new.internal");
}

#[test]
fn what_is_torn_or_bad_changes_nothing_until_it_is_whole() {
    let ca = authority();
    let worker = loaded(&ca, &issue(&ca, &[HOST], a_day()));
    let [_, certificate, key] = &worker.paths;
    let next = issue(&ca, &[HOST, "spiffe://prod/new"], a_day());
    let caller = credentials(&ca, &["web.internal"]);
    let serves = |new: bool| {
        worker.credentials.is_due();
        let met = meet(&worker.credentials, &caller).unwrap();
        let shown = Identity::of_peer(met.client.peer_certificates())
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

/// As Kubernetes changes a secret: the files are links into a directory that is a link, and that alone is replaced.
#[test]
fn a_link_that_is_replaced_is_seen() {
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
    let met = meet(&credentials(&ca, &[HOST]), &caller).unwrap();
    assert_eq!(met.caller().unwrap().to_string(), "two.internal");
}

/// Its times may be those of before, where a file is restored or written within a tick of the clock.
#[test]
fn a_change_is_seen_by_more_than_its_time() {
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
fn what_is_bad_is_said_once_and_without_secrets() {
    let ca = authority();
    let worker = loaded(&ca, &issue(&ca, &[HOST], a_day()));
    let next = issue(&ca, &[HOST], a_day());
    let key = &worker.paths[2];
    let look = || capture_logs(|| drop(worker.credentials.reload()));
    fs::write(key, &next.key).unwrap();
    let said = look();
    assert!(
        said.contains("WARN") && said.contains(key.to_str().unwrap()) && said.contains("go on"),
        "{said}"
    );
    assert_eq!(look(), "", "it is as it was");
    fs::write(key, &next.key[..next.key.len() - 30]).unwrap();
    let said = look();
    assert!(said.contains("ends in the middle"), "{said}");
    let secret = &next.key.lines().nth(1).unwrap()[..12];
    assert!(!said.contains(secret), "{said}");
    fs::write(key, &next.key).unwrap();
    fs::write(&worker.paths[1], &next.certificate).unwrap();
    assert!(look().contains("have changed; new connections"));
}

#[test]
fn what_peers_will_refuse_is_said_at_once() {
    let ca = authority();
    let old = recipe(&ca, &issue(&ca, &[HOST], yesterday()));
    let said = capture_logs(|| drop(old.load().unwrap()));
    assert!(
        said.contains("WARN") && said.contains("it has expired"),
        "{said}"
    );
    let good = recipe(&ca, &issue(&ca, &[HOST], a_day()));
    assert_eq!(capture_logs(|| drop(good.load().unwrap())), "");
}
