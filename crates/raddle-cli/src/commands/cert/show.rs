//! `raddle cert show`: the contents of certificates.

use std::{fmt::Write, fs::File, io::Read, path::Path};

use jiff::Timestamp;
use raddle_tls::issue::{CertificateDescription, describe};
use serde_json::{Value, json};

use super::timestamp_of_seconds;
use crate::{
    args::Global,
    error::{Failure, Outcome},
    format, output,
    table::printable,
};

/// How much of a file is read; no certificate is larger.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

pub(super) fn show(global: &Global, file: &Path) -> Outcome {
    let wrong = |reason: &dyn std::fmt::Display| {
        Failure::Usage(format!("cannot show {}: {reason}", file.display()))
    };
    let mut content = Vec::new();
    let read =
        File::open(file).and_then(|opened| opened.take(MAX_FILE_BYTES).read_to_end(&mut content));
    read.map_err(|error| wrong(&error))?;
    let described = describe(&content).map_err(|error| wrong(&error))?;
    let now = Timestamp::now();
    if global.json {
        let records: Vec<_> = described
            .certificates
            .iter()
            .map(|certificate| record(certificate, now))
            .collect();
        output::print_json(&records)?;
        return Ok(0);
    }
    let many = described.certificates.len();
    let mut text = String::new();
    for (at, certificate) in described.certificates.iter().enumerate() {
        if many > 1 {
            let _ = writeln!(
                text,
                "{}certificate {} of {many}",
                if at == 0 { "" } else { "\n" },
                at + 1
            );
        }
        push_lines(&mut text, certificate, now);
    }
    if described.keys > 0 {
        text.push_str("\nthe file also contains a private key, which is not shown\n");
    }
    output::print_raw(text.as_bytes())?;
    Ok(0)
}

fn push_lines(text: &mut String, certificate: &CertificateDescription, now: Timestamp) {
    let CertificateDescription {
        subject,
        issuer,
        serial,
        names,
        not_before,
        not_after,
        is_ca,
        usages,
        key,
        sha256,
        ..
    } = certificate;
    let usages = match (is_ca, usages.is_empty()) {
        (true, _) => "to issue certificates".to_owned(),
        (false, true) => "anything".to_owned(),
        (false, false) => usages.join(", "),
    };
    let names = if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    };
    let until = format!(
        "{} ({})",
        format::time(timestamp_of_seconds(*not_after)),
        validity_text(*not_before, *not_after, now)
    );
    for (label, value) in [
        ("names", &names),
        ("usage", &usages),
        (
            "valid from",
            &format::time(timestamp_of_seconds(*not_before)),
        ),
        ("valid until", &until),
        ("subject", subject),
        ("issuer", issuer),
        ("serial", serial),
        ("key", key),
        ("sha256", sha256),
    ] {
        // The issuer controls this text.
        let _ = writeln!(text, "{label:<12} {}", printable(value));
    }
}

/// How long the certificate is still valid.
fn validity_text(not_before: i64, not_after: i64, now: Timestamp) -> String {
    if now < timestamp_of_seconds(not_before) {
        return "not valid yet".into();
    }
    let until = timestamp_of_seconds(not_after);
    if until < now {
        format!("expired {} ago", format::age(until, now))
    } else {
        format!("{} left", format::age(now, until))
    }
}

fn record(certificate: &CertificateDescription, now: Timestamp) -> Value {
    let CertificateDescription {
        subject,
        issuer,
        serial,
        names,
        not_before,
        not_after,
        is_ca,
        usages,
        key,
        sha256,
        ..
    } = certificate;
    let (from, until) = (
        timestamp_of_seconds(*not_before),
        timestamp_of_seconds(*not_after),
    );
    json!({
        "names": names, "ca": is_ca, "usage": usages, "not_before": from, "not_after": until, "valid": from <= now && now <= until,
        "subject": subject, "issuer": issuer, "serial": serial, "key": key, "sha256": sha256,
    })
}
