//! `raddle cert`: certificates for development. What is made and read is the library's affair; here it is asked for and shown.

mod ca;
mod issue;
mod show;

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use jiff::Timestamp;
use raddle_pool::credentials::issue::FilesError;

use crate::{
    args::{CertCommand, Global},
    error::{Failure, Outcome},
    output,
};

/// What the files of a CA begin with.
const CA: &str = "ca";

pub(super) fn cert(global: &Global, command: &CertCommand) -> Outcome {
    match command {
        CertCommand::Ca(args) => ca::ca(global, args),
        CertCommand::Issue(args) => issue::issue(global, args),
        CertCommand::Show { file } => show::show(global, file),
    }
}

/// Tells the user something that is not data, unless told to be quiet.
fn note(global: &Global, message: &str) {
    if !global.quiet {
        output::complain(message);
    }
}

/// Two paths, one a line.
fn paths(certificate: &Path, key: &Path) -> Outcome<()> {
    output::line(certificate.to_string_lossy())?;
    output::line(key.to_string_lossy())
}

fn unwritten(error: &FilesError) -> Failure {
    match error {
        FilesError::Exists(path) => Failure::Usage(format!(
            "{} is there already: name another folder, or replace it with --force",
            path.display()
        )),
        error => Failure::Raddle(error.to_string()),
    }
}

fn timestamp(at: SystemTime) -> Timestamp {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    seconds(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// As near as there is, for certificates that are valid until the end of days.
fn seconds(at: i64) -> Timestamp {
    let at = at.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
    Timestamp::from_second(at).expect("it is within the bounds")
}
