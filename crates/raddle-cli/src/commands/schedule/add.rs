//! `raddle schedule add`: adds or replaces a schedule.

use std::{fs, path::Path};

use raddle_client::schedule::{self, PutOutcome};
use raddle_model::Schedule;
use serde_json::json;

use super::warn_if_not_fired;
use crate::{
    args::ScheduleAddArgs,
    context::Context,
    error::{Failure, OrFail, Outcome},
    format, output, spec,
};

pub(super) async fn add(context: &Context, args: &ScheduleAddArgs) -> Outcome {
    let written = match &args.file {
        Some(path) => {
            let read = read_file(path)?;
            Schedule {
                task: spec::apply_flags(read.task, &args.spec)?,
                ..read
            }
        }
        None => from_flags(args)?,
    };
    written
        .validate()
        .map_err(|error| Failure::Usage(format!("the schedule cannot be used, {error}")))?;
    let name = written.name.clone();
    let broker = context.open_broker().await?;
    let put = schedule::put(&*broker, written, args.replace).await?;
    let entry = put.entry();
    let status = match &put {
        PutOutcome::Added(_) => "added",
        PutOutcome::Replaced(_) => "replaced",
        PutOutcome::Unchanged(_) => "unchanged",
    };
    if context.json {
        output::print_json(
            &json!({ "name": name, "put": status, "paused": entry.paused, "next": entry.due() }),
        )?;
        return Ok(0);
    }
    let next = match entry.due() {
        Some(next) => format!("due next at {}", format::time(next)),
        None if entry.paused => "paused".into(),
        None => "never due".into(),
    };
    context.note(format!("schedule '{name}' {status}, {next}"));
    if !context.quiet {
        warn_if_not_fired(context, &*broker).await?;
    }
    Ok(0)
}

fn from_flags(args: &ScheduleAddArgs) -> Outcome<Schedule> {
    let mut task = spec::apply_flags(spec::from_words(&args.target, &args.command), &args.spec)?;
    Ok(Schedule {
        name: args.schedule.clone().unwrap_or_default(),
        every: args.every,
        cron: args.cron.clone(),
        timezone: args.timezone.clone(),
        start: args.start,
        missed: args.missed,
        // The lifetime of a task counts from its submission, the lifetime of a schedule from the
        // due time.
        lifetime: task.lifetime.take(),
        jitter: args.jitter,
        paused: args.paused,
        task,
    })
}

fn read_file(path: &Path) -> Outcome<Schedule> {
    let shown = path.display();
    let text = fs::read_to_string(path).or_usage_at(format_args!("cannot read {shown}"))?;
    let read = if path
        .extension()
        .is_some_and(|extension| extension == "toml")
    {
        Schedule::from_toml(&text)
    } else {
        Schedule::from_json(&text)
    };
    read.map_err(|error| Failure::Usage(format!("{shown} is not a schedule, {error}")))
}
