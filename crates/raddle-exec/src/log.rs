//! What a process of Raddle's says of itself on its standard error, for people or as JSON: one way to set it up, whoever it is.

use std::io;

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

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
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One object for each line.
    Json,
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
        // A malformed filter must not keep work from being done: what can be understood of it holds.
        let filter = EnvFilter::builder().parse_lossy(&self.filter);
        // A line that cannot be written is lost and no more: to say so on stderr, where it was to go, is what panics.
        let log = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).log_internal_errors(false);
        let log = log.with_env_filter(filter);
        let _ = match self.format {
            Format::Text => log.try_init(),
            // Nothing is nested: whoever looks for a task looks for `tid`.
            Format::Json => log.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init(),
        };
    }
}

/// What `RADDLE_LOG` asks for, if it does.
pub fn filter_of_environment() -> Option<String> {
    std::env::var(FILTER).ok().filter(|text| !text.is_empty())
}
