//! Tests of loading credentials, of the error messages, and that these contain no secrets.

use std::fs;

use super::{
    super::{CredentialPart, CredentialsError},
    *,
};

fn broken(text: &str) -> CredentialsError {
    let ca = authority();
    let own = issue(&ca, &[HOST], a_day());
    CredentialSource::new(PemSource::bytes(ca.certificate()))
        .identity(PemSource::bytes(own.certificate), PemSource::bytes(text))
        .load()
        .unwrap_err()
}

#[test]
fn files_and_texts_load_alike() {
    let home = tempfile::tempdir().unwrap();
    let ca = authority();
    let [authority, certificate, key] = files(home.path(), &ca, &issue(&ca, &[HOST], a_day()));
    let read = |path| fs::read(path).unwrap();
    let texts =
        WorkerCredentials::from_pem(read(&authority), read(&certificate), read(&key)).unwrap();
    let files = WorkerCredentials::from_files(&authority, &certificate, &key).unwrap();
    assert!(files.is_mutual() && texts.is_mutual());
    assert!(handshake(&files, &texts).is_ok() && handshake(&texts, &files).is_ok());
}

#[test]
fn errors_name_the_file_and_the_fix() {
    let home = tempfile::tempdir().unwrap();
    let ca = authority();
    let [authority, certificate, key] = files(home.path(), &ca, &issue(&ca, &[HOST], a_day()));
    let load = || WorkerCredentials::from_files(&authority, &certificate, &key).unwrap_err();
    let write = |path, content: &str| fs::write(path, content).unwrap();
    let good = fs::read_to_string(&key).unwrap();
    for (content, words) in [
        ("", "there is no private key"),
        ("-----BEGIN PRIVATE KEY-----\nMIGH", "ends in the middle"),
        (
            "-----BEGIN PRIVATE KEY-----\n!!!!\n-----END PRIVATE KEY-----\n",
            "not Base64",
        ),
        (
            "-----BEGIN PRIVATE KEY-----\nMIGH\n-----END PRIVATE KEY-----\n",
            "is not supported",
        ),
        (
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGH\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "is encrypted",
        ),
        (
            &issue(&ca, &[HOST], a_day()).key,
            "does not match the certificate in",
        ),
    ] {
        write(&key, content);
        let error = load().to_string();
        assert!(
            error.contains(words) && error.contains(key.to_str().unwrap()),
            "{content}: {error}"
        );
    }
    write(&key, &good);
    write(&certificate, &good);
    assert!(load().to_string().starts_with(&format!(
        "there is no certificate in the certificate in {}",
        certificate.display()
    )));
    write(
        &certificate,
        "-----BEGIN CERTIFICATE-----\nMIGH\n-----END CERTIFICATE-----\n",
    );
    assert!(matches!(
        load(),
        CredentialsError::BadCertificate { number: 1, .. }
    ));
    fs::remove_file(&authority).unwrap();
    assert!(
        matches!(load(), CredentialsError::Unreadable { origin, .. } if origin.part == CredentialPart::Ca)
    );
    fs::create_dir(&authority).unwrap();
    assert!(load().to_string().contains("not a regular file"));
    fs::remove_dir(&authority).unwrap();
    write(&authority, &"x".repeat(2 << 20));
    assert!(load().to_string().contains("larger than 1 MiB"));
}

#[test]
fn certificate_is_required_to_serve_and_for_mutual_tls() {
    let ca = PemSource::bytes(authority().certificate());
    assert!(matches!(
        CredentialSource::new(ca.clone()).load(),
        Err(CredentialsError::NoIdentity(_))
    ));
    let caller = CredentialSource::new(ca).mutual(false).load().unwrap();
    assert!(matches!(
        caller.server_config(PROTOCOLS),
        Err(CredentialsError::NoIdentity("to serve"))
    ));
}

#[test]
fn keys_never_appear_in_errors_or_debug_output() {
    let home = tempfile::tempdir().unwrap();
    let ca = authority();
    let own = issue(&ca, &[HOST], a_day());
    let secret = own.key.lines().nth(1).unwrap();
    let texts = source(&ca, &own);
    let loaded = texts.clone().load().unwrap();
    let configs = (
        loaded.server_config(PROTOCOLS).unwrap(),
        loaded.client_config(PROTOCOLS),
    );
    let shown = format!("{own:?} {texts:?} {loaded:?} {configs:?}");
    assert!(
        !shown.contains(secret) && !shown.contains("PRIVATE"),
        "{shown}"
    );
    // Corrupt the key in each possible way: its other parts must stay secret.
    let lines: Vec<_> = own.key.lines().collect();
    let spoilt = [
        lines[..lines.len() - 1].join("\n"),
        own.key.replace("-----BEGIN", "----BEGIN"),
        own.key
            .replace("-----END PRIVATE KEY-----", &format!("-----BEGIN {secret}")),
        own.key.replace(secret, &format!("{secret}!")),
        format!("-----BEGIN {secret}\n"),
        own.key.replace("PRIVATE KEY", "RSA PRIVATE KEY"),
    ];
    for text in spoilt {
        let error = broken(&text);
        let log = format!("{error} {error:?}");
        assert!(
            !log.contains(secret) && !log.contains(&secret[..12]),
            "{log}"
        );
        let numbers = format!("{:?}", &secret.as_bytes()[..8]);
        assert!(!log.contains(numbers.trim_matches(['[', ']'])), "{log}");
    }
    files(home.path(), &ca, &own);
}

#[test]
fn server_name_accepts_bracketed_addresses() {
    for (host, shown) in [
        ("[::1]", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("Worker.internal", "Worker.internal"),
    ] {
        assert_eq!(
            WorkerCredentials::server_name(host).unwrap().to_str(),
            shown
        );
    }
    for host in ["", "a b", "host:80", "[::1]:80"] {
        assert!(
            matches!(
                WorkerCredentials::server_name(host),
                Err(CredentialsError::NoHost(_))
            ),
            "{host}"
        );
    }
}
