//! Arguments of `raddle task`.

use clap::{Args, Subcommand};
use raddle_model::HumanDuration;

use super::{FilterArgs, SelectArgs, TaskArg};

/// Lists and controls tasks.
#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// List tasks, the newest first
    List(ListArgs),
    /// Show a task
    #[command(after_help = "Example:
  raddle task status 2140161024")]
    #[command(visible_alias = "show")]
    Status {
        /// The task's id, or its last ten digits; 'last' is the newest
        #[arg(value_name = "TID")]
        tid: TaskArg,
    },
    /// Stop tasks gracefully
    #[command(after_help = "Example:
  raddle task stop 2140161024            SIGTERM, and SIGKILL after a grace period")]
    Stop(TaskCommandArgs),
    /// Kill tasks and all their processes
    #[command(after_help = "Example:
  raddle task kill 2140161024")]
    Kill(TaskCommandArgs),
    /// Pause tasks: running ones are stopped (SIGSTOP), waiting ones are not started
    #[command(after_help = "Example:
  raddle task pause 2140161024")]
    Pause(TaskCommandArgs),
    /// Resume paused tasks
    #[command(after_help = "Example:
  raddle task resume 2140161024")]
    Resume(TaskCommandArgs),
    /// Ping running tasks
    #[command(after_help = "Example:
  raddle task ping 2140161024")]
    Ping(TaskCommandArgs),
    /// Submit finished tasks again as new tasks, and print their ids
    Retry(RetryArgs),
    /// Delete the records of finished tasks
    #[command(after_help = "Examples:
  raddle task delete 2140161024
  raddle task delete --failed --name 'frame-*'")]
    Delete(SelectArgs),
    /// Delete the records of finished tasks, except dead letters
    Clean(CleanArgs),
    /// Recover a stuck task
    #[command(after_help = "Example:
  raddle task recover 2140161024         release a running task, resume a paused one,
                                         resubmit a failed one, reclaim a lost one")]
    Recover {
        /// The task's id, or its last ten digits; 'last' is the newest
        #[arg(value_name = "TID")]
        tid: TaskArg,
        /// How long to wait for a reply
        #[arg(long, value_name = "TIME", default_value = "10")]
        timeout: HumanDuration,
        /// Submit a completed task again, too
        #[arg(long)]
        force: bool,
    },
    /// Show which worker runs which task, and which task submitted which
    #[command(after_help = "Examples:
  raddle task tree                       workers with their tasks, tasks with their children
  raddle task tree 2140161024            one task or worker")]
    Tree {
        /// The task or worker at the top
        #[arg(value_name = "TID")]
        tid: Option<TaskArg>,
    },
    /// Explain why a task is not running
    #[command(after_help = "Example:
  raddle task explain 2140161024")]
    Explain {
        /// The task's id, or its last ten digits; 'last' is the newest
        #[arg(value_name = "TID")]
        tid: TaskArg,
    },
}

/// Lists tasks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle task list --status running,created
  raddle task list 'state:failed took:>30s since:-1h'
  raddle task list --name 'render-*' --limit 10
  raddle task list --json | jq -r '.[].tid'")]
pub(crate) struct ListArgs {
    /// Only tasks that match all terms, such as 'state:failed queue:mail name:frame-* took:>30s'
    #[arg(value_name = "QUERY")]
    pub(crate) query: Vec<String>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Only tasks in the dead-letter queue
    #[arg(long)]
    pub(crate) dead: bool,
    /// The largest number of tasks
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) limit: u32,
    /// Show Raddle's own services too, such as workers
    #[arg(long)]
    pub(crate) all: bool,
}

/// Sends a control command to tasks.
#[derive(Debug, Args)]
pub(crate) struct TaskCommandArgs {
    #[command(flatten)]
    pub(crate) tasks: SelectArgs,
    /// How long to wait for a reply
    #[arg(long, value_name = "TIME", default_value = "10")]
    pub(crate) timeout: HumanDuration,
}

/// Submits finished tasks again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle task retry 2140161024
  raddle task retry --failed --name 'frame-*'
  raddle task retry --all-dead           all tasks in the dead-letter queue")]
pub(crate) struct RetryArgs {
    #[command(flatten)]
    pub(crate) tasks: SelectArgs,
    /// All tasks in the dead-letter queue
    #[arg(long, conflicts_with = "tids")]
    pub(crate) all_dead: bool,
}

/// Deletes the records of finished tasks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle task clean --older-than 1d
  raddle task clean --batch last --dead")]
pub(crate) struct CleanArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Only tasks that finished longer ago than this
    #[arg(long, value_name = "TIME")]
    pub(crate) older_than: Option<HumanDuration>,
    /// Delete dead letters, too
    #[arg(long)]
    pub(crate) dead: bool,
}
