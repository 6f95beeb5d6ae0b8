//! `raddle schedule`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use raddle_model::{
    HumanDuration,
    schedule::{Cron, MissedPolicy},
};

use super::{
    LogArgs, SpecArgs, TargetArgs,
    spec::{moment, one_of},
};

/// Submit tasks on a schedule.
#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleCommand {
    /// Add a schedule, which submits a task whenever it is due
    Add(Box<ScheduleAddArgs>),
    /// List schedules
    #[command(after_help = "Examples:
  raddle schedule list
  raddle schedule list --json | jq -r '.[] | .schedule.name + \" \" + .next'")]
    List,
    /// Show all that is known of a schedule, and when it is due next
    #[command(after_help = "Example:
  raddle schedule show backup --count 10")]
    Show {
        /// The schedule
        name: String,
        /// How many due times to show
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(0..=1000))]
        count: u16,
    },
    /// Submit nothing for schedules until they are resumed
    #[command(after_help = "Example:
  raddle schedule pause backup           what is due until it is resumed is left out")]
    Pause(ScheduleNames),
    /// Let paused schedules go on
    #[command(after_help = "Example:
  raddle schedule resume backup")]
    Resume(ScheduleNames),
    /// Submit the tasks of schedules now, and print their ids; their due times stay as they are
    #[command(after_help = "Example:
  raddle schedule run-now backup | xargs raddle wait")]
    RunNow(ScheduleNames),
    /// Remove schedules; tasks that were submitted for them stay
    #[command(after_help = "Example:
  raddle schedule remove backup")]
    #[command(visible_alias = "delete")]
    Remove(ScheduleNames),
    /// Fire schedules in the foreground, and take no tasks
    #[command(after_help = "Example:
  raddle schedule run

Workers and spawners that stay fire schedules as well: this is for where there are none, or where
they come and go. Any number may do so at once, each due time is fired once.")]
    #[command(visible_alias = "start")]
    Run(ScheduleRunArgs),
}

/// Some schedules.
#[derive(Debug, Args)]
pub(crate) struct ScheduleNames {
    /// The schedules
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}

/// Add a schedule.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  raddle schedule add heartbeat --every 30s -- ./beat.sh
  raddle schedule add backup --cron '0 3 * * 1-5' --timezone Europe/Berlin -- ./backup.sh
  raddle schedule add report --cron '@monthly' --lifetime 10m --retry 2 -- ./report.sh
  raddle schedule add --file backup.toml --replace

A cron expression has five fields (minute, hour, day, month, weekday), or six with seconds in front.
Tasks find the name of their schedule in RADDLE_SCHEDULE, and when they were due in RADDLE_DUE. With
--unique-key no task is submitted while the one before it is unfinished.")]
pub(crate) struct ScheduleAddArgs {
    /// What it is called: letters, digits, or . _ -
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
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    pub(crate) start: Option<Timestamp>,
    /// What happens to missed due times: skip them, submit one task for all, or one for each
    #[arg(long, value_name = "WHAT", default_value = "one", value_parser = one_of::<MissedPolicy>(["skip", "one", "all"]))]
    pub(crate) missed: MissedPolicy,
    /// Delay each task by a random time up to this
    #[arg(long, value_name = "TIME")]
    pub(crate) jitter: Option<HumanDuration>,
    /// Add it paused
    #[arg(long)]
    pub(crate) paused: bool,
    /// Replace the schedule of that name
    #[arg(long)]
    pub(crate) replace: bool,
    /// Read the schedule from a file, JSON or TOML by its name
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "schedule", "every", "cron", "start", "missed", "jitter", "paused", "command", "routine", "handler",
    ])]
    pub(crate) file: Option<PathBuf>,
    /// The program and its arguments
    #[arg(value_name = "CMD", required_unless_present_any = ["file", "routine", "handler"], trailing_var_arg = true)]
    pub(crate) command: Vec<String>,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    // Last, because its heading holds for all that follows.
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
}

/// Fire schedules.
#[derive(Debug, Args)]
pub(crate) struct ScheduleRunArgs {
    /// A name to find it by
    #[arg(long, default_value = "scheduler")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}
