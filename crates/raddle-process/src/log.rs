//! Logging of every Raddle process to standard error, as text or as JSON.

use std::io;

use serde::{Deserialize, Serialize};
use tracing_subscriber::{
    filter::Targets, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// Environment variable with the log filter, as in `raddle_worker=debug`.
const FILTER: &str = "RADDLE_LOG";
/// Environment variable with the log format.
const FORMAT: &str = "RADDLE_LOG_FORMAT";

/// Log configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    /// A level, or a level for each target.
    pub filter: String,
    /// Output format.
    pub format: Format,
}

/// Output format of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Text for human readers.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl Format {
    /// Returns the name of the format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl Log {
    /// Reads the configuration from the environment. The default is this level, as text.
    pub fn of_environment(level: &str) -> Self {
        let is_json = std::env::var(FORMAT).is_ok_and(|format| format == "json");
        let format = if is_json { Format::Json } else { Format::Text };
        Self {
            filter: filter_of_environment().unwrap_or_else(|| level.to_owned()),
            format,
        }
    }

    /// Installs the subscriber. If the process has one already, that one stays.
    pub fn start(&self) {
        let targets = parse_lossy(&self.filter);
        // A line that cannot be written is dropped. Reporting that on stderr, which is what failed,
        // would panic.
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .with_ansi(false)
            .log_internal_errors(false);
        let log = tracing_subscriber::registry().with(targets);
        let _ = match self.format {
            Format::Text => log.with(lines).try_init(),
            // Fields are at the top level, so that a search for a task is a search for `tid`.
            Format::Json => {
                let lines = lines
                    .json()
                    .flatten_event(true)
                    .with_current_span(false)
                    .with_span_list(false);
                log.with(lines).try_init()
            }
        };
    }
}

/// Parses `LEVEL` and `TARGET=LEVEL`, separated by commas. Malformed parts are skipped: a typo in
/// the filter must not keep the process from working.
fn parse_lossy(filter: &str) -> Targets {
    let parts = filter
        .split(',')
        .filter_map(|part| part.trim().parse::<Targets>().ok());
    parts.fold(Targets::new(), |all, part| {
        let default = part.default_level();
        let all = all.with_targets(part);
        default.map_or(all.clone(), |level| all.with_default(level))
    })
}

/// Returns the value of `RADDLE_LOG`, if it is set.
pub fn filter_of_environment() -> Option<String> {
    std::env::var(FILTER).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn skips_malformed_filter_parts() {
        let targets = parse_lossy("warn, raddle_worker=debug,raddle_rpc=loud");
        assert!(
            targets.would_enable("hyper", &Level::WARN)
                && !targets.would_enable("hyper", &Level::INFO)
        );
        assert!(targets.would_enable("raddle_worker::worker", &Level::DEBUG));
        assert!(!targets.would_enable("raddle_rpc", &Level::DEBUG));
    }
}
