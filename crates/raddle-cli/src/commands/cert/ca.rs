//! `raddle cert ca`: creates a CA.

use std::time::SystemTime;

use raddle_tls::issue::{Authority, Validity, write_pair};
use serde_json::json;

use super::{CA, note, print_paths, timestamp, write_failure};
use crate::{
    args::{CaArgs, Global},
    error::{Failure, Outcome},
    format, output,
};

pub(super) fn ca(global: &Global, args: &CaArgs) -> Outcome {
    let validity = Validity::days(SystemTime::now(), args.days);
    let (_, pair) =
        Authority::new(&args.name, validity).map_err(|error| Failure::Raddle(error.to_string()))?;
    let (certificate, key) =
        write_pair(&args.out, CA, &pair, args.force).map_err(|error| write_failure(&error))?;
    let until = timestamp(pair.validity.until);
    if global.json {
        output::print_json(&json!({ "certificate": certificate, "key": key, "not_after": until }))?;
        return Ok(0);
    }
    print_paths(&certificate, &key)?;
    let until = format::time(until);
    note(
        global,
        &format!("valid until {until}; keep the key secret: with it anyone can issue certificates"),
    );
    Ok(0)
}
