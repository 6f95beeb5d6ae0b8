//! Text about tasks and workers, for people.

use jiff::Timestamp;

/// Formats a time to the second.
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// Formats a count: `1 task`, `2 tasks`, `2 processes`.
pub fn count(n: u64, what: &str) -> String {
    let end = match n {
        1 => "",
        _ if what.ends_with('s') => "es",
        _ => "s",
    };
    format!("{n} {what}{end}")
}

/// Replaces control characters, which could move the cursor or change colours.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}
