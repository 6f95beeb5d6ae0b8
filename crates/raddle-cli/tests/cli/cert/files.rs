//! The files that are written, their permissions, and files that are not overwritten.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::{issue, world_with_ca};
use crate::{
    shape::{shape, snapshot},
    world::World,
};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn content(directory: &Path) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut content: Vec<_> = entries
        .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
        .collect();
    content.sort();
    content
}

#[test]
fn creates_a_ca_and_certificates_with_one_command_each() {
    let world = World::new();
    let ran = world
        .raddle(["cert", "ca", "--out", "certs"])
        .ok()
        .stderr_contains("valid until")
        .stderr_contains("keep the key secret");
    assert_eq!(ran.lines(), ["certs/ca-cert.pem", "certs/ca-key.pem"]);
    let ran = world
        .raddle([
            "cert",
            "issue",
            "spiffe://prod/web",
            "127.0.0.1",
            "--ca",
            "certs",
            "--out",
            "etc",
        ])
        .ok();
    assert_eq!(
        ran.lines(),
        ["etc/prod-web-cert.pem", "etc/prod-web-key.pem"]
    );
    for directory in ["certs", "etc"] {
        assert_eq!(mode(&world.path().join(directory)), 0o700);
    }
    for key in ["certs/ca-key.pem", "etc/prod-web-key.pem"] {
        assert_eq!(mode(&world.path().join(key)), 0o600);
    }
    assert_eq!(
        content(&world.path().join("etc")).len(),
        2,
        "no draft is left"
    );
    assert!(
        !world.path().join(".raddle").exists(),
        "no project is needed"
    );
}

#[test]
fn replaces_files_only_with_force() {
    let world = world_with_ca();
    issue(&world, &["a.internal"]);
    let before = content(&world.path().join("certs"));
    world
        .raddle(["cert", "ca", "--out", "certs"])
        .code(2)
        .stderr_contains("ca-cert.pem already exists")
        .stderr_contains("--force");
    world
        .raddle(["cert", "issue", "a.internal", "--ca", "certs"])
        .code(2)
        .stderr_contains("a.internal-cert.pem already exists");
    // Its name would be that of the CA's own files.
    world
        .raddle(["cert", "issue", "ca", "--ca", "certs", "--force"])
        .code(2)
        .stderr_contains("put another name first");
    assert_eq!(content(&world.path().join("certs")), before);
    let (_, key) = issue(&world, &["a.internal", "--force"]);
    assert_eq!(mode(&key), 0o600);
    let after = content(&world.path().join("certs"));
    assert_eq!(
        before
            .iter()
            .zip(&after)
            .filter(|(before, after)| before != after)
            .count(),
        2
    );
}

#[test]
fn refuses_a_directory_without_a_valid_ca() {
    let world = World::new();
    world
        .raddle(["cert", "issue", "a", "--ca", "certs"])
        .code(2)
        .stderr_contains("cannot read certs/ca-cert.pem")
        .stderr_contains("raddle cert ca");
    let world = world_with_ca();
    let (certificate, key) = issue(&world, &["a.internal"]);
    let at = |name: &str| world.path().join(name);
    fs::create_dir(at("leaf")).unwrap();
    fs::copy(&certificate, at("leaf/ca-cert.pem")).unwrap();
    fs::copy(&key, at("leaf/ca-key.pem")).unwrap();
    world
        .raddle(["cert", "issue", "b", "--ca", "leaf"])
        .code(2)
        .stderr_contains("is not that of a CA");
    fs::copy(at("certs/ca-cert.pem"), at("leaf/ca-cert.pem")).unwrap();
    world
        .raddle(["cert", "issue", "b", "--ca", "leaf"])
        .code(2)
        .stderr_contains("does not match its certificate");
    fs::write(at("leaf/ca-key.pem"), "no key").unwrap();
    world
        .raddle(["cert", "issue", "b", "--ca", "leaf"])
        .code(2)
        .stderr_contains("is malformed");
    assert!(!at("leaf/b-cert.pem").exists());
}

#[test]
fn checks_names_before_writing_files() {
    let world = world_with_ca();
    for (names, words) in [
        (&["spiffe://a/x", "spiffe://b/x"][..], "one SPIFFE id"),
        (&["spiffe://Prod/x"], "trust domain"),
        (&["a b"], "give a host name"),
    ] {
        world
            .raddle([&["cert", "issue", "--ca", "certs"], names].concat())
            .code(2)
            .stderr_contains(words);
    }
    assert_eq!(content(&world.path().join("certs")).len(), 2);
}

#[test]
fn a_certificate_expires_no_later_than_its_ca() {
    let world = World::new();
    world
        .raddle(["cert", "ca", "--out", "certs", "--days", "2"])
        .ok();
    let ran = world
        .raddle(["cert", "issue", "a", "--ca", "certs", "--days", "90"])
        .ok()
        .stderr_contains("like the CA");
    assert_eq!(ran.lines()[0], "certs/a-cert.pem");
    let until = |file: &str| {
        world.raddle(["cert", "show", "--json", file]).ok().json()[0]["not_after"].clone()
    };
    assert_eq!(until("certs/a-cert.pem"), until("certs/ca-cert.pem"));
}

#[test]
fn prints_created_files_as_json() {
    let world = World::new();
    let ca = world
        .raddle(["cert", "ca", "--out", "certs", "--json"])
        .ok();
    assert_eq!(ca.stderr, "");
    snapshot!("json_cert_ca", shape(&world, &ca.json()));
    let issued = world
        .raddle([
            "cert",
            "issue",
            "a.internal",
            "spiffe://prod/a",
            "--ca",
            "certs",
            "--json",
        ])
        .ok();
    snapshot!("json_cert_issue", shape(&world, &issued.json()));
}

/// OpenSSL accepts our certificates, and certificates of OpenSSL are accepted here.
#[test]
fn openssl_verifies_issued_certificates() {
    let world = world_with_ca();
    issue(&world, &["a.internal", "10.0.0.7", "spiffe://prod/a"]);
    world
        .bash("openssl verify -x509_strict -purpose sslserver -CAfile certs/ca-cert.pem certs/a.internal-cert.pem")
        .ok();
    world
        .bash("openssl verify -x509_strict -purpose sslclient -CAfile certs/ca-cert.pem certs/a.internal-cert.pem")
        .ok();
    let ran = world
        .bash("openssl x509 -noout -ext subjectAltName -in certs/a.internal-cert.pem")
        .ok();
    let names = "DNS:a.internal, IP Address:10.0.0.7, URI:spiffe://prod/a";
    assert!(ran.text().contains(names), "{}", ran.text());
}
