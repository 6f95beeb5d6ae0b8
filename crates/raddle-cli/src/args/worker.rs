//! Arguments of `raddle worker`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use raddle_model::{
    CapSet, HumanDuration, QueueName,
    manager::{self, ResourceLimits, SpawnPolicy},
    queue_name::ParseQueueNameError,
    spec::Isolation,
    tid::TidArg,
};
use serde::{Deserialize, Serialize};

use super::{HostArgs, LogArgs, MetricsArgs, absolute, trimmed};

/// Starts, lists and stops workers.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// Start a worker in the background, and print its id
    Start(Box<StartArgs>),
    /// List live workers
    #[command(after_help = "Example:
  raddle worker list --json | jq -r '.[].tid'")]
    List,
    /// Stop workers once their running tasks are finished
    Stop(StopArgs),
    /// Spawn a manager for the tasks of a registry, and print its id
    Spawn(SpawnArgs),
}

/// Starts a worker.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[command(after_help = "Examples:
  raddle worker start                    one task at a time for each core
  raddle worker start --caps gpu,docker --concurrency 1 --queues render
  raddle worker start --no-detach --idle-exit 0
                                         run all waiting tasks, then exit
  raddle worker start --once             run one task, then exit
  raddle worker start --task-image debian
                                         also take tasks with the isolation 'docker'
  raddle worker start --serve work.sock  then: raddle --queue-url unix:work.sock status

A worker in the background logs to .raddle/worker-<tid>.log. At the first SIGTERM or Ctrl-C it
finishes its tasks, at the second it returns them to their queues, at the third it kills them.
--once=auto means --once if the concurrency is 1 or not set; the container image sets
WORKER_ONCE=auto.")]
pub(crate) struct StartArgs {
    /// Stay in the foreground, as process 1 of a container always does
    #[arg(long, env = "WORKER_NO_DETACH")]
    pub(crate) no_detach: bool,
    /// Run one task, then exit; with 'auto' only if the concurrency is 1 or not set
    #[arg(
        long,
        value_name = "WHEN",
        env = "WORKER_ONCE",
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        default_missing_value = "true",
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub(crate) once: Once,
    /// How many tasks to run at a time [default: the number of cores]
    #[arg(long, value_name = "N", env = "WORKER_CONCURRENCY", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) concurrency: Option<u32>,
    /// The capabilities of the worker
    #[arg(long, value_name = "A,B", env = "WORKER_CAPS", value_parser = CapSet::from_people)]
    pub(crate) caps: Option<CapSet>,
    /// The queues that the worker serves
    #[arg(long, value_name = "Q,R", value_delimiter = ',', default_value = "default", value_parser = parse_queue_name)]
    pub(crate) queues: Vec<String>,
    /// Exit after this idle time; 0: as soon as no task waits
    #[arg(long, value_name = "TIME", env = "WORKER_IDLE_EXIT")]
    pub(crate) idle_exit: Option<HumanDuration>,
    /// Take no new task after this time, and exit when the running ones are finished
    #[arg(long, value_name = "TIME", env = "WORKER_MAX_UPTIME")]
    pub(crate) max_uptime: Option<HumanDuration>,
    /// Serve the broker to other processes of this user at this socket, as unix:PATH; tasks get it
    /// in QUEUE_URL
    #[arg(long, value_name = "PATH", value_parser = absolute(), value_hint = clap::ValueHint::FilePath)]
    pub(crate) serve: Option<PathBuf>,
    /// A directory of handlers: NAME.handler.toml with name, provides and command
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub(crate) handlers: Option<PathBuf>,
    /// Use only these handlers
    #[arg(long, value_name = "A,B", env = "WORKER_PLUGINS", value_delimiter = ',', value_parser = trimmed)]
    pub(crate) plugins: Option<Vec<String>>,
    /// The weakest isolation to accept: tasks that ask for less run with 'shared', 'process',
    /// 'sandbox' or 'docker'
    #[arg(long, value_name = "HOW", env = "WORKER_MIN_ISOLATION", value_parser = raddle_worker::worker::parse_min_isolation)]
    pub(crate) min_isolation: Option<Isolation>,
    /// Run tasks with the isolation 'docker', each in a container of this image
    #[arg(long, value_name = "IMAGE", env = "WORKER_TASK_IMAGE")]
    pub(crate) task_image: Option<String>,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) metrics: MetricsArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    /// A name for lists and process titles
    #[arg(long, default_value = "worker")]
    pub(crate) name: String,
    #[command(flatten)]
    #[serde(default)]
    pub(crate) hosts: HostArgs,
    /// Limits what the worker of a manager may spawn.
    #[arg(skip)]
    pub(crate) spawn_policy: Option<SpawnPolicy>,
}

