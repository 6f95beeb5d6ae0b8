//! `raddle group`: lists and changes group workers.

use std::time::Duration;

use raddle_broker::Broker;
use raddle_groups::{self as group, DesiredState, GroupChangeError, GroupWorkerView};
use raddle_model::worker::WorkerStatus;
use tokio::time::{Instant, sleep};

use crate::{
    args::{GroupCommand, ScaleArgs, SlugArgs},
    context::Context,
    error::{Failure, Outcome},
    follow::EXPLAIN_AFTER,
    format::count,
    output,
    table::Table,
};

/// The pause between two reads of the registry.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(super) async fn group(context: &Context, command: GroupCommand) -> Outcome {
    match command {
        GroupCommand::List => list(context).await,
        GroupCommand::Off(SlugArgs { slug }) => set_enabled(context, &slug, false).await,
        GroupCommand::On(SlugArgs { slug }) => set_enabled(context, &slug, true).await,
        GroupCommand::Forget(SlugArgs { slug }) => forget(context, &slug).await,
        GroupCommand::Scale(ScaleArgs { slug, replicas }) => {
            let broker = context.open_broker().await?;
            let state = group::scale(&*broker, &slug, replicas)
                .await
                .map_err(failure)?;
            print_change(
                context,
                &state,
                &format!("'{slug}' is set to {}", count(replicas.into(), "process")),
            )?;
            explain_delay(context, &*broker, &state).await
        }
    }
}

async fn list(context: &Context) -> Outcome {
    let views = group::list(&*context.open_existing().await?).await?;
    context.show(&views, || render(&views))
}

fn render(views: &[GroupWorkerView]) -> String {
    let mut table = Table::new(&[
        "SLUG", "PROCESS", "STATE", "REPLICAS", "LIVE", "BUSY", "WAITING", "SOURCES", "MANAGER",
    ]);
    for view in views {
        table.row([
            view.slug.clone(),
            view.process.clone(),
            if view.on { "on" } else { "off" }.into(),
            view.replicas.to_string(),
            view.live.to_string(),
            view.busy.to_string(),
            view.waiting.to_string(),
            if view.sources.is_empty() {
                "-".into()
            } else {
                view.sources.join(",")
            },
            managers(view),
        ]);
    }
    let mut text = table.render();
    for view in views {
        if let Some(failure) = &view.failure {
            text.push_str(&format!("{}: no host starts: {failure}\n", view.slug));
        }
    }
    text
}

fn managers(view: &GroupWorkerView) -> String {
    let all: Vec<String> = view
        .managers
        .iter()
        .map(|manager| format!("{} ({})", manager.tid, manager.status.as_str()))
        .collect();
    if all.is_empty() {
        "-".into()
    } else {
        all.join(", ")
    }
}

async fn set_enabled(context: &Context, slug: &str, on: bool) -> Outcome {
    let broker = context.open_broker().await?;
    let state = group::set_worker_on(&*broker, slug, on)
        .await
        .map_err(failure)?;
    print_change(
        context,
        &state,
        &format!("'{slug}' is {}", if on { "on" } else { "off" }),
    )?;
    explain_delay(context, &*broker, &state).await
}

/// Waits for the requested change. If it takes long, or at once without a manager, it prints why.
async fn explain_delay(context: &Context, broker: &dyn Broker, state: &DesiredState) -> Outcome {
    let wanted = if state.on { state.wanted() as usize } else { 0 };
    let deadline = Instant::now() + EXPLAIN_AFTER;
    loop {
        let views = group::list(broker).await?;
        let Some(view) = views.iter().find(|view| view.slug == state.slug) else {
            return Ok(0);
        };
        if view.live == wanted {
            return Ok(0);
        }
        if view.managers.is_empty() || Instant::now() >= deadline {
            context.note(shortfall(view, wanted));
            return Ok(0);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Why a worker has fewer processes than wanted.
fn shortfall(view: &GroupWorkerView, wanted: usize) -> String {
    let (slug, live) = (&view.slug, view.live);
    let Some(manager) = view.managers.first() else {
        return format!("no manager runs '{slug}': start one with 'raddle up'");
    };
    let tid = manager.tid;
    match manager.status {
        _ if live > wanted => {
            let left = count((live - wanted) as u64, "process");
            format!(
                "{left} may finish running tasks: see 'raddle task list --queue {slug} --status running'"
            )
        }
        WorkerStatus::Draining => {
            format!("its manager {tid} is stopping: start it again with 'raddle up'")
        }
        WorkerStatus::BackingOff => {
            format!(
                "processes of its manager {tid} exit right after their start: see the log of 'raddle up'"
            )
        }
        _ => format!("{live} of {wanted} processes are up so far: see 'raddle group list'"),
    }
}

async fn forget(context: &Context, slug: &str) -> Outcome {
    let forgotten = group::forget(&*context.open_broker().await?, slug)
        .await
        .map_err(failure)?;
    if context.json {
        output::print_json(&forgotten)?;
        return Ok(0);
    }
    context.note(format!("'{slug}' is deleted, and receives no more events"));
    if forgotten.waiting > 0 {
        let tasks = count(forgotten.waiting, "task");
        context.note(format!(
            "its queue still has {tasks}: run them with 'raddle worker start --queues {slug}', or see 'raddle task list --queue {slug}'"
        ));
    }
    for source in &forgotten.unread {
        context.note(format!(
            "messages that are written to '{source}' stay there from now on: no worker receives them"
        ));
    }
    Ok(0)
}

fn print_change(context: &Context, state: &DesiredState, message: &str) -> Outcome {
    if context.json {
        let DesiredState {
            slug, process, on, ..
        } = state;
        output::print_json(
            &serde_json::json!({ "slug": slug, "process": process, "on": on, "replicas": state.wanted() }),
        )?;
    } else {
        context.note(message);
    }
    Ok(0)
}

fn failure(error: GroupChangeError) -> Failure {
    match error {
        GroupChangeError::Broker(error) => error.into(),
        other => Failure::Usage(other.to_string()),
    }
}
