//! Flags of the log.

use clap::Args;
use raddle_runner::log::Format;
use serde::{Deserialize, Serialize};

use super::spec::one_of;

/// The log of a service.
#[derive(Clone, Copy, Debug, Default, Args, Serialize, Deserialize)]
pub(crate) struct LogArgs {
    /// The format of the log: text, or JSON lines
    #[arg(long, value_name = "FORMAT", env = "RADDLE_LOG_FORMAT", default_value = "text", value_parser = one_of::<Format>(["text", "json"]))]
    pub(crate) log_format: Format,
}
