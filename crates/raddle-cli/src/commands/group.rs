//! `raddle group`.

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
const LOOK: Duration = Duration::from_millis(50);

pub(super) async fn group(context: &Context, command: GroupCommand) -> Outcome {
    match command {
        GroupCommand::List => list(context).await,
        GroupCommand::Off(SlugArgs { slug }) => turn(context, &slug, false).await,
        GroupCommand::On(SlugArgs { slug }) => turn(context, &slug, true).await,
        GroupCommand::Forget(SlugArgs { slug }) => forget(context, &slug).await,
        GroupCommand::Scale(ScaleArgs { slug, replicas }) => {
            let broker = context.broker().await?;
            let standing = group::scale(&*broker, &slug, replicas)
                .await
                .map_err(failure)?;
            changed(
                context,
                &standing,
                &format!("'{slug}' is to have {}", count(replicas.into(), "process")),
            )?;
            explain_delay(context, &*broker, &standing).await
        }
    }
}

async fn list(context: &Context) -> Outcome {
    let views = group::list(&*context.open_read_only().await?).await?;
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
    table.render()
}

fn managers(view: &GroupWorkerView) -> String {
    let all: Vec<String> = view
        .managers
        .iter()
        .map(|keeper| format!("{} ({})", keeper.tid, keeper.status.as_str()))
        .collect();
    if all.is_empty() {
        "-".into()
    } else {
        all.join(", ")
    }
}

async fn turn(context: &Context, slug: &str, on: bool) -> Outcome {
    let broker = context.broker().await?;
    let standing = group::turn(&*broker, slug, on).await.map_err(failure)?;
    changed(
        context,
        &standing,
        &format!("'{slug}' is {}", if on { "on" } else { "off" }),
    )?;
    explain_delay(context, &*broker, &standing).await
}

/// Waits for the requested change, and prints why it does not happen: at once without a manager,
/// otherwise after a while.
async fn explain_delay(context: &Context, broker: &dyn Broker, standing: &DesiredState) -> Outcome {
    let wanted = if standing.on {
        standing.wanted() as usize
    } else {
        0
    };
    let deadline = Instant::now() + EXPLAIN_AFTER;
    loop {
        let views = group::list(broker).await?;
        let Some(view) = views.iter().find(|view| view.slug == standing.slug) else {
            return Ok(0);
        };
        if view.live == wanted {
            return Ok(0);
        }
        if view.managers.is_empty() || Instant::now() >= deadline {
            context.note(delay(view, wanted));
            return Ok(0);
        }
        sleep(LOOK).await;
    }
}

/// Why a worker has fewer processes than wanted.
fn delay(view: &GroupWorkerView, wanted: usize) -> String {
    let (slug, live) = (&view.slug, view.live);
    let Some(keeper) = view.managers.first() else {
        return format!(
            "no manager keeps '{slug}': it will be so when one is started, with 'raddle up'"
        );
    };
    let tid = keeper.tid;
    match keeper.status {
        _ if live > wanted => {
            let left = count((live - wanted) as u64, "process");
            format!(
                "{left} may finish what runs there: 'raddle task list --queue {slug} --status running' shows that"
            )
        }
        WorkerStatus::Draining => {
            format!(
                "its manager {tid} is about to end: it will be so when 'raddle up' is started again"
            )
        }
        WorkerStatus::Braking => {
            format!(
                "processes of its manager {tid} die as soon as they are started: the log of 'raddle up' says why"
            )
        }
        _ => format!(
            "{live} of {wanted} are there so far: 'raddle group list' shows when there are more"
        ),
    }
}

async fn forget(context: &Context, slug: &str) -> Outcome {
    let forgotten = group::forget(&*context.broker().await?, slug)
        .await
        .map_err(failure)?;
    if context.json {
        output::json(&forgotten)?;
        return Ok(0);
    }
    context.note(format!(
        "'{slug}' is forgotten: nothing is an event for it any more"
    ));
    if forgotten.waiting > 0 {
        let tasks = count(forgotten.waiting, "task");
        context.note(format!(
            "its queue has {tasks} still: run them with 'raddle worker start --queues {slug}', or see 'raddle task list --queue {slug}'"
        ));
    }
    for source in &forgotten.unread {
        context.note(format!(
            "what is written to '{source}' stays there from now on: it is an event for nobody"
        ));
    }
    Ok(0)
}

fn changed(context: &Context, standing: &DesiredState, said: &str) -> Outcome {
    if context.json {
        let DesiredState {
            slug, process, on, ..
        } = standing;
        output::json(
            &serde_json::json!({ "slug": slug, "process": process, "on": on, "replicas": standing.wanted() }),
        )?;
    } else {
        context.note(said);
    }
    Ok(0)
}

fn failure(error: GroupChangeError) -> Failure {
    match error {
        GroupChangeError::Broker(error) => error.into(),
        other => Failure::Usage(other.to_string()),
    }
}
