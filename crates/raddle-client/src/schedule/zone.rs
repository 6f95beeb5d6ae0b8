//! Time zones: the rules of this machine, which are kept up to date, or else the built-in ones.

use std::{fs::File, io::Read, path::Path};

use jiff::tz::TimeZone;
use raddle_model::schedule::known_zone;

/// Where Linux stores time zones.
const DIRECTORY: &str = "/usr/share/zoneinfo";
/// More than the size of any time zone file, which has some kilobytes.
const MAX_BYTES: u64 = 1 << 20;

/// Returns the time zone of this name, if it is known.
pub fn zone(name: &str) -> Option<TimeZone> {
    // Only known names become paths.
    let built_in = known_zone(name)?;
    let canonical = built_in
        .iana_name()
        .filter(|name| *name != "UTC")
        .map(str::to_owned);
    Some(
        canonical
            .and_then(|name| read_from_machine(&name))
            .unwrap_or(built_in),
    )
}

fn read_from_machine(name: &str) -> Option<TimeZone> {
    let mut bytes = Vec::new();
    File::open(Path::new(DIRECTORY).join(name))
        .ok()?
        .take(MAX_BYTES)
        .read_to_end(&mut bytes)
        .ok()?;
    TimeZone::tzif(name, &bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_zone_with_and_without_a_file() {
        for name in ["Europe/Berlin", "europe/berlin", "UTC", "America/New_York"] {
            assert!(zone(name).is_some(), "{name}");
        }
        assert_eq!(read_from_machine("Europe/Atlantis").map(drop), None);
        for name in [
            "Europe/Atlantis",
            "../../../etc/passwd",
            "",
            "/etc/localtime",
        ] {
            assert!(zone(name).is_none(), "{name}");
        }
    }
}
