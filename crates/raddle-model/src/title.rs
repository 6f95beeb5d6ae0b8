//! Process titles: `raddle-<short tid>:<name>:<status>`.

use std::fmt::Write;

use crate::Tid;

/// The longest name that a title shows.
const MAX_NAME: usize = 48;

/// Formats the title of a process that works for the task `tid`.
///
/// The name is made safe for a shell and for one-liners on the output of `ps`: every character
/// other than letters, digits and `. _ -` becomes an underscore.
pub fn format(tid: Tid, name: &str, status: &str) -> String {
    let mut title = format!("raddle-{}:", tid.short());
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() || "._-".contains(c) {
            c
        } else {
            '_'
        }
    };
    title.extend(name.chars().take(MAX_NAME).map(safe));
    if name.is_empty() {
        title.push_str("task");
    }
    let _ = write!(title, ":{status}");
    title
}

#[cfg(test)]
mod tests;
