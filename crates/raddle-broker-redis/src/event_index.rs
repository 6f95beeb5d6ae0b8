//! The list in a task's record of what the log has of it.

use std::fmt;

use super::schema::{from_stream_id, stream_id};

/// The entries of the log that have events of a task, in order. A list that was too long has lost
/// its oldest entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EventIndex {
    pub(super) is_cut: bool,
    pub(super) entries: Vec<u64>,
}

impl EventIndex {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (is_cut, list) = match text.strip_prefix('+') {
            Some(list) => (true, list),
            None => (false, text),
        };
        let entries = match list {
            "-" => Vec::new(),
            list => list.split(',').map(from_stream_id).collect::<Option<_>>()?,
        };
        Some(Self { is_cut, entries })
    }
}

impl fmt::Display for EventIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.entries.is_empty() {
            return f.write_str("-");
        }
        for (i, entry) in self.entries.iter().enumerate() {
            let before = match (i, self.is_cut) {
                (0, true) => "+",
                (0, false) => "",
                _ => ",",
            };
            write!(f, "{before}{}", stream_id(*entry))?;
        }
        Ok(())
    }
}
