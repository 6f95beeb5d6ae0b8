//! The rules of time zones: those of this machine, which are kept up to date, or else those that this program was built with.

use std::{fs::File, io::Read, path::Path};

use jiff::tz::TimeZone;
use raddle_model::schedule::known_zone;

/// Where Linux has them.
const DIRECTORY: &str = "/usr/share/zoneinfo";
/// The largest has some kilobytes.
const LARGEST: u64 = 1 << 20;

/// The time zone of this name. There is none under a name that is not known here.
pub fn zone(name: &str) -> Option<TimeZone> {
    // Only a name that is one is looked for among files.
    let built_in = known_zone(name)?;
    let canonical = built_in
        .iana_name()
        .filter(|name| *name != "UTC")
        .map(str::to_owned);
    Some(
        canonical
            .and_then(|name| of_machine(&name))
            .unwrap_or(built_in),
    )
}

fn of_machine(name: &str) -> Option<TimeZone> {
    let mut bytes = Vec::new();
    File::open(Path::new(DIRECTORY).join(name))
        .ok()?
        .take(LARGEST)
        .read_to_end(&mut bytes)
        .ok()?;
    TimeZone::tzif(name, &bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_found_with_and_without_a_file() {
        for name in ["Europe/Berlin", "europe/berlin", "UTC", "America/New_York"] {
            assert!(zone(name).is_some(), "{name}");
        }
        assert_eq!(of_machine("Europe/Atlantis").map(drop), None);
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
