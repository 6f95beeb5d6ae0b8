//! Arguments of `raddle up`, `raddle down` and `raddle group`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use raddle_model::HumanDuration;
use raddle_web::Address;

use super::{LogArgs, absolute};

/// Runs the groups of a raddle.toml.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle up                              the groups of raddle.toml, here or in a parent directory
  raddle up -f deploy/raddle.toml
  raddle up -d                           in the background, until raddle down
  raddle up --metrics-addr 127.0.0.1:9464

A table [process.NAME] sets the number of replicas of a process. Each [[process.NAME.worker]] in it
handles the tasks of one queue, which has the name of its slug: see docs/how-to/groups.md.

While a manager of the same name runs the same workers, a second one stands by, and replaces it when
it exits. At the first SIGTERM or Ctrl-C, processes finish their tasks. After execution_timeout, or
at the second signal, the tasks are cancelled and go back to their queues. After shutdown_timeout, or
at the third signal, the processes are killed.")]
pub(crate) struct UpArgs {
    /// The file [default: raddle.toml in this or a parent directory]
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// The groups of this Python app, as MODULE:APP or MODULE:MANAGER, instead of a file
    #[arg(long, value_name = "APP", conflicts_with = "file")]
    pub(crate) python: Option<String>,
    /// A directory of handlers for the processes
    #[arg(long, value_name = "DIR", value_parser = absolute(), value_hint = clap::ValueHint::DirPath)]
    pub(crate) handlers: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    /// A name for lists and process titles. Managers with different names run the same groups side
    /// by side
    #[arg(long, default_value = "group")]
    pub(crate) name: String,
    /// Run in the background and print the id. The log is .raddle/worker-<tid>.log
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Serve Prometheus metrics at this address, such as 127.0.0.1:9464
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics_addr: Option<Address>,
    /// Allow an address beyond loopback: metrics are not encrypted
    #[arg(long, requires = "metrics_addr")]
    pub(crate) metrics_public: bool,
}

/// Stops the managers of a raddle.toml.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle down                            managers of the groups of raddle.toml, on any machine
  raddle down --name second --timeout 5m

Processes finish their tasks; tasks that take too long go back to their queues, as after a SIGTERM
to the manager. The default for --timeout is the longest time that the file allows.")]
pub(crate) struct DownArgs {
    /// The file [default: raddle.toml in this or a parent directory]
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// Only managers with this name
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Kill without waiting for tasks
    #[arg(long)]
    pub(crate) kill: bool,
    /// How long to wait for their exit
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<HumanDuration>,
}

/// Lists and changes groups.
#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// List group workers, and the processes that serve them
    #[command(after_help = "Example:
  raddle group list --json | jq -r '.[] | select(.on | not) | .slug'")]
    List,
    /// Turn a group worker off: its events wait
    #[command(after_help = "Example:
  raddle group off mail                  running tasks finish; it stays off after a restart")]
    #[command(visible_alias = "stop")]
    Off(SlugArgs),
    /// Turn a group worker on again
    #[command(after_help = "Example:
  raddle group on mail")]
    #[command(visible_alias = "start")]
    On(SlugArgs),
    /// Set the number of processes of the worker's group
    #[command(after_help = "Example:
  raddle group scale mail 5              kept after a restart")]
    Scale(ScaleArgs),
    /// Delete a group worker that no manager runs any more
    #[command(after_help = "Example:
  raddle group forget mail               it gets no more events; its waiting tasks stay queued

A worker that is removed from raddle.toml still receives its events, so that none is lost if it is
added again. This command ends that.")]
    #[command(visible_alias = "delete")]
    Forget(SlugArgs),
}

/// Names a group worker.
#[derive(Debug, Args)]
pub(crate) struct SlugArgs {
    /// The worker's slug
    #[arg(value_name = "SLUG")]
    pub(crate) slug: String,
}

/// Names a group worker and its number of processes.
#[derive(Debug, Args)]
pub(crate) struct ScaleArgs {
    /// The worker's slug
    #[arg(value_name = "SLUG")]
    pub(crate) slug: String,
    /// The number of processes
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) replicas: u32,
}
