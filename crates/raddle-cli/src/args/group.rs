//! `raddle up` and `raddle group`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use raddle_model::HumanDuration;
use raddle_web::Address;

use super::{LogArgs, absolute};

/// Keep the groups of a raddle.toml up.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle up                              the groups of raddle.toml, here or in a parent directory
  raddle up -f deploy/raddle.toml
  raddle up -d                           in the background; then: raddle down
  raddle up --metrics-addr 127.0.0.1:9464

While a manager of the same name keeps the same workers, another waits, and takes its place when it
is gone. A table [process.NAME] says how many replicas there are of a process, and each [[process.NAME.worker]]
in it what is done with the tasks of one queue, its slug: see docs/how-to/groups.md. A first SIGTERM or
Ctrl-C lets processes finish what they run, for as long as execution_timeout says; then, or at the
second one, that is cancelled and goes back to its queue; after shutdown_timeout, or at the third
one, they are killed.")]
pub(crate) struct UpArgs {
    /// The file [default: raddle.toml in this or a parent directory]
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// A directory of handlers for the processes
    #[arg(long, value_name = "DIR", value_parser = absolute(), value_hint = clap::ValueHint::DirPath)]
    pub(crate) handlers: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    /// A name for lists and process titles. Managers with different names run the same groups side by side
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

/// Stop the managers of a raddle.toml.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle down                            those that keep the groups of raddle.toml, on any machine
  raddle down --name second --timeout 5m

Processes finish what they run, and what takes too long goes back to its queue, as at a SIGTERM to
the manager. It waits for as long as the file says that this may take.")]
pub(crate) struct DownArgs {
    /// The file [default: raddle.toml in this or a parent directory]
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// Only those of this name
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// End at once
    #[arg(long)]
    pub(crate) kill: bool,
    /// How long to wait until they are gone
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<HumanDuration>,
}

/// List and change groups.
#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// List workers of groups, and the processes that serve them
    #[command(after_help = "Example:
  raddle group list --json | jq -r '.[] | select(.on | not) | .slug'")]
    List,
    /// Turn a worker off: its events wait
    #[command(after_help = "Example:
  raddle group off mail                  what runs may end; it stays off after a restart, too")]
    #[command(visible_alias = "stop")]
    Off(SlugArgs),
    /// Turn a worker on again
    #[command(after_help = "Example:
  raddle group on mail")]
    #[command(visible_alias = "start")]
    On(SlugArgs),
    /// Set the number of processes of the worker's group
    #[command(after_help = "Example:
  raddle group scale mail 5              until the next 'raddle group scale', also after a restart")]
    Scale(ScaleArgs),
    /// Forget a worker that no manager runs any more
    #[command(after_help = "Example:
  raddle group forget mail               it gets no more events; tasks that wait for it stay in its queue

A worker that is taken out of raddle.toml goes on getting its events, so that nothing is lost until
it is back. This ends that.")]
    #[command(visible_alias = "delete")]
    Forget(SlugArgs),
}

/// Which worker.
#[derive(Debug, Args)]
pub(crate) struct SlugArgs {
    /// The worker's slug
    #[arg(value_name = "SLUG")]
    pub(crate) slug: String,
}

/// Which worker, and how many.
#[derive(Debug, Args)]
pub(crate) struct ScaleArgs {
    /// The worker's slug
    #[arg(value_name = "SLUG")]
    pub(crate) slug: String,
    /// How many processes
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) replicas: u32,
}
