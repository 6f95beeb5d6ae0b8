//! `raddle schedule`: lists, changes and fires schedules.

mod add;

use jiff::Timestamp;
use raddle_broker::{Broker, ScheduleView, Submitted};
use raddle_client::schedule;
use raddle_model::{Schedule, schedule::ScheduleEntry};
use raddle_view::schedule::{ScheduleDetail, is_fired, schedule_record};
use raddle_worker::{Options, Shutdown, Worker};
use serde_json::json;

use crate::{
    args::{ScheduleCommand, ScheduleNames, ScheduleRunArgs},
    context::Context,
    error::{Failure, Outcome},
    format,
    interrupt::Interrupts,
    output,
    table::{Table, printable},
};

pub(super) async fn schedule(context: &Context, command: ScheduleCommand) -> Outcome {
    match command {
        ScheduleCommand::Add(args) => add::add(context, &args).await,
        ScheduleCommand::List => list(context).await,
        ScheduleCommand::Show { name, count } => show(context, &name, count.into()).await,
        ScheduleCommand::Pause(names) => {
            change_each(context, &names, "paused", async |broker, name| {
                schedule::pause(broker, name).await
            })
            .await
        }
        ScheduleCommand::Resume(names) => {
            change_each(context, &names, "resumed", async |broker, name| {
                schedule::resume(broker, name).await
            })
            .await
        }
        ScheduleCommand::Remove(names) => {
            change_each(context, &names, "removed", async |broker, name| {
                schedule::remove(broker, name).await.map(|()| true)
            })
            .await
        }
        ScheduleCommand::RunNow(names) => run_now(context, &names).await,
        ScheduleCommand::Run(args) => run(context, &args).await,
    }
}

/// Changes schedules one after the other, and prints whether each has changed.
async fn change_each(
    context: &Context,
    names: &ScheduleNames,
    status: &str,
    act: impl AsyncFn(&dyn Broker, &str) -> Result<bool, schedule::Error>,
) -> Outcome {
    let broker = context.open_broker().await?;
    for name in &names.names {
        let changed = act(&*broker, name).await?;
        if context.json {
            output::print_json(&json!({ "name": name, "is": status, "changed": changed }))?;
        } else if !changed {
            context.note(format!("schedule '{name}' is already {status}"));
        }
    }
    Ok(0)
}

async fn run_now(context: &Context, names: &ScheduleNames) -> Outcome {
    let broker = context.open_broker().await?;
    for name in &names.names {
        let submitted = schedule::run_now(&*broker, name).await?;
        let (tid, existing) = (submitted.tid(), matches!(submitted, Submitted::Existing(_)));
        if existing {
            context.note(format!(
                "task {tid} already has the key of '{name}': no task was submitted"
            ));
        }
        context.show(
            &json!({ "name": name, "tid": tid, "existing": existing }),
            || format!("{tid}\n"),
        )?;
    }
    Ok(0)
}

async fn list(context: &Context) -> Outcome {
    let broker = context.open_existing().await?;
    let schedules = broker.schedules(None).await?;
    context.show(
        &schedules.iter().map(schedule_record).collect::<Vec<_>>(),
        || render(&schedules),
    )?;
    if !context.json && schedules.iter().any(|view| view.entry.due().is_some()) {
        warn_if_not_fired(context, &*broker).await?;
    }
    Ok(0)
}

fn render(schedules: &[ScheduleView]) -> String {
    let mut table = Table::new(&[
        "NAME", "WHEN", "NEXT", "LAST", "FIRED", "MISSED", "POLICY", "TASK", "NOTE",
    ]);
    for ScheduleView { entry, task, .. } in schedules {
        let schedule = &entry.schedule;
        table.row([
            schedule.name.clone(),
            due_text(schedule),
            or_dash(entry.due()),
            or_dash(entry.last),
            entry.fired.to_string(),
            entry.missed.to_string(),
            schedule.missed.as_str().into(),
            task.map_or_else(|| "-".into(), |tid| tid.to_string()),
            note(entry),
        ]);
    }
    table.render()
}

