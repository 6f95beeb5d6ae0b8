//! The program's own log, on stderr. Off unless asked for: setting it up costs more than a short task does.

use std::io;

use tracing_subscriber::EnvFilter;

use crate::args::Global;

/// The variable that says what to log, as in `raddle_fabric=debug`.
const VARIABLE: &str = "RADDLE_LOG";

/// Starts logging as the flags and `RADDLE_LOG` ask. `default` is the level without either.
pub(crate) fn start(global: &Global, default: Option<&str>) {
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
    log.with_env_filter(filter).init();
}
