//! The report about certificates, and secrets that are not in it.

use std::fs;

use super::{issue, world_with_ca};
use crate::shape::snapshot;

/// The text with what is different each time taken out.
fn tame(text: &str) -> String {
    let tame = |line: &str| match line.split_once(' ') {
        Some((label @ ("serial" | "sha256"), _)) => format!("{label:<12} [{label}]"),
        Some(("valid", rest)) => {
            let left = rest
                .split_once('(')
                .map(|(_, left)| format!(" ({left}"))
                .unwrap_or_default();
            let label = rest.split_whitespace().next().unwrap();
            format!("{:<12} [time]{left}", format!("valid {label}"))
        }
        _ => line.to_owned(),
    };
    text.lines().map(tame).collect::<Vec<_>>().join("\n")
}

#[test]
fn shows_certificates_as_text() {
    let world = world_with_ca();
    let (certificate, _) = issue(
        &world,
        &["worker.internal", "10.0.0.7", "spiffe://prod/render"],
    );
    let ca = world.read("certs/ca-cert.pem");
    world.file("both.pem", fs::read_to_string(certificate).unwrap() + &ca);
    let ran = world.raddle(["cert", "show", "both.pem"]).ok();
    snapshot!("cert_show", tame(ran.text()));
}

#[test]
fn shows_certificates_as_json() {
    let world = world_with_ca();
    let (certificate, _) = issue(&world, &["worker.internal", "::1"]);
    let mut shown = world
        .raddle(["cert", "show", "--json", certificate.to_str().unwrap()])
        .ok()
        .json();
    for key in ["serial", "sha256", "not_before", "not_after"] {
        let value = shown[0][key].take();
        let sound = value.as_str().is_some_and(|text| match key {
            "serial" => text.len() <= 40 && !text.is_empty(),
            "sha256" => text.len() == 64,
            _ => text.parse::<jiff::Timestamp>().is_ok(),
        });
        assert!(sound, "{key}: {value}");
        shown[0][key] = format!("[{key}]").into();
    }
    snapshot!(
        "json_cert_show",
        serde_json::to_string_pretty(&shown).unwrap()
    );
}

#[test]
fn never_shows_keys() {
    let world = world_with_ca();
    let (certificate, key) = issue(&world, &["a.internal"]);
    let secret = fs::read_to_string(&key).unwrap();
    let line = secret.lines().nth(1).unwrap();
    let both = fs::read_to_string(certificate).unwrap() + &secret;
    world.file("both.pem", &both);
    for args in [&["both.pem"][..], &["--json", "both.pem"]] {
        let ran = world.raddle([&["cert", "show"], args].concat()).ok();
        assert!(
            !ran.text().contains(line) && !ran.text().contains("PRIVATE"),
            "{}",
            ran.text()
        );
    }
    let ran = world
        .raddle(["cert", "show", key.to_str().unwrap()])
        .code(2)
        .stderr_contains("keys are not shown");
    assert!(!ran.stderr.contains(line) && ran.stdout.is_empty());
    // Cut in the middle of the key.
    world.file("torn.pem", &both[..both.len() - 60]);
    let ran = world
        .raddle(["cert", "show", "-vv", "torn.pem"])
        .code(2)
        .stderr_contains("ends in the middle");
    assert!(!ran.stderr.contains(&line[..12]));
}

#[test]
fn refuses_files_without_certificates() {
    let world = world_with_ca();
    world.file("empty.pem", "");
    world.file(
        "bad.pem",
        "-----BEGIN CERTIFICATE-----\nMIGH\n-----END CERTIFICATE-----\n",
    );
    for (file, words) in [
        ("absent.pem", "No such file"),
        ("empty.pem", "there is no certificate"),
        ("bad.pem", "certificate 1 in it is malformed"),
        ("certs", "cannot show certs"),
    ] {
        world
            .raddle(["cert", "show", file])
            .code(2)
            .stderr_contains(file)
            .stderr_contains(words);
    }
    // Random bytes, from a seed.
    let mut state = 1u32;
    let noise: Vec<u8> = (0..4096)
        .map(|_| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 24) as u8
        })
        .collect();
    world.file("noise.pem", noise);
    world.raddle(["cert", "show", "noise.pem"]).code(2);
}
