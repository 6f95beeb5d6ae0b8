//! Checks from inside that a container has the isolation that was requested. An engine can be
//! configured to omit layers, and a partial isolation is not accepted.

use std::{fs, io};

/// The first missing layer, if any.
pub(super) fn check() -> io::Result<Option<&'static str>> {
    Ok(missing_layer(&fs::read_to_string("/proc/self/status")?))
}

/// The first layer that is missing according to `/proc/self/status`.
fn missing_layer(status: &str) -> Option<&'static str> {
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    let no_capability =
        |set: &str| field(set).is_some_and(|bits| bits.bytes().all(|digit| digit == b'0'));
    let is_root = field("Uid").is_none_or(|ids| ids.split_whitespace().any(|id| id == "0"));
    if field("Seccomp") != Some("2") {
        return Some("a seccomp filter");
    }
    if field("NoNewPrivs") != Some("1") {
        return Some("no-new-privileges");
    }
    if !["CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"]
        .into_iter()
        .all(no_capability)
    {
        return Some("the loss of all capabilities");
    }
    is_root.then_some("a user that is not root")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "Name:\traddle\nUid:\t65532\t65532\t65532\t65532\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\n\
                        CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n\
                        Seccomp_filters:\t1\n";

    #[test]
    fn detects_each_missing_layer() {
        assert_eq!(missing_layer(GOOD), None);
        for (held, lost, name) in [
            ("Seccomp:\t2", "Seccomp:\t0", "seccomp"),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0", "no-new-privileges"),
            (
                "CapBnd:\t0000000000000000",
                "CapBnd:\t00000000a80425fb",
                "capabilities",
            ),
            (
                "65532\t65532\t65532\t65532",
                "0\t65532\t65532\t65532",
                "not root",
            ),
        ] {
            assert!(
                missing_layer(&GOOD.replace(held, lost)).is_some_and(|lacks| lacks.contains(name)),
                "{name}"
            );
        }
        assert!(missing_layer("").is_some());
    }
}