/// When a worker runs one task and exits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Once {
    #[value(name = "true")]
    Always,
    #[default]
    #[value(name = "false")]
    Never,
    // A doc comment here would turn the help of the command into its long form.
    Auto,
}

/// Spawns a manager.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  raddle worker spawn --type unix --registry tasks.toml
  raddle worker spawn --type unix --registry tasks.toml --limits memory_mb=256,timeout=30s,max_tasks=8

A live root manager spawns the manager as a task, and keeps it alive. Without a root manager this is
the same as 'raddle manager start'.")]
pub(crate) struct SpawnArgs {
    /// The type of the manager, which reads worker.TYPE.requests
    #[arg(long = "type", value_name = "TYPE", value_parser = manager::parse_type)]
    pub(crate) kind: String,
    /// The registry of tasks that it may spawn
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) registry: PathBuf,
    /// Limits for each task: memory_mb, cpu_percent, max_fds, max_procs, timeout. For all:
    /// max_tasks at a time
    #[arg(
        long,
        value_name = "LIMITS",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) limits: ResourceLimits,
    /// The root manager that spawns it [default: the least loaded]
    #[arg(long, value_name = "TID")]
    pub(crate) parent: Option<TidArg>,
    /// A name for lists and process titles [default: worker-TYPE]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// How long to wait for its start
    #[arg(long, value_name = "TIME", default_value = "30")]
    pub(crate) timeout: HumanDuration,
}

impl StartArgs {
    /// Whether the worker runs one task and exits.
    pub(crate) fn takes_one_task(&self) -> bool {
        match self.once {
            Once::Always => true,
            Once::Never => false,
            Once::Auto => self.concurrency.is_none_or(|concurrency| concurrency == 1),
        }
    }

    /// Refuses flags and variables that contradict each other.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.concurrency {
            Some(concurrency @ 2..) if self.once == Once::Always => Err(format!(
                "--once runs one task, and --concurrency {concurrency} several at a time: remove one of them, also from \
                 WORKER_ONCE and WORKER_CONCURRENCY"
            )),
            _ => Ok(()),
        }
    }
}

/// Parses the name of a queue of tasks.
fn parse_queue_name(text: &str) -> Result<String, ParseQueueNameError> {
    let text = text.trim();
    text.parse::<QueueName>().map(|_| text.to_owned())
}

/// Stops workers.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle worker stop 2140161024
  raddle worker stop --all --timeout 5m
  raddle worker stop --all --kill        their tasks go back to their queues")]
pub(crate) struct StopArgs {
    /// The workers' ids, or their last ten digits
    #[arg(value_name = "TID", required_unless_present = "all")]
    pub(crate) tids: Vec<TidArg>,
    /// All workers
    #[arg(long, conflicts_with = "tids")]
    pub(crate) all: bool,
    /// Kill without waiting for tasks
    #[arg(long)]
    pub(crate) kill: bool,
    /// How long to wait for their exit
    #[arg(long, value_name = "TIME", default_value = "10")]
    pub(crate) timeout: HumanDuration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_one_task_with_once_or_a_concurrency_of_one() {
        let takes_one = |once, concurrency| {
            let args = StartArgs {
                once,
                concurrency,
                ..StartArgs::default()
            };
            args.check().map(|()| args.takes_one_task())
        };
        for concurrency in [None, Some(1), Some(3)] {
            assert_eq!(takes_one(Once::Never, concurrency), Ok(false));
            assert_eq!(
                takes_one(Once::Auto, concurrency),
                Ok(concurrency != Some(3))
            );
        }
        assert_eq!(takes_one(Once::Always, None), Ok(true));
        assert_eq!(takes_one(Once::Always, Some(1)), Ok(true));
        assert!(
            takes_one(Once::Always, Some(2))
                .unwrap_err()
                .contains("--concurrency 2")
        );
    }
}
