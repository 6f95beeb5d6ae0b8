//! Arguments of `raddle schedule`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use raddle_model::{
    HumanDuration,
    schedule::{Cron, MissedPolicy},
};

use super::{
    LogArgs, SpecArgs, TargetArgs,
    spec::{one_of, parse_time},
};

/// Submits tasks on a schedule.
#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleCommand {
    /// Add a schedule
    Add(Box<ScheduleAddArgs>),
    /// List schedules
    #[command(after_help = "Examples:
  raddle schedule list
  raddle schedule list --json | jq -r '.[] | .schedule.name + \" \" + .next'")]
    List,
    /// Show a schedule and its next due times
    #[command(after_help = "Example:
  raddle schedule show backup --count 10")]
    Show {
        /// The schedule
        name: String,
        /// How many due times to show
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(0..=1000))]
        count: u16,
    },
    /// Pause schedules: due times are skipped until they are resumed
    #[command(after_help = "Example:
  raddle schedule pause backup")]
    Pause(ScheduleNames),
    /// Resume paused schedules
    #[command(after_help = "Example:
  raddle schedule resume backup")]
    Resume(ScheduleNames),
    /// Submit the tasks of schedules now, and print their ids; due times do not change
    #[command(after_help = "Example:
  raddle schedule run-now backup | xargs raddle wait")]
    RunNow(ScheduleNames),
    /// Remove schedules; their submitted tasks stay
    #[command(after_help = "Example:
  raddle schedule remove backup")]
    #[command(visible_alias = "delete")]
    Remove(ScheduleNames),
    /// Fire schedules in the foreground, without taking tasks
    #[command(after_help = "Example:
  raddle schedule run

Long-running workers and spawners fire schedules, too: use this where there are none. Any number of
processes may fire schedules at the same time; each due time is fired once.")]
    #[command(visible_alias = "start")]
    Run(ScheduleRunArgs),
}

/// Names schedules.
#[derive(Debug, Args)]
pub(crate) struct ScheduleNames {
    /// The schedules
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}

/// Adds a schedule.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle schedule add heartbeat --every 30s -- ./beat.sh
  raddle schedule add backup --cron '0 3 * * 1-5' --timezone Europe/Berlin -- ./backup.sh
  raddle schedule add report --cron '@monthly' --lifetime 10m --retry 2 -- ./report.sh
  raddle schedule add --file backup.toml --replace

A cron expression has five fields (minute, hour, day, month, weekday), or six with seconds in front.
A task has the name of its schedule in RADDLE_SCHEDULE, and its due time in RADDLE_DUE. With
--unique-key no task is submitted while the previous one is unfinished.")]
pub(crate) struct ScheduleAddArgs {
    /// The name: letters, digits, or . _ -
    #[arg(value_name = "NAME", required_unless_present = "file")]
    pub(crate) schedule: Option<String>,
    /// The interval (30s, 5m, 1h30m); first due after one interval
    #[arg(long, value_name = "TIME", required_unless_present_any = ["cron", "file"])]
    pub(crate) every: Option<HumanDuration>,
    /// A cron expression, such as '0 3 * * 1-5', or @hourly, @daily, @weekly, @monthly, @yearly
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "every")]
    pub(crate) cron: Option<Cron>,
    /// The time zone of the expression, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "cron")]
    pub(crate) timezone: Option<String>,
    /// The earliest due time, such as 2026-11-30T08:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = parse_time)]
    pub(crate) start: Option<Timestamp>,
    /// Fate of missed due times: skip them, submit one task for all, or one for each
    #[arg(long, value_name = "WHAT", default_value = "one", value_parser = one_of::<MissedPolicy>(["skip", "one", "all"]))]
    pub(crate) missed: MissedPolicy,
    /// Delay each task by a random time up to this
    #[arg(long, value_name = "TIME")]
    pub(crate) jitter: Option<HumanDuration>,
    /// Add the schedule paused
    #[arg(long)]
    pub(crate) paused: bool,
    /// Replace the schedule with that name
    #[arg(long)]
    pub(crate) replace: bool,
    /// Read the schedule from a file, TOML if it ends in .toml, otherwise JSON
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "schedule", "every", "cron", "start", "missed", "jitter", "paused", "command", "routine", "handler",
    ])]
    pub(crate) file: Option<PathBuf>,
    /// The program and its arguments
    #[arg(value_name = "CMD", required_unless_present_any = ["file", "routine", "handler"], trailing_var_arg = true)]
    pub(crate) command: Vec<String>,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    // Last, because its heading applies to all flags that follow.
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
}

/// Fires schedules.
#[derive(Debug, Args)]
pub(crate) struct ScheduleRunArgs {
    /// A name for lists and process titles
    #[arg(long, default_value = "scheduler")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}
