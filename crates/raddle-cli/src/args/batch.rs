//! Arguments of `raddle batch`.

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
        /// The largest number of batches
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: usize,
    },
    /// Count the tasks of a batch by state
    #[command(
        visible_alias = "show",
        after_help = "Example:
  raddle batch status                    the newest batch"
    )]
    Status(BatchArg),
    /// Wait until all tasks of a batch are finished
    #[command(after_help = "Example:
  raddle batch wait --timeout 10m        exits with 1 if one of them failed")]
    Wait {
        #[command(flatten)]
        batch: BatchArg,
        /// The longest time to wait
        #[arg(long, value_name = "TIME")]
        timeout: Option<HumanDuration>,
    },
    /// Submit the failed, timed out and killed tasks of a batch again, and print the new ids
    #[command(after_help = "Example:
  raddle batch retry-failed && raddle batch wait")]
    RetryFailed(BatchArg),
    /// Stop the unfinished tasks of a batch
    #[command(
        visible_alias = "stop",
        after_help = "Example:
  raddle batch cancel                    cancel waiting tasks, stop running ones"
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
