//! What a process of Raddle's says of itself on its standard error, for people or as JSON: one way to set it up, whoever it is.

use std::io;

use serde::{Deserialize, Serialize};
use tracing_subscriber::{filter::Targets, layer::SubscriberExt as _, util::SubscriberInitExt as _};

/// The variable that says what to log, as in `raddle_fabric=debug`.
const FILTER: &str = "RADDLE_LOG";
/// The variable that says how it is written.
const FORMAT: &str = "RADDLE_LOG_FORMAT";

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    /// What: a level, or a level for each part of the program.
    pub filter: String,
    /// How.
    pub format: Format,
}

/// How a log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One object for each line.
    Json,
}

impl Format {
    /// What it is called.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl Log {
    /// As the environment asks for it: else what is of this level, for people.
    pub fn of_environment(level: &str) -> Self {
        let is_json = std::env::var(FORMAT).is_ok_and(|format| format == "json");
        let format = if is_json { Format::Json } else { Format::Text };
        Self { filter: filter_of_environment().unwrap_or_else(|| level.to_owned()), format }
    }

    /// Begins to log. Once in a process: if it was done before, that stays.
    pub fn start(&self) {
        let targets = parse_lossy(&self.filter);
        // A line that cannot be written is lost and no more: to say so on stderr, where it was to go, is what panics.
        let lines =
            tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false).log_internal_errors(false);
        let log = tracing_subscriber::registry().with(targets);
        let _ = match self.format {
            Format::Text => log.with(lines).try_init(),
            // Fields stand at the top level, so that a search for a task is a search for `tid`.
            Format::Json => {
                let lines = lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
                log.with(lines).try_init()
            }
        };
    }
}

/// Reads `LEVEL` and `TARGET=LEVEL`, separated by commas. A malformed part must not keep work from being done: the rest holds.
fn parse_lossy(filter: &str) -> Targets {
    let parts = filter.split(',').filter_map(|part| part.trim().parse::<Targets>().ok());
    parts.fold(Targets::new(), |all, part| {
        let default = part.default_level();
        let all = all.with_targets(part);
        default.map_or(all.clone(), |level| all.with_default(level))
    })
}

/// What `RADDLE_LOG` asks for, if it does.
pub fn filter_of_environment() -> Option<String> {
    std::env::var(FILTER).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn keeps_what_can_be_understood_of_a_filter() {
        let targets = parse_lossy("warn, raddle_fabric=debug,raddle_pool=loud");
        assert!(targets.would_enable("hyper", &Level::WARN) && !targets.would_enable("hyper", &Level::INFO));
        assert!(targets.would_enable("raddle_fabric::worker", &Level::DEBUG));
        assert!(!targets.would_enable("raddle_pool", &Level::DEBUG));
    }
}
