//! Arguments of `raddle queue`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use raddle_model::{HumanDuration, queue_name::QueueArg};

/// Reads and writes queues.
#[derive(Debug, Subcommand)]
pub(crate) enum QueueCommand {
    /// Take messages from a queue and print them, the oldest first
    #[command(after_help = "Examples:
  raddle queue read jobs                 one message
  raddle queue read jobs --all
  raddle queue read jobs --wait 30       wait up to 30 s for a message")]
    Read {
        /// The queue
        queue: QueueArg,
        #[command(flatten)]
        amount: Amount,
        /// How long to wait for the first message
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
        /// The messages; - is standard input, as one message. Standard input if neither this nor
        /// --file is given
        #[arg(value_name = "MESSAGE")]
        messages: Vec<String>,
        /// Write the contents of this file as one message; - is standard input. Can be repeated
        #[arg(long, value_name = "FILE")]
        file: Vec<PathBuf>,
        /// Write each line of the input as one message. Empty lines are skipped
        #[arg(long)]
        lines: bool,
    },
    /// Move messages to another queue, in one transaction
    #[command(
        name = "move",
        after_help = "Example:
  raddle queue move jobs jobs.later --all"
    )]
    Move {
        /// The queue to take messages from
        from: QueueArg,
        /// The queue to write them to
        to: QueueArg,
        #[command(flatten)]
        amount: Amount,
    },
    /// List queues with waiting tasks or messages
    #[command(after_help = "Examples:
  raddle queue list
  raddle queue list --all                with the queues of tasks and Raddle's own
  raddle queue list 'T*.outbox'")]
    List {
        /// Only queues with this name, where * matches any text
        pattern: Option<String>,
        /// Show the queues of tasks and Raddle's own queues, too
        #[arg(long, conflicts_with = "pattern")]
        all: bool,
    },
    /// Count the tasks and messages of a queue, and show their ages
    #[command(after_help = "Examples:
  raddle queue stats default
  raddle queue stats jobs")]
    #[command(visible_alias = "show")]
    Stats {
        /// The queue
        queue: QueueArg,
    },
    /// Pause a queue of tasks: it takes tasks, and no worker claims from it
    ///
    /// Tasks that run go on. Messages are not concerned.
    #[command(after_help = "Example:
  raddle queue pause mail                until 'raddle queue resume mail'")]
    Pause {
        /// The queue
        queue: String,
    },
    /// Let workers claim from a paused queue again
    #[command(after_help = "Example:
  raddle queue resume mail")]
    Resume {
        /// The queue
        queue: String,
    },
    /// Remove the messages of a queue
    #[command(after_help = "Example:
  raddle queue delete jobs")]
    Delete {
        /// The queue
        queue: QueueArg,
    },
    /// Print messages as they arrive, without taking them, until interrupted
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
    /// Write a message to each matching queue that is not empty, and print their names
    #[command(after_help = "Examples:
  raddle queue broadcast 'jobs.*' hello
  raddle queue broadcast 'T*.ctrl_in' PING")]
    Broadcast {
        /// The name of the queues, where * matches any text
        pattern: String,
        /// The message; - is standard input
        #[arg(default_value = "-", hide_default_value = true)]
        message: String,
    },
}

/// A number of messages.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Amount {
    /// The largest number of messages
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) limit: u32,
    /// All messages
    #[arg(long, conflicts_with = "limit")]
    pub(crate) all: bool,
}

impl Amount {
    /// The largest number of messages.
    pub(crate) fn max(self) -> u32 {
        if self.all { u32::MAX } else { self.limit }
    }
}
