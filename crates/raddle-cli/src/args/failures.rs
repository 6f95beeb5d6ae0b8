//! Arguments of `raddle failures`.

use clap::Args;

/// Lists failures by cause.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle failures                        the newest failures, one line for each cause
  raddle failures queue:mail since:-1h
  raddle failures name:import 'error:\"no such file\"' --retry")]
pub(crate) struct FailuresArgs {
    /// Only tasks that match all terms, such as queue:mail since:-1h
    #[arg(value_name = "QUERY")]
    pub(crate) query: Vec<String>,
    /// Submit the dead letters among these tasks again as new tasks, and print their ids
    #[arg(long)]
    pub(crate) retry: bool,
}
