//! Arguments of `raddle manager`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use raddle_model::{
    HumanDuration,
    manager::{self, ResourceLimits},
    tid::TidArg,
};

use super::{LogArgs, MetricsArgs};

/// Runs managers, which spawn tasks on request.
#[derive(Debug, Subcommand)]
pub(crate) enum ManagerCommand {
    /// Start a manager in the background, and print its id
    Start(Box<ManagerArgs>),
    /// Run a manager in the foreground, for systemd with Type=notify
    Serve(Box<ManagerArgs>),
    /// Stop managers once the tasks that they have spawned are finished
    Stop(ManagerStopArgs),
    /// List live managers
    #[command(after_help = "Example:
  raddle manager list --json | jq -r '.[] | .name + \" \" + .queue'")]
    List,
    /// Show the state of managers
    #[command(after_help = "Examples:
  raddle manager status                  all managers
  raddle manager status unix             managers of a type
  raddle manager status 2140161024       one manager")]
    #[command(visible_alias = "show")]
    Status {
        /// The managers' type or id, or its last ten digits
        #[arg(value_name = "TYPE|TID")]
        which: Option<String>,
    },
}

/// Runs a manager.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "Examples:
  raddle manager start                   the root manager, which reads raddle.spawn.requests
  raddle queue write raddle.spawn.requests '{\"spec\": {\"target\": {\"command\": [\"date\"]}}}'
  raddle queue watch raddle.spawn.results
  raddle manager start --type unix --registry tasks.toml --limits memory_mb=256,max_tasks=8
  raddle queue write worker.unix.requests '{\"task\": \"grep\", \"params\": {\"pattern\": \"x\"}}'

Tasks that a manager has spawned survive its death, and the next manager adopts them. At the first
SIGTERM or Ctrl-C it waits for its tasks, at the second it returns them to their queue, at the third
it kills them. A root manager that stops also stops the managers that it has spawned.")]
pub(crate) struct ManagerArgs {
    /// The type: the manager reads worker.TYPE.requests, the root manager reads
    /// raddle.spawn.requests
    #[arg(long = "type", value_name = "TYPE", default_value = manager::PRIME, value_parser = manager::parse_type)]
    pub(crate) kind: String,
    /// The registry of tasks that it may spawn; the root manager also takes full specs
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) registry: Option<PathBuf>,
    /// Run without a registry. A root manager passes this flag to managers that it spawns
    #[arg(long, hide = true, conflicts_with = "registry")]
    pub(crate) no_registry: bool,
    /// Register as the task whose process this is. A root manager passes this flag to managers that
    /// it spawns
    #[arg(long, hide = true)]
    pub(crate) spawned: bool,
    /// Limits for each task: memory_mb, cpu_percent, max_fds, max_procs, timeout. For all:
    /// max_tasks at a time
    #[arg(
        long,
        value_name = "LIMITS",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) limits: ResourceLimits,
    /// Its parent task [default: the task that starts it]
    #[arg(long, value_name = "TID")]
    pub(crate) parent: Option<TidArg>,
    /// How many idle processes to keep ready for the next requests
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) warm_pool: u32,
    #[command(flatten)]
    pub(crate) metrics: MetricsArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    /// A name for lists and process titles [default: worker-TYPE]
    #[arg(long)]
    pub(crate) name: Option<String>,
}

/// Stops managers.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle manager stop                    the root manager, and those that it has spawned
  raddle manager stop unix --timeout 5m
  raddle manager stop --all --kill       their tasks go back to their queue")]
pub(crate) struct ManagerStopArgs {
    /// The managers' types or ids, or their last ten digits [default: the root manager]
    #[arg(value_name = "TYPE|TID")]
    pub(crate) which: Vec<String>,
    /// All managers
    #[arg(long, conflicts_with = "which")]
    pub(crate) all: bool,
    /// Kill without waiting for tasks
    #[arg(long)]
    pub(crate) kill: bool,
    /// How long to wait for their exit
    #[arg(long, value_name = "TIME", default_value = "30")]
    pub(crate) timeout: HumanDuration,
}
