//! `raddle failures`: failed tasks by cause.

use jiff::Timestamp;
use raddle_client::text::printable;
use raddle_model::{TaskQuery, Tid, query::FlagField};
use raddle_view::failures::{FailureGroup, FailureList, FailureReader};

use crate::{args::FailuresArgs, context::Context, error::Outcome, format, output, table::Table};

pub(super) async fn failures(context: &Context, args: &FailuresArgs) -> Outcome {
    let query: TaskQuery = args.query.join(" ").parse()?;
    let broker = context.open_existing().await?;
    let query = if args.retry {
        query.and(TaskQuery::flag(FlagField::Dead, true))
    } else {
        query
    };
    let list = FailureReader::default().read(&*broker, &query).await?;
    if !list.complete && !context.json {
        context.note(format!("these are the newest {} failures", list.looked_at));
    }
    if !args.retry {
        return context.show(&list, || render(&list));
    }
    let mut tids: Vec<Tid> = list
        .items
        .into_iter()
        .flat_map(|group| group.tasks)
        .collect();
    tids.sort_unstable();
    if tids.is_empty() {
        context.note("no matching task is a dead letter");
    }
    super::retry::resubmit_all(context, &*broker, tids, true).await
}

fn render(list: &FailureList) -> String {
    let now = Timestamp::now();
    let mut table = Table::new(&[
        "COUNT",
        "DEAD",
        "LAST",
        "SAMPLE",
        "NAME",
        "END",
        "LAST LINE",
    ]);
    for group in &list.items {
        let FailureGroup { count, dead, .. } = group;
        table.row([
            count.to_string(),
            dead.to_string(),
            format::age(group.last_seen, now),
            group.sample.to_string(),
            printable(&group.name),
            printable(&group.exit),
            printable(&group.line),
        ]);
    }
    table.render_to_fit(output::terminal_width())
}
