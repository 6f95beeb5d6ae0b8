//! `raddle schedule`.

mod add;
mod list;
mod run;
mod show;

use raddle_broker::{Broker, Submitted};
use raddle_fabric::schedule;
use serde_json::json;

use crate::{
    args::{ScheduleCommand, ScheduleNames},
    context::Context,
    error::{Failure, Outcome},
    output,
};

pub(super) async fn schedule(context: &Context, command: ScheduleCommand) -> Outcome {
    match command {
        ScheduleCommand::Add(args) => add::add(context, &args).await,
        ScheduleCommand::List => list::list(context).await,
        ScheduleCommand::Show { name, count } => show::show(context, &name, count.into()).await,
        ScheduleCommand::Pause(names) => {
            each(context, &names, "paused", async |broker, name| schedule::pause(broker, name).await).await
        }
        ScheduleCommand::Resume(names) => {
            each(context, &names, "resumed", async |broker, name| schedule::resume(broker, name).await).await
        }
        ScheduleCommand::Remove(names) => {
            each(context, &names, "removed", async |broker, name| schedule::remove(broker, name).await.map(|()| true))
                .await
        }
        ScheduleCommand::RunNow(names) => run_now(context, &names).await,
        ScheduleCommand::Run(args) => run::run(context, &args).await,
    }
}

/// Does something to schedules, one after the other, and says of each whether that changed it.
async fn each(
    context: &Context,
    names: &ScheduleNames,
    what: &str,
    act: impl AsyncFn(&dyn Broker, &str) -> Result<bool, schedule::Error>,
) -> Outcome {
    let broker = context.broker().await?;
    for name in &names.names {
        let changed = act(&*broker, name).await?;
        if context.json {
            output::json(&json!({ "name": name, "is": what, "changed": changed }))?;
        } else if !changed {
            context.note(format!("schedule '{name}' is {what} already"));
        }
    }
    Ok(0)
}

async fn run_now(context: &Context, names: &ScheduleNames) -> Outcome {
    let broker = context.broker().await?;
    for name in &names.names {
        let submitted = schedule::run_now(&*broker, name).await?;
        let (tid, existing) = (submitted.tid(), matches!(submitted, Submitted::Existing(_)));
        if existing {
            context.note(format!("task {tid} has the key of '{name}' already: nothing new was submitted"));
        }
        if context.json {
            output::json(&json!({ "name": name, "tid": tid, "existing": existing }))?;
        } else {
            output::line(tid.to_string())?;
        }
    }
    Ok(0)
}

/// Says so where nobody fires schedules.
async fn warn_if_nobody_fires(context: &Context, broker: &dyn Broker) -> Outcome<()> {
    if !broker.workers().await?.iter().any(|worker| schedule::fires(&worker.info)) {
        let who = "'raddle worker start', 'raddle spawner run' or 'raddle schedule run'";
        context.note(format!("nobody is there to fire schedules: start one who does with {who}"));
    }
    Ok(())
}

impl From<schedule::Error> for Failure {
    fn from(error: schedule::Error) -> Self {
        match error {
            schedule::Error::Broker(error) => error.into(),
            error => Self::Usage(error.to_string()),
        }
    }
}
