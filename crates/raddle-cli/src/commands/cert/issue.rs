//! `raddle cert issue`: issues a certificate.

use std::{fs, path::Path, time::SystemTime};

use raddle_tls::issue::{Authority, IssueError, IssuedCertificate, Validity, write_pair};
use serde_json::json;

use super::{CA, note, print_paths, timestamp, write_failure};
use crate::{
    args::{Global, IssueArgs},
    error::{Failure, Outcome},
    format, output,
};

pub(super) fn issue(global: &Global, args: &IssueArgs) -> Outcome {
    let stem = args
        .names
        .first()
        .map(|name| name.file_stem())
        .unwrap_or_default();
    if stem == CA {
        return Err(Failure::Usage(
            "the files would have the names of those of the CA: put another name first".into(),
        ));
    }
    let at = |kind: &str| args.ca.join(format!("{CA}-{kind}.pem"));
    let (ca_certificate, ca_key) = (at("cert"), at("key"));
    let authority = Authority::from_pem(&read(&ca_certificate)?, &read(&ca_key)?);
    let refused = |error: IssueError| {
        let directory = args.ca.display();
        Failure::Usage(format!("the CA in {directory}: {error}"))
    };
    let authority = authority.map_err(refused)?;
    let validity = Validity::days(SystemTime::now(), args.days);
    let pair = if args.caller {
        authority.issue_for_caller(&args.names, validity)
    } else {
        authority.issue(&args.names, validity)
    };
    let pair = pair.map_err(|error| match error {
        IssueError::Failed(_) => Failure::Raddle(error.to_string()),
        IssueError::Expired => refused(error),
        error => Failure::Usage(error.to_string()),
    })?;
    let out = args.out.as_ref().unwrap_or(&args.ca);
    let (certificate, key) =
        write_pair(out, &stem, &pair, args.force).map_err(|error| write_failure(&error))?;
    let until = timestamp(pair.validity.until);
    if global.json {
        let names: Vec<_> = args.names.iter().map(ToString::to_string).collect();
        output::print_json(&json!({
            "certificate": certificate, "key": key, "ca": ca_certificate, "names": names, "not_after": until,
        }))?;
        return Ok(0);
    }
    print_paths(&certificate, &key)?;
    note(
        global,
        &format!(
            "valid until {}{}",
            format::time(until),
            shortened_note(&pair, args.days)
        ),
    );
    Ok(0)
}

/// A note, if the certificate is valid for a shorter time than asked for.
fn shortened_note(pair: &IssuedCertificate, days: u32) -> &'static str {
    let requested = Validity::days(SystemTime::now(), days).until;
    let is_short = requested
        .duration_since(pair.validity.until)
        .is_ok_and(|less| less.as_secs() > 60);
    if is_short {
        ", like the CA: create another CA for a longer time"
    } else {
        ""
    }
}

fn read(path: &Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(|error| {
        let directory = path.parent().unwrap_or(Path::new(".")).display();
        let hint = format!("create a CA with 'raddle cert ca --out {directory}'");
        Failure::Usage(format!("cannot read {}: {error}; {hint}", path.display()))
    })
}
