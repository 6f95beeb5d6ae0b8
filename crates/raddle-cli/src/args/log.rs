//! How the log is written.

use clap::{Args, ValueEnum};
use raddle_exec::log::Format;

/// How those write their log that go on for long.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct LogArgs {
    /// How to write the log: for people, or as JSON, a line each
    #[arg(long, value_name = "FORMAT", env = "RADDLE_LOG_FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

/// How a log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    // Comments rather than help, which would blow up that of every command.
    // For people.
    #[default]
    Text,
    // One object for each line.
    Json,
}

impl LogFormat {
    /// What it is called.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl From<LogFormat> for Format {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
    }
}
