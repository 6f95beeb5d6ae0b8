//! Words about tasks and workers, for people.

use jiff::Timestamp;

/// A time to the second.
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// `1 task`, `2 tasks`, `2 processes`.
pub fn count(n: u64, what: &str) -> String {
    let end = match n {
        1 => "",
        _ if what.ends_with('s') => "es",
        _ => "s",
    };
    format!("{n} {what}{end}")
}

/// The text without what could move the cursor or change colours.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}
