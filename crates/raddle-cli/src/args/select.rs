//! Arguments that select tasks: ids, or a filter.

use std::str::FromStr;

use clap::Args;
use raddle_model::{
    TaskState,
    tid::{ParseTidError, TidArg},
};

/// The name of the newest task or batch.
pub(crate) const LAST: &str = "last";

/// A task, as the user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskArg {
    /// A task by its id.
    Id(TidArg),
    /// The newest task.
    Last,
    /// The tasks whose ids are on standard input.
    Stdin,
}

/// Selects tasks by id or by a filter.
#[derive(Debug, Args)]
pub(crate) struct SelectArgs {
    /// The tasks' ids, or their last ten digits; 'last' is the newest, and - reads ids from
    /// standard input
    #[arg(value_name = "TID", conflicts_with_all = ["status", "failed", "name", "queue", "batch"])]
    pub(crate) tids: Vec<TaskArg>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

/// Selects tasks by their properties. All given filters must match.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct FilterArgs {
    /// Only tasks in one of these states
    #[arg(long, value_name = "STATES", value_delimiter = ',')]
    pub(crate) status: Vec<TaskState>,
    /// Only tasks that failed, timed out or were killed
    #[arg(long, conflicts_with = "status")]
    pub(crate) failed: bool,
    /// Only tasks with this name, where * matches any text
    #[arg(long, value_name = "PATTERN")]
    pub(crate) name: Option<String>,
    /// Only tasks in this queue
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// Only tasks of this batch; 'last' is the newest
    #[arg(long)]
    pub(crate) batch: Option<String>,
}

impl FilterArgs {
    /// Whether no filter is given.
    pub(crate) fn is_empty(&self) -> bool {
        let Self {
            status,
            failed,
            name,
            queue,
            batch,
        } = self;
        status.is_empty() && !failed && name.is_none() && queue.is_none() && batch.is_none()
    }
}

impl FromStr for TaskArg {
    type Err = ParseTidError;

    fn from_str(text: &str) -> Result<Self, ParseTidError> {
        match text {
            LAST => Ok(Self::Last),
            "-" => Ok(Self::Stdin),
            _ => text.parse().map(Self::Id),
        }
    }
}

impl From<TidArg> for TaskArg {
    fn from(arg: TidArg) -> Self {
        Self::Id(arg)
    }
}
