//! The program's own log, on stderr. Off unless asked for: setting it up costs more than a short task does.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
};

use tracing_subscriber::EnvFilter;

use crate::args::{Global, LogFormat};

/// The variable that says what to log, as in `raddle_fabric=debug`.
const VARIABLE: &str = "RADDLE_LOG";

/// Whether everything on stderr is JSON, a line each.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Starts logging as the flags and `RADDLE_LOG` ask. `default` is the level without either.
pub(crate) fn start(global: &Global, default: Option<&str>, format: LogFormat) {
    IS_JSON.store(format == LogFormat::Json, Ordering::Relaxed);
    let asked = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let by_flags = match (global.quiet, global.verbose) {
        (true, _) => Some("error"),
        (false, 0) => default,
        (false, 1) => Some("info"),
        (false, 2) => Some("debug"),
        (false, _) => Some("trace"),
    };
    let Some(filter) = asked.as_deref().or(by_flags) else { return };
    // A malformed filter must not keep work from being done: what can be understood of it holds.
    let filter = EnvFilter::builder().parse_lossy(filter);
    // A line that cannot be written is lost and no more: to say so on stderr, where it was to go, is what panics.
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).log_internal_errors(false);
    let log = log.with_env_filter(filter);
    match format {
        LogFormat::Text => log.init(),
        // Nothing is nested: whoever looks for a task looks for `tid`.
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).with_span_list(false).init(),
    }
}

/// A message to whoever has started this, as a line of the log where that is JSON.
pub(crate) fn as_json(message: &str) -> Option<String> {
    if !IS_JSON.load(Ordering::Relaxed) {
        return None;
    }
    // Looks like the lines that the log's own format makes.
    let timestamp = jiff::Timestamp::now().to_string();
    let line = serde_json::json!({ "timestamp": timestamp, "level": "INFO", "message": message, "target": "raddle" });
    Some(line.to_string())
}