/// Remarks about a schedule.
fn note(entry: &ScheduleEntry) -> String {
    let file_owner = entry
        .owner
        .as_deref()
        .map(|owner| format!("from the file of '{owner}'"));
    let all: Vec<String> = entry
        .paused
        .then(|| "paused".to_owned())
        .into_iter()
        .chain(file_owner)
        .collect();
    all.join(", ")
}

/// When a schedule is due, as text.
fn due_text(schedule: &Schedule) -> String {
    match (&schedule.every, &schedule.cron) {
        (Some(every), _) => format!("every {every}"),
        (None, Some(cron)) => format!("{cron} {}", schedule.zone()),
        (None, None) => "-".into(),
    }
}

fn or_dash(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "-".into(), format::time)
}

async fn show(context: &Context, name: &str, count: usize) -> Outcome {
    let broker = context.open_existing().await?;
    let detail = ScheduleDetail::read(&*broker, name, count).await?;
    if context.json {
        output::print_json(&detail.record())?;
        return Ok(0);
    }
    let ScheduleView { entry, task, .. } = &detail.view;
    let about = &entry.schedule;
    let state = match (task, detail.task_state) {
        (Some(tid), Some(state)) => format!("{tid} ({state})"),
        (Some(tid), None) => format!("{tid} (its record is gone)"),
        (None, _) => "-".into(),
    };
    let rows = [
        ("name", about.name.clone()),
        ("due", due_text(about)),
        (
            "missed",
            format!("{}; {} skipped so far", about.missed.as_str(), entry.missed),
        ),
        (
            "lifetime",
            about
                .lifetime
                .map_or_else(|| "-".into(), |lifetime| lifetime.to_string()),
        ),
        (
            "jitter",
            about
                .jitter
                .map_or_else(|| "-".into(), |jitter| jitter.to_string()),
        ),
        ("paused", if entry.paused { "yes" } else { "no" }.into()),
        ("last", or_dash(entry.last)),
        ("fired", entry.fired.to_string()),
        ("last task", state),
        (
            "task",
            serde_json::to_string(&about.task).expect("a spec has only string keys"),
        ),
    ];
    for (key, value) in rows {
        output::print_line(format!("{:<10} {}", format!("{key}:"), printable(&value)))?;
    }
    for (n, at) in detail.upcoming.into_iter().enumerate() {
        output::print_line(format!(
            "{:<10} {}",
            if n == 0 { "next:" } else { "" },
            or_dash(Some(at))
        ))?;
    }
    if entry.due().is_some() {
        warn_if_not_fired(context, &*broker).await?;
    }
    Ok(0)
}

/// Runs a worker that takes no tasks and fires schedules.
async fn run(context: &Context, args: &ScheduleRunArgs) -> Outcome {
    let broker = context.open_for_worker().await?;
    let mut interrupts = Interrupts::install()?;
    let options = Options {
        name: args.name.clone(),
        ..Options::scheduler()
    };
    let worker = Worker::register(broker, options).await?;
    let tid = worker.tid();
    context.show(&json!({ "tid": tid, "pid": std::process::id() }), || {
        format!("{tid}\n")
    })?;
    let shutdown = Shutdown::new();
    let mut working = Box::pin(worker.run(shutdown.clone()));
    loop {
        tokio::select! {
            ended = &mut working => {
                ended?;
                return Ok(0);
            }
            () = interrupts.next() => shutdown.request(),
        }
    }
}

/// Warns if no process fires schedules.
async fn warn_if_not_fired(context: &Context, broker: &dyn Broker) -> Outcome<()> {
    if !is_fired(broker).await? {
        let commands = "'raddle worker start', 'raddle spawner run' or 'raddle schedule run'";
        context.note(format!(
            "no live process fires schedules: start one with {commands}"
        ));
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
