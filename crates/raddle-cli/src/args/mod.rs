//! The types of the command line. `commands` has the behaviour.

mod batch;
#[cfg(feature = "tls")]
mod cert;
#[cfg(feature = "pool")]
mod credentials;
#[cfg(feature = "pool")]
mod discovery;
mod failures;
mod group;
mod host;
mod log;
mod manager;
mod metrics;
mod operation;
#[cfg(feature = "pool")]
mod pool;
mod queue;
mod schedule;
mod select;
#[cfg(feature = "pool")]
mod serve;
mod spawner;
mod spec;
mod submit;
mod task;
mod web;
mod worker;

use std::ffi::{OsStr, OsString};

use clap::{
    Args, CommandFactory, FromArgMatches, Parser, Subcommand,
    builder::{PathBufValueParser, Resettable, TypedValueParser},
    error::ErrorKind,
};
use raddle_model::HumanDuration;

#[cfg(feature = "tls")]
pub(crate) use cert::*;
pub(crate) use {
    batch::*, failures::*, group::*, host::*, log::*, manager::*, metrics::*, operation::*,
    queue::*, schedule::*, select::*, spawner::*, spec::*, submit::*, task::*, web::*, worker::*,
};
#[cfg(feature = "pool")]
pub(crate) use {credentials::*, discovery::*, pool::*, serve::*};

/// Runs each task in its own process, and loses none
#[derive(Debug, Parser)]
#[command(
    name = "raddle",
    version,
    after_help = "Examples:
  raddle run -- echo hello               run a command as a task in this terminal
  raddle submit -- make test             queue it, and print its id
  raddle worker start                    start a background worker that runs queued tasks
  raddle status                          count waiting, running and failed tasks

Exit codes: 'run' and 'result' exit with the code of the task's command. Others: 0 success, 1 the
task failed, 2 usage error or not found, 124 timeout, 125 Raddle failed, 130 interrupted, 137 kill."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that every command takes.
#[derive(Debug, Default, Args)]
pub(crate) struct Global {
    /// The broker: sqlite:PATH; redis://HOST:PORT, rediss://… (encrypted),
    /// redis+sentinel://HOST:PORT/MASTER or redis+unix:PATH; unix:PATH of a broker socket; or
    /// mem:// for this process only [default: raddle.toml in this or a parent directory, otherwise
    /// .raddle/ here]
    // A URL may contain a password, so help must not show the value of the variable.
    #[arg(
        long,
        global = true,
        env = "QUEUE_URL",
        hide_env_values = true,
        value_name = "URL",
        help_heading = "Global options"
    )]
    pub(crate) queue_url: Option<String>,
    /// Write JSON
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// Log more to stderr; twice for debug. RADDLE_LOG=FILTER sets a filter
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Global options")]
    pub(crate) verbose: u8,
    /// Print only data and errors
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "verbose",
        help_heading = "Global options"
    )]
    pub(crate) quiet: bool,
}

