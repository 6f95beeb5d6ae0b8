//! Arguments of `raddle top`.

use clap::Args;

/// Shows the broker on the terminal.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle top
  raddle top state:failed since:-1d      begin with these tasks
  raddle top --json | jq .queues         the overview, once

'?' shows the keys. Without a terminal it prints the overview once, as text.")]
pub(crate) struct TopArgs {
    /// Begin with the tasks that match all terms, such as state:failed queue:mail
    #[arg(value_name = "QUERY")]
    pub(crate) query: Vec<String>,
}
