//! `raddle queue`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use raddle_model::{HumanDuration, queue_name::QueueArg};

/// Read and write queues.
#[derive(Debug, Subcommand)]
pub(crate) enum QueueCommand {
    /// Take messages from a queue and print them, the oldest first
    #[command(after_help = "Examples:
  raddle queue read jobs                 one message
  raddle queue read jobs --all
  raddle queue read jobs --wait 30       wait up to 30 s for the first")]
    Read {
        /// The queue
        queue: QueueArg,
        #[command(flatten)]
        amount: Amount,
        /// How long to wait for the first
        #[arg(long, value_name = "TIME")]
        wait: Option<HumanDuration>,
    },
    /// Print messages without taking them
    #[command(after_help = "Examples:
  raddle queue peek raddle.tasks.log --limit 20
  raddle queue peek T1837025672140161024.reserved
  raddle queue peek T2140161024.reserved        the same, by the last ten digits")]
    Peek {
        /// The queue
        queue: QueueArg,
        #[command(flatten)]
        amount: Amount,
    },
    /// Append messages to a queue and print their ids
    #[command(after_help = "Examples:
  raddle queue write jobs 'first' 'second'
  date | raddle queue write jobs -
  raddle queue write jobs --file order.json --file other.json
  raddle queue write jobs --lines < names.txt
  raddle queue write jobs --lines --file names.txt
  raddle queue write T1837025672140161024.ctrl_in STOP")]
    Write {
        /// The queue
        queue: QueueArg,
        /// The messages; - is standard input, as one message. Without any, and without --file, standard input
        #[arg(value_name = "MESSAGE")]
        messages: Vec<String>,
        /// Write what is in this file, as one message; - is standard input. Can be given more than once
        #[arg(long, value_name = "FILE")]
        file: Vec<PathBuf>,
        /// Write each line of what is read as a message of its own. Empty lines are skipped
        #[arg(long)]
        lines: bool,
    },
    /// Move messages to another queue, in one step
    #[command(
        name = "move",
        after_help = "Example:
  raddle queue move jobs jobs.later --all"
    )]
    Move {
        /// The queue to take them from
        from: QueueArg,
        /// The queue to put them into
        to: QueueArg,
        #[command(flatten)]
        amount: Amount,
    },
    /// List the queues that tasks wait in, and those that hold messages
    #[command(after_help = "Examples:
  raddle queue list
  raddle queue list --all                with those of every task, and Raddle's own
  raddle queue list 'T*.outbox'")]
    List {
        /// Only those with such a name, where * stands for anything
        pattern: Option<String>,
        /// Show the queues of every task and Raddle's own, too
        #[arg(long, conflicts_with = "pattern")]
        all: bool,
    },
    /// Show how many tasks and messages a queue holds, and since when
    #[command(after_help = "Examples:
  raddle queue stats default
  raddle queue stats jobs")]
    #[command(visible_alias = "show")]
    Stats {
        /// The queue
        queue: QueueArg,
    },
    /// Remove the messages of a queue
    #[command(after_help = "Example:
  raddle queue delete jobs")]
    Delete {
        /// The queue
        queue: QueueArg,
    },
    /// Print messages as they come, without taking them, until interrupted
    #[command(after_help = "Examples:
  raddle queue watch raddle.tasks.log --new
  raddle queue watch jobs --limit 1 --timeout 60")]
    Watch {
        /// The queue
        queue: QueueArg,
        /// Skip messages that are already there
        #[arg(long)]
        new: bool,
        /// Exit after this many messages
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// Exit after this time
        #[arg(long, value_name = "TIME")]
        timeout: Option<HumanDuration>,
    },
    /// Write a message to every queue with such a name that holds something, and print which
    #[command(after_help = "Examples:
  raddle queue broadcast 'jobs.*' hello
  raddle queue broadcast 'T*.ctrl_in' PING")]
    Broadcast {
        /// The names, where * stands for anything
        pattern: String,
        /// The message; - is standard input
        #[arg(default_value = "-", hide_default_value = true)]
        message: String,
    },
}

/// How many messages.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Amount {
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) limit: u32,
    /// All of them
    #[arg(long, conflicts_with = "limit")]
    pub(crate) all: bool,
}

impl Amount {
    /// How many at most.
    pub(crate) fn max(self) -> u32 {
        if self.all { u32::MAX } else { self.limit }
    }
}
