//! Arguments of `raddle spawner`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use raddle_model::{CapSet, HumanDuration, spec::Isolation};
use raddle_spawner::{Config, LauncherKind, WarmPool};
use raddle_worker::worker::parse_min_isolation;

use super::{LogArgs, MetricsArgs, absolute, trimmed};

/// Keeps idle one-shot workers ready for the next tasks.
#[derive(Debug, Subcommand)]
pub(crate) enum SpawnerCommand {
    /// Keep idle one-shot workers ready for the next tasks, in the foreground
    #[command(visible_alias = "start")]
    Run(Box<SpawnerArgs>),
}

/// Runs a spawner.
#[derive(Debug, Default, Args)]
#[command(after_help = "Examples:
  raddle spawner run --warm-pool 2       two idle workers, and more as tasks arrive
  raddle spawner run --config spawner.toml
  raddle spawner run --caps gpu --warm-pool auto --max-workers 4
  raddle spawner run --launcher docker --worker-image raddle

spawner.toml has these keys in a table [spawner]: queue_url, caps, queues, warm_pool, max_parallel,
max_workers, poll_ms, idle_timeout, max_uptime, hit_target, launcher, worker_image, min_isolation,
task_image, handlers, plugins. The table [spawner.container] limits the containers of workers:
memory_mb, cpus, pids, tmp_mb, gpus, networks, seccomp. The table [spawner.kubernetes] has the
settings for a cluster: namespace, server, ca_file, token_file, queue_secret, queue_secret_key,
template, start_within, grace. Flags and environment override the file.

At the first SIGTERM or Ctrl-C the workers finish their tasks, at the second they return them to
their queues, at the third they are killed.")]
pub(crate) struct SpawnerArgs {
    /// The configuration file, spawner.toml
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// How many idle workers to keep, or 'auto' to follow the demand
    #[arg(long, value_name = "N|auto", env = "WARM_POOL")]
    pub(crate) warm_pool: Option<WarmPool>,
    /// The capabilities of the workers
    #[arg(long, value_name = "A,B", env = "WORKER_CAPS", value_parser = CapSet::from_people)]
    pub(crate) caps: Option<CapSet>,
    /// The queues that the workers serve
    #[arg(long, value_name = "Q,R", value_delimiter = ',', value_parser = trimmed)]
    pub(crate) queues: Option<Vec<String>>,
    /// The largest number of workers at a time [default: four for each core]
    #[arg(long, value_name = "N")]
    pub(crate) max_parallel: Option<u32>,
    /// The same as --max-parallel; the lower of the two applies
    #[arg(long, value_name = "N")]
    pub(crate) max_workers: Option<u32>,
    /// The longest pause between two checks, in milliseconds [default: 1000]. New tasks do not wait
    /// for it
    #[arg(long, value_name = "MS")]
    pub(crate) poll_ms: Option<u64>,
    /// Idle time after which a worker exits [default: 10m]
    #[arg(long, value_name = "TIME", env = "WORKER_IDLE_EXIT")]
    pub(crate) idle_timeout: Option<HumanDuration>,
    /// Age after which a worker takes no new task and exits
    #[arg(long, value_name = "TIME", env = "WORKER_MAX_UPTIME")]
    pub(crate) max_uptime: Option<HumanDuration>,
    /// With --warm-pool auto: the share of tasks that must find an idle worker [default: 0.99]
    #[arg(long, value_name = "SHARE")]
    pub(crate) hit_target: Option<f64>,
    /// How workers are started: 'process', 'docker' for containers, or 'kubernetes' for pods
    #[arg(long, value_name = "HOW")]
    pub(crate) launcher: Option<LauncherKind>,
    /// The image of containers and pods, whose entrypoint is this program
    #[arg(long, value_name = "IMAGE")]
    pub(crate) worker_image: Option<String>,
    /// The weakest isolation to accept: tasks that ask for less run with 'process', 'sandbox' or
    /// 'docker'
    #[arg(long, value_name = "HOW", env = "WORKER_MIN_ISOLATION", value_parser = parse_min_isolation)]
    pub(crate) min_isolation: Option<Isolation>,
    /// Run tasks with the isolation 'docker', each in a container of this image
    #[arg(long, value_name = "IMAGE", env = "WORKER_TASK_IMAGE")]
    pub(crate) task_image: Option<String>,
    /// A directory of handlers for the workers
    #[arg(long, value_name = "DIR", value_parser = absolute(), value_hint = clap::ValueHint::DirPath)]
    pub(crate) handlers: Option<PathBuf>,
    /// Use only these handlers
    #[arg(long, value_name = "A,B", env = "WORKER_PLUGINS", value_delimiter = ',', value_parser = trimmed)]
    pub(crate) plugins: Option<Vec<String>>,
    /// The socket that serves the broker to the workers [default: beside the database, or in the
    /// temporary directory]
    #[arg(long, value_name = "PATH", value_parser = absolute(), value_hint = clap::ValueHint::FilePath)]
    pub(crate) serve: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) metrics: MetricsArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    /// A name for lists and process titles
    #[arg(long, default_value = "spawner")]
    pub(crate) name: String,
}

impl SpawnerArgs {
    /// Overrides the settings of the file with those of flags and environment.
    pub(crate) fn override_config(&self, config: &mut Config) {
        fn replace<T: Clone>(given: &Option<T>, value: &mut T) {
            if let Some(given) = given {
                value.clone_from(given);
            }
        }
        replace(&self.caps, &mut config.caps);
        replace(&self.queues, &mut config.queues);
        replace(&self.warm_pool, &mut config.warm_pool);
        replace(&self.poll_ms, &mut config.poll_ms);
        replace(&self.idle_timeout, &mut config.idle_timeout);
        replace(&self.hit_target, &mut config.hit_target);
        replace(&self.launcher, &mut config.launcher);
        replace(&self.min_isolation, &mut config.min_isolation);
        config.max_parallel = self.max_parallel.or(config.max_parallel);
        config.max_workers = self.max_workers.or(config.max_workers);
        config.max_uptime = self.max_uptime.or(config.max_uptime);
        config.handlers = self.handlers.clone().or(config.handlers.take());
        config.plugins = self.plugins.clone().or(config.plugins.take());
        config.worker_image = self.worker_image.clone().or(config.worker_image.take());
        config.task_image = self.task_image.clone().or(config.task_image.take());
    }
}
