//! Arguments of `raddle operation`.

use clap::Subcommand;
use raddle_model::Tid;

/// Actions on many tasks.
#[derive(Debug, Subcommand)]
pub(crate) enum OperationCommand {
    /// List operations, the newest first
    #[command(after_help = "Example:
  raddle operation list --json | jq '.[0].done'")]
    List {
        /// The largest number of operations
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: u32,
    },
    /// Show what an operation does and how far it is
    #[command(
        visible_alias = "show",
        after_help = "Example:
  raddle operation status 1837025672140161024"
    )]
    Status {
        /// The id of the operation
        id: Tid,
    },
    /// Go on with an operation until it is complete
    ///
    /// Any process can do that, also while another does: each task is looked at once.
    #[command(after_help = "Example:
  raddle operation resume 1837025672140161024")]
    Resume {
        /// The id of the operation
        id: Tid,
    },
    /// Cancel an operation. Its changes stay
    #[command(after_help = "Example:
  raddle operation cancel 1837025672140161024")]
    Cancel {
        /// The id of the operation
        id: Tid,
    },
}
