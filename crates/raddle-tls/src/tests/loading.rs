//! What credentials are read from, what is said when they cannot be, and what is never said.

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
fn files_and_texts_come_to_the_same() {
    let home = tempfile::tempdir().unwrap();
    let ca = authority();
    let [authority, certificate, key] = files(home.path(), &ca, &issue(&ca, &[HOST], a_day()));
    let read = |path| fs::read(path).unwrap();
    let texts =
        WorkerCredentials::from_pem(read(&authority), read(&certificate), read(&key)).unwrap();
    let files = WorkerCredentials::from_files(&authority, &certificate, &key).unwrap();
    assert!(files.is_mutual() && texts.is_mutual());
    assert!(meet(&files, &texts).is_ok() && meet(&texts, &files).is_ok());
}

#[test]
fn an_error_names_its_file_and_what_to_do() {
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
            "no Base64",
        ),
        (
            "-----BEGIN PRIVATE KEY-----\nMIGH\n-----END PRIVATE KEY-----\n",
            "of no kind that is supported",
        ),
        (
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGH\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "is encrypted",
        ),
        (
            &issue(&ca, &[HOST], a_day()).key,
            "does not belong to the certificate in",
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
        matches!(load(), CredentialsError::Unreadable { place, .. } if place.part == CredentialPart::Ca)
    );
    fs::create_dir(&authority).unwrap();
    assert!(load().to_string().contains("it is no file"));
    fs::remove_dir(&authority).unwrap();
    write(&authority, &"x".repeat(2 << 20));
    assert!(load().to_string().contains("larger than 1 MiB"));
}

#[test]
fn who_has_to_show_a_certificate_has_to_have_one() {
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
fn nothing_of_a_key_is_ever_shown() {
    let home = tempfile::tempdir().unwrap();
    let ca = authority();
    let own = issue(&ca, &[HOST], a_day());
    let secret = own.key.lines().nth(1).unwrap();
    let texts = recipe(&ca, &own);
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
    // In every way that a key can be spoilt, the rest of it is still a secret.
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
        let said = format!("{error} {error:?}");
        assert!(
            !said.contains(secret) && !said.contains(&secret[..12]),
            "{said}"
        );
        let numbers = format!("{:?}", &secret.as_bytes()[..8]);
        assert!(!said.contains(numbers.trim_matches(['[', ']'])), "{said}");
    }
    files(home.path(), &ca, &own);
}

#[test]
fn hosts_are_those_of_addresses() {
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
