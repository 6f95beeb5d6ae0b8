//! `raddle group`.

use raddle_fabric::group::{self, ChangeError, Standing, View};

use crate::{
    args::{GroupCommand, ScaleArgs, SlugArgs},
    context::Context,
    error::{Failure, Outcome},
    format::count,
    output,
    table::Table,
};

pub(super) async fn group(context: &Context, command: GroupCommand) -> Outcome {
    match command {
        GroupCommand::List => list(context).await,
        GroupCommand::Off(SlugArgs { slug }) => turn(context, &slug, false).await,
        GroupCommand::On(SlugArgs { slug }) => turn(context, &slug, true).await,
        GroupCommand::Forget(SlugArgs { slug }) => forget(context, &slug).await,
        GroupCommand::Scale(ScaleArgs { slug, replicas }) => {
            let broker = context.broker().await?;
            let standing = group::scale(&*broker, &slug, replicas).await.map_err(failure)?;
            changed(context, &standing, &format!("'{slug}' is to have {}", count(replicas.into(), "process")))
        }
    }
}

async fn list(context: &Context) -> Outcome {
    let views = group::list(&*context.onlooker().await?).await?;
    context.show(&views, || render(&views))
}

fn render(views: &[View]) -> String {
    let mut table =
        Table::new(&["SLUG", "PROCESS", "STATE", "REPLICAS", "LIVE", "BUSY", "WAITING", "SOURCES", "MANAGER"]);
    for view in views {
        table.row([
            view.slug.clone(),
            view.process.clone(),
            if view.on { "on" } else { "off" }.into(),
            view.replicas.to_string(),
            view.live.to_string(),
            view.busy.to_string(),
            view.waiting.to_string(),
            if view.sources.is_empty() { "-".into() } else { view.sources.join(",") },
            managers(view),
        ]);
    }
    table.render()
}

fn managers(view: &View) -> String {
    let all: Vec<String> =
        view.managers.iter().map(|keeper| format!("{} ({})", keeper.tid, keeper.status.as_str())).collect();
    if all.is_empty() { "-".into() } else { all.join(", ") }
}

async fn turn(context: &Context, slug: &str, on: bool) -> Outcome {
    let broker = context.broker().await?;
    let standing = group::turn(&*broker, slug, on).await.map_err(failure)?;
    changed(context, &standing, &format!("'{slug}' is {}", if on { "on" } else { "off" }))
}

async fn forget(context: &Context, slug: &str) -> Outcome {
    let forgotten = group::forget(&*context.broker().await?, slug).await.map_err(failure)?;
    if context.json {
        output::json(&forgotten)?;
        return Ok(0);
    }
    context.note(format!("'{slug}' is forgotten: nothing is an event for it any more"));
    if forgotten.waiting > 0 {
        let tasks = count(forgotten.waiting, "task");
        context.note(format!(
            "its queue has {tasks} still: run them with 'raddle worker start --queues {slug}', or see 'raddle task list --queue {slug}'"
        ));
    }
    for source in &forgotten.unread {
        context.note(format!("what is written to '{source}' stays there from now on: it is an event for nobody"));
    }
    Ok(0)
}

fn changed(context: &Context, standing: &Standing, said: &str) -> Outcome {
    if context.json {
        let Standing { slug, process, on, .. } = standing;
        output::json(
            &serde_json::json!({ "slug": slug, "process": process, "on": on, "replicas": standing.wanted() }),
        )?;
    } else {
        context.note(said);
    }
    Ok(0)
}

fn failure(error: ChangeError) -> Failure {
    match error {
        ChangeError::Broker(error) => error.into(),
        other => Failure::Usage(other.to_string()),
    }
}
