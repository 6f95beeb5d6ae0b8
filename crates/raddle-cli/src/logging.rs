//! The program's own log, on stderr.

use std::sync::atomic::{AtomicBool, Ordering};

use raddle_runner::log::{Format, Log, filter_of_environment};

use crate::args::Global;

/// Whether stderr has JSON lines.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// The log that the flags and `RADDLE_LOG` select. `default` is the level without either.
pub(crate) fn select_log(global: &Global, default: Option<&str>, format: Format) -> Option<Log> {
    let level = match (global.quiet, global.verbose) {
        (true, _) => Some("error"),
        (false, 0) => default,
        (false, 1) => Some("info"),
        (false, 2) => Some("debug"),
        (false, _) => Some("trace"),
    };
    let filter = filter_of_environment().or(level.map(str::to_owned))?;
    Some(Log { filter, format })
}

/// Starts the log that the flags and `RADDLE_LOG` select. `default` is the level without either.
pub(crate) fn start(global: &Global, default: Option<&str>, format: Format) {
    IS_JSON.store(format == Format::Json, Ordering::Relaxed);
    if let Some(log) = select_log(global, default, format) {
        log.start();
    }
}

/// Formats a message to the user as a line of the log, if the log is JSON.
pub(crate) fn json_line(message: &str) -> Option<String> {
    if !IS_JSON.load(Ordering::Relaxed) {
        return None;
    }
    // Matches the lines of the log's JSON format.
    let timestamp = jiff::Timestamp::now().to_string();
    let line = serde_json::json!({ "timestamp": timestamp, "level": "INFO", "message": message, "target": "raddle" });
    Some(line.to_string())
}
