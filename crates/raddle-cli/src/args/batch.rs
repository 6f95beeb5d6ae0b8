//! `raddle batch`.

use clap::{Args, Subcommand};
use raddle_model::HumanDuration;

use super::LAST;

/// Tasks that were submitted together.
#[derive(Debug, Subcommand)]
pub(crate) enum BatchCommand {
    /// List batches, the newest first
    #[command(after_help = "Example:
  raddle batch list --json | jq -r '.[].batch'")]
    List {
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: usize,
    },
    /// Show how many tasks of a batch are in which state
    #[command(
        visible_alias = "show",
        after_help = "Example:
  raddle batch status                    the newest one"
    )]
    Status(BatchArg),
    /// Wait until all tasks of a batch are finished
    #[command(after_help = "Example:
  raddle batch wait --timeout 10m        exits with 1 if one of them failed")]
    Wait {
        #[command(flatten)]
        batch: BatchArg,
        /// How long to wait at most
        #[arg(long, value_name = "TIME")]
        timeout: Option<HumanDuration>,
    },
    /// Submit those tasks of a batch again that failed, timed out or were killed, and print the new ids
    #[command(after_help = "Example:
  raddle batch retry-failed && raddle batch wait")]
    RetryFailed(BatchArg),
    /// Stop those tasks of a batch that are not finished
    #[command(
        visible_alias = "stop",
        after_help = "Example:
  raddle batch cancel                    what waits is cancelled, what runs is stopped"
    )]
    Cancel {
        #[command(flatten)]
        batch: BatchArg,
        /// How long to wait until all of them have ended
        #[arg(long, value_name = "TIME", default_value = "10")]
        timeout: HumanDuration,
    },
    /// Delete the records of the finished tasks of a batch
    #[command(after_help = "Example:
  raddle batch delete nightly")]
    Delete(BatchArg),
}

/// A batch.
#[derive(Debug, Args)]
pub(crate) struct BatchArg {
    /// The batch; 'last' is the newest
    #[arg(value_name = "BATCH", default_value = LAST)]
    pub(crate) name: String,
}
