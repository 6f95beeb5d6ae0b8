//! `raddle task`.

use clap::{Args, Subcommand};
use raddle_core::{Span, State, tid::TidArg};

/// List tasks, and tell them what to do.
#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// List tasks, the newest first
    List(ListArgs),
    /// Show all that is known of a task
    #[command(after_help = "Example:
  raddle task status 2140161024")]
    Status {
        /// The task's id, or its last ten digits
        #[arg(value_name = "TID")]
        tid: TidArg,
    },
    /// Stop tasks in good order
    #[command(after_help = "Example:
  raddle task stop 2140161024            SIGTERM, and SIGKILL after a grace period")]
    Stop(Words),
    /// Kill tasks at once, with every process they have started
    #[command(after_help = "Example:
  raddle task kill 2140161024")]
    Kill(Words),
    /// Hold tasks back: one that runs stands still, one that waits is not begun
    #[command(after_help = "Example:
  raddle task pause 2140161024")]
    Pause(Words),
    /// Let paused tasks go on
    #[command(after_help = "Example:
  raddle task resume 2140161024")]
    Resume(Words),
    /// Ask tasks whether they are there
    #[command(after_help = "Example:
  raddle task ping 2140161024")]
    Ping(Words),
    /// Submit finished tasks again, as new ones, and print their ids
    Retry(RetryArgs),
    /// Get a stuck task going again, whatever it is stuck in
    #[command(after_help = "Example:
  raddle task recover 2140161024         a running task goes back to its queue, a paused one goes on,
                                         a failed one is submitted again, a lost one is taken back")]
    Recover {
        /// The task's id, or its last ten digits
        #[arg(value_name = "TID")]
        tid: TidArg,
        /// How long to wait for an answer
        #[arg(long, value_name = "TIME", default_value = "10")]
        timeout: Span,
        /// Submit it again also if it is completed
        #[arg(long)]
        force: bool,
    },
    /// Show who runs what, and which task submitted which
    #[command(after_help = "Examples:
  raddle task tree                       workers with what they run, and tasks with those they submitted
  raddle task tree 2140161024            one task or worker with what is below it")]
    Tree {
        /// The task or worker to begin with
        #[arg(value_name = "TID")]
        tid: Option<TidArg>,
    },
    /// Say why a task is not running
    #[command(after_help = "Example:
  raddle task explain 2140161024")]
    Explain {
        /// The task's id, or its last ten digits
        #[arg(value_name = "TID")]
        tid: TidArg,
    },
}

/// List tasks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle task list --status running,created
  raddle task list --name 'render-*' --limit 10
  raddle task list --json | jq -r '.[].tid'")]
pub(crate) struct ListArgs {
    /// Only those in one of these states
    #[arg(long, value_name = "STATES", value_delimiter = ',')]
    pub(crate) status: Vec<State>,
    /// Only those with this name, where * stands for anything
    #[arg(long, value_name = "PATTERN")]
    pub(crate) name: Option<String>,
    /// Only those in this queue
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// Only those in the dead-letter queue
    #[arg(long)]
    pub(crate) dead: bool,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) limit: u32,
    /// Show Raddle's own services too, such as workers
    #[arg(long)]
    pub(crate) all: bool,
}

/// Tell tasks something.
#[derive(Debug, Args)]
pub(crate) struct Words {
    /// The tasks' ids, or their last ten digits
    #[arg(value_name = "TID", required = true)]
    pub(crate) tids: Vec<TidArg>,
    /// How long to wait for an answer
    #[arg(long, value_name = "TIME", default_value = "10")]
    pub(crate) timeout: Span,
}

/// Submit finished tasks again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle task retry 2140161024
  raddle task retry --all-dead           everything in the dead-letter queue")]
pub(crate) struct RetryArgs {
    /// The tasks' ids, or their last ten digits
    #[arg(value_name = "TID", required_unless_present = "all_dead")]
    pub(crate) tids: Vec<TidArg>,
    /// All tasks in the dead-letter queue
    #[arg(long, conflicts_with = "tids")]
    pub(crate) all_dead: bool,
}
