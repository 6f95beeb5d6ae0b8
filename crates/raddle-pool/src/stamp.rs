//! Telling whether a file is as it was, without reading it.

use std::{fs::Metadata, os::unix::fs::MetadataExt, time::SystemTime};

/// How long a file must have been left alone for its times to tell it from what it is next. File systems count in ticks of some milliseconds, and
/// in whole seconds at worst.
const SETTLED: i64 = 2;

/// What is different of a file when it is another one, or has been written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    place: (u64, u64),
    size: u64,
    written: (i64, i64),
    /// Whoever changes a file can set the time of that, but not this one.
    changed: (i64, i64),
}

impl Stamp {
    pub(crate) fn of(file: &Metadata) -> Self {
        Self {
            place: (file.dev(), file.ino()),
            size: file.size(),
            written: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }

    /// Whether the file would have another one by now had it changed since.
    pub(crate) fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        now.saturating_sub(self.changed.0) >= SETTLED
    }
}