/// A command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command as a task: submit it, print its output, and exit with its code
    Run(Box<RunArgs>),
    /// Submit tasks without waiting for them, and print their ids
    Submit(Box<SubmitArgs>),
    /// Print the output of a finished task, and exit with its code
    Result(ResultArgs),
    /// Print the output of a task so far
    Logs(LogsArgs),
    /// Count tasks and workers by state
    #[command(after_help = "Examples:
  raddle status
  raddle status --watch                  update until no unfinished task is left
  raddle status --json | jq .tasks.failed")]
    Status {
        /// Update until no unfinished task is left
        #[arg(short, long)]
        watch: bool,
    },
    /// Wait until tasks are finished
    Wait(WaitArgs),
    /// Print the full id of a task from its last ten digits
    #[command(after_help = "Example:
  raddle tid 2140161024                  the ten digits that ps shows in raddle-2140161024:name:running")]
    Tid {
        /// The last ten digits of the id, or all of it
        #[arg(value_name = "TID")]
        tid: TaskArg,
    },
    /// List and control tasks
    #[command(subcommand)]
    Task(TaskCommand),
    /// List failed tasks by cause, and submit them again
    Failures(FailuresArgs),
    /// Count, wait for, retry and stop tasks that were submitted together
    #[command(subcommand)]
    Batch(BatchCommand),
    /// Read and write queues
    #[command(subcommand)]
    Queue(QueueCommand),
    /// Follow, go on with and cancel actions on many tasks
    #[command(subcommand)]
    Operation(OperationCommand),
    /// Start, list and stop workers
    #[command(subcommand)]
    Worker(WorkerCommand),
    /// Submit tasks on a schedule: at an interval, or by cron expression
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Run the groups of a raddle.toml: supervised processes that are replaced when they exit or
    /// hang
    Up(Box<UpArgs>),
    /// Stop the managers that run the groups of a raddle.toml
    Down(DownArgs),
    /// List groups, turn their workers off and on, and scale them
    #[command(subcommand)]
    Group(GroupCommand),
    /// Keep idle one-shot workers ready for the next tasks
    #[command(subcommand)]
    Spawner(SpawnerCommand),
    /// Run managers, which spawn tasks on request
    #[command(subcommand)]
    Manager(ManagerCommand),
    /// Serve routines to pools; list, ping and stop pool workers
    #[cfg(feature = "pool")]
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Create and inspect certificates for development
    #[cfg(feature = "tls")]
    #[command(subcommand)]
    Cert(CertCommand),
    /// Serve the operator's interface: pages for a browser, and an API for programs
    Web(Box<WebArgs>),
    /// Show metrics
    #[command(subcommand)]
    Metrics(MetricsCommand),
    /// Reclaim the tasks of dead workers
    #[command(after_help = "Example:
  raddle requeue-orphans                 a task that was running counts one loss, and runs again

Live workers do this by themselves: use it when no worker is left. A worker counts as dead when its
lease of 3 s has expired; on SQLite usually as soon as its processes have exited.")]
    RequeueOrphans,
    /// Check the project, its broker and this machine, and print fixes
    #[command(after_help = "Example:
  raddle doctor                          exits with 1 if tasks could be lost
  raddle doctor -f /etc/raddle/raddle.toml")]
    Doctor {
        /// The file whose groups are compared with compose files and units [default: raddle.toml in
        /// this or a parent directory]
        #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
        file: Option<std::path::PathBuf>,
    },
    /// Start a spawner if WARM_POOL is set, otherwise a worker: the default command of the
    /// container image
    #[command(hide = true)]
    Container,
    /// Hold brokers and pools for a program in another language: the `raddle` package of Python
    /// starts it
    #[command(hide = true)]
    Companion {
        /// The socket of the program, an inherited descriptor
        #[arg(long, value_name = "N", required_unless_present = "listen")]
        fd: Option<i32>,
        /// Serve any program of this user at this socket instead
        #[arg(long, value_name = "PATH", conflicts_with = "fd", value_parser = absolute())]
        listen: Option<std::path::PathBuf>,
    },
    /// Check Python apps
    #[command(subcommand)]
    Python(PythonCommand),
    /// Print a completion script for a shell
    #[command(after_help = "Example:
  raddle completions bash > ~/.local/share/bash-completion/completions/raddle")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Checks Python apps.
#[derive(Debug, Subcommand)]
pub(crate) enum PythonCommand {
    /// Import an app, and check its names, its types and the threads that its imports start
    #[command(after_help = "Example:
  raddle python check shop.tasks:app

Exits with 1 if there is something to fix. Use it in continuous integration.")]
    Check {
        /// The app, as MODULE:APP or MODULE:MANAGER
        #[arg(value_name = "APP")]
        app: String,
    },
}

/// Prints the output of a finished task.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle result 1837025672140161024
  raddle result --wait --timeout 30s 2140161024
  raddle result --json 2140161024 | jq .exit_code")]
