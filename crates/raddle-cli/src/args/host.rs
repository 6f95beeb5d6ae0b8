//! The flags about a worker's hosts.

use clap::Args;
use raddle_model::HumanDuration;
use serde::{Deserialize, Serialize};

/// Hosts of a worker.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
pub(crate) struct HostArgs {
    /// How many warm processes to keep for tasks that may share one; 0: every task has its own
    /// [default: the number of cores, or the concurrency if that is less]
    #[arg(long, value_name = "N", env = "WORKER_HOSTS", value_parser = clap::value_parser!(u32).range(0..=256))]
    pub(crate) hosts: Option<u32>,
    /// How many async tasks run in one host at a time [default: 100, or a share of --concurrency]
    #[arg(long, value_name = "N", env = "WORKER_HOST_CONCURRENCY", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) host_concurrency: Option<u32>,
    /// How many blocking tasks run in one host at a time [default: 1, or a share of --concurrency]
    #[arg(long, value_name = "N", env = "WORKER_HOST_THREADS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) host_threads: Option<u32>,
    /// Replace a host after about this many tasks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) host_max_tasks: Option<u64>,
    /// Replace a host at about this age
    #[arg(long, value_name = "TIME")]
    pub(crate) host_max_age: Option<HumanDuration>,
    /// Replace a host that uses more memory than this, when its tasks are finished
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) host_max_rss: Option<u64>,
    /// Kill a host that uses more memory than this, its children included
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) host_memory: Option<u64>,
    /// Limit the CPU time of each host, in percent of one core
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) host_cpu: Option<u32>,
    /// Replace a host whose event loop is blocked for this time [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) host_blocked_timeout: Option<HumanDuration>,
    /// How long a host may take until it is ready [default: 60s]
    #[arg(long, value_name = "TIME")]
    pub(crate) host_startup_timeout: Option<HumanDuration>,
    /// How long a host may take to shut down [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub(crate) host_shutdown_timeout: Option<HumanDuration>,
    /// Run the routines of this Python app, as MODULE:APP
    #[arg(long, value_name = "APP", conflicts_with = "host")]
    #[serde(default)]
    pub(crate) python: Option<String>,
    /// Replace a host of the Python app when a file of the app has changed, for development
    #[arg(long, requires = "python")]
    #[serde(default)]
    pub(crate) reload: bool,
    /// Run the routines of this program, in any language, which speaks the host protocol; must be
    /// last
    #[arg(long, value_name = "COMMAND", num_args = 1.., allow_hyphen_values = true)]
    #[serde(default)]
    pub(crate) host: Vec<String>,
}
