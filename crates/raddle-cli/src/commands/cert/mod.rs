//! `raddle cert`: certificates for development. The library makes and reads them.

mod ca;
mod issue;
mod show;

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use jiff::Timestamp;
use raddle_tls::issue::FilesError;

use crate::{
    args::{CertCommand, Global},
    error::{Failure, Outcome},
    output,
};

/// The prefix of the files of a CA.
const CA: &str = "ca";

pub(super) fn cert(global: &Global, command: &CertCommand) -> Outcome {
    match command {
        CertCommand::Ca(args) => ca::ca(global, args),
        CertCommand::Issue(args) => issue::issue(global, args),
        CertCommand::Show { file } => show::show(global, file),
    }
}

/// Prints a message to stderr, unless `--quiet`.
fn note(global: &Global, message: &str) {
    if !global.quiet {
        output::eprint(message);
    }
}

/// Prints two paths, one per line.
fn print_paths(certificate: &Path, key: &Path) -> Outcome<()> {
    output::print_line(certificate.to_string_lossy())?;
    output::print_line(key.to_string_lossy())
}

fn write_failure(error: &FilesError) -> Failure {
    match error {
        FilesError::Exists(path) => Failure::Usage(format!(
            "{} already exists: name another directory, or replace it with --force",
            path.display()
        )),
        error => Failure::Raddle(error.to_string()),
    }
}

fn timestamp(at: SystemTime) -> Timestamp {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    timestamp_of_seconds(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// The timestamp of these seconds, clamped to the largest one.
fn timestamp_of_seconds(at: i64) -> Timestamp {
    let at = at.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
    Timestamp::from_second(at).expect("the value is clamped")
}
