//! `raddle cert ca`.

use std::time::SystemTime;

use raddle_tls::issue::{Authority, Validity, write_pair};
use serde_json::json;

use super::{CA, note, paths, timestamp, unwritten};
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
        write_pair(&args.out, CA, &pair, args.force).map_err(|error| unwritten(&error))?;
    let until = timestamp(pair.validity.until);
    if global.json {
        output::json(&json!({ "certificate": certificate, "key": key, "not_after": until }))?;
        return Ok(0);
    }
    paths(&certificate, &key)?;
    let until = format::time(until);
    note(
        global,
        &format!("valid until {until}; whoever has the key can be anybody: leave it where it is"),
    );
    Ok(0)
}