pub(crate) struct ResultArgs {
    /// The task's id, or its last ten digits; 'last' is the newest
    #[arg(value_name = "TID")]
    pub(crate) tid: TaskArg,
    /// Wait until it is finished
    #[arg(long)]
    pub(crate) wait: bool,
    /// The longest time to wait
    #[arg(long, value_name = "TIME", requires = "wait")]
    pub(crate) timeout: Option<HumanDuration>,
}

/// Prints the output of a task so far.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle logs 2140161024                 all attempts, one after the other
  raddle logs -f 2140161024              follow until the task is finished
  raddle logs --attempt 1 --stderr 2140161024")]
pub(crate) struct LogsArgs {
    /// The task's id, or its last ten digits; 'last' is the newest
    #[arg(value_name = "TID")]
    pub(crate) tid: TaskArg,
    /// Follow the output until the task is finished
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only this attempt, counted from 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "follow")]
    pub(crate) attempt: Option<u32>,
    /// Only standard output
    #[arg(long, conflicts_with = "stderr")]
    pub(crate) stdout: bool,
    /// Only standard error, printed to standard output
    #[arg(long)]
    pub(crate) stderr: bool,
}

/// Waits until tasks are finished.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle wait 2140161024 2140161025      exits with 1 if one of them failed
  raddle wait --batch last               all tasks of the newest batch
  raddle submit --array 1-9 -- ./job {} | raddle wait --timeout 10m -")]
pub(crate) struct WaitArgs {
    /// The tasks' ids, or their last ten digits; 'last' is the newest, and - reads ids from
    /// standard input
    #[arg(value_name = "TID", required_unless_present = "batch")]
    pub(crate) tids: Vec<TaskArg>,
    /// All tasks of this batch; 'last' is the newest
    #[arg(long, conflicts_with = "tids")]
    pub(crate) batch: Option<String>,
    /// The longest time to wait
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<HumanDuration>,
}

/// Parses the command line of this process. An empty variable counts as unset.
pub(crate) fn parse() -> Result<Cli, clap::Error> {
    let mut cli = parse_words(std::env::args_os())?;
    if let Command::Container = cli.command {
        if cli.global.queue_url.is_none() {
            let reason = "no broker is set: set QUEUE_URL, for example 'docker run -e QUEUE_URL=redis://HOST:6379 IMAGE'\n";
            return Err(Cli::command().error(ErrorKind::MissingRequiredArgument, reason));
        }
        let is_spawner = std::env::var_os("WARM_POOL").is_some_and(|value| !is_blank(&value));
        let words = if is_spawner {
            ["spawner", "run"]
        } else {
            ["worker", "start"]
        };
        cli.command = parse_words(["raddle"].into_iter().chain(words).map(OsString::from))?.command;
    }
    Ok(cli)
}

fn parse_words(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let has_empty = std::env::vars_os().any(|(_, value)| is_blank(&value));
    let command = if has_empty {
        without_empty_variables(Cli::command())
    } else {
        Cli::command()
    };
    let mut matches = command.try_get_matches_from(words)?;
    Cli::from_arg_matches_mut(&mut matches)
}

fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |arg: &clap::Arg| {
        arg.get_env()
            .and_then(std::env::var_os)
            .is_some_and(|value| is_blank(&value))
    };
    command
        .mut_args(|arg| {
            if is_empty(&arg) {
                arg.env(Resettable::Reset)
            } else {
                arg
            }
        })
        .mut_subcommands(without_empty_variables)
}

fn is_blank(value: &OsStr) -> bool {
    value.as_encoded_bytes().iter().all(u8::is_ascii_whitespace)
}

/// Trims an item of a list.
fn trimmed(text: &str) -> Result<String, std::convert::Infallible> {
    Ok(text.trim().to_owned())
}

/// Makes a path absolute, because this process or another may change its directory later.
fn absolute() -> impl TypedValueParser<Value = std::path::PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
