//! Splits messages into the error and what to do about it.

/// Splits a message into the error and the hint: the part that names a command or a flag.
pub fn split_hint(message: &str) -> (&str, Option<&str>) {
    let named = ["'raddle ", "--"]
        .iter()
        .flat_map(|mark| message.match_indices(mark))
        .map(|(at, _)| at);
    let begins = named.filter_map(|at| {
        let ends = [": ", "; ", ". "]
            .iter()
            .filter_map(|end| message[..at].rfind(end).map(|end| (end, end + 2)));
        ends.max()
    });
    match begins.min() {
        Some((end, begin)) => (&message[..end], Some(&message[begin..])),
        None => (message, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_the_part_that_names_a_command_or_a_flag() {
        for (message, expected) in [
            (
                "task 1 is created: wait for it with --wait",
                ("task 1 is created", Some("wait for it with --wait")),
            ),
            (
                "no broker at sqlite:/x: it does not exist. Check --queue-url; 'raddle submit' creates it",
                (
                    "no broker at sqlite:/x: it does not exist",
                    Some("Check --queue-url; 'raddle submit' creates it"),
                ),
            ),
            (
                "cannot read x: no such file",
                ("cannot read x: no such file", None),
            ),
            ("--jobs is for many", ("--jobs is for many", None)),
        ] {
            assert_eq!(split_hint(message), expected);
        }
    }
}
